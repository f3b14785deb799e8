"""Write docs/models.json anew: each architecture in each format, measured against transformers and by `zerokl check`.

    python tools/model_table.py [--only ARCHITECTURE ...]

A row is loaded, its logits are compared with the goldens of transformers (as tests/models/test_formats.py does it), it
is served, and cases of the checker are run. `make docs` puts the table into docs/models.md.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.models import formats  # noqa: E402
from tests.models.served import served  # noqa: E402
from tests.models.test_formats import error_of  # noqa: E402

from zerokl import checkpoints, models  # noqa: E402
from zerokl.check.checking import Options, run_check  # noqa: E402
from zerokl.check.outcome import Status  # noqa: E402
from zerokl.config import Config  # noqa: E402

RESULTS = ROOT / "docs" / "models.json"
CASES = ("repeats", "rescoring", "continued", "warm-decode", "order", "crowd", "chunks")
POOL_TOKENS = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(formats.OF_ARCHITECTURE), help="measure these again")
    chosen = parser.parse_args().only
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    found = {(row["architecture"], row["format"]): row for row in known}
    for architecture, form in formats.rows():
        if architecture in chosen:
            found[architecture, form] = measured(architecture, form)
            print(found[architecture, form], flush=True)
            rows = [found[key] for key in formats.rows() if key in found]
            RESULTS.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def measured(architecture: str, form: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = formats.write(Path(folder), architecture, form)
        error = error_of(models.load(checkpoints.open(path), Config()), architecture, form)
        with served(Config(model=str(path), max_total_tokens=POOL_TOKENS, log_level="warning")) as url:
            options = Options(url, cases=CASES, diagnose=False)
            report = asyncio.run(run_check(options, Console(file=io.StringIO())))
    not_equal = {result.case.name: result.reason for result in report.results if result.status is not Status.EQUAL}
    return {
        "architecture": architecture,
        "format": form,
        "error": round(error, 2),
        "values": report.values,
        "differing": report.differing,
        "not equal": not_equal,
    }


if __name__ == "__main__":
    main()
