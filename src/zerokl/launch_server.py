"""`python -m zerokl.launch_server`: SGLang's launch lines, unchanged (docs/sglang-flags.md)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from zerokl.cli.process import set_up_logs
from zerokl.cli.serve import run
from zerokl.cli.sglang_launch import config_from
from zerokl.errors import CallerError, NoRoom


def main(arguments: Sequence[str]) -> int:
    set_up_logs("zerokl", "info")
    try:
        return run(config_from(arguments))
    except (CallerError, NoRoom) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
