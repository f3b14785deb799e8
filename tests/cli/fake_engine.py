"""The fake engine as a child of the supervisor: `python -m tests.cli.fake_engine RUN_FOLDER LIFELINE [FLAGS]`."""

from __future__ import annotations

import sys
from pathlib import Path

from zerokl.cli.process import hold_lifeline
from zerokl.cli.run_folder import await_config
from zerokl.engine import fake

if __name__ == "__main__":
    folder, lifeline, *flags = sys.argv[1:]
    hold_lifeline(int(lifeline))
    await_config(Path(folder))
    raise SystemExit(fake.main(["--socket", str(Path(folder) / "engine.sock"), "--run-folder", folder, *flags]))
