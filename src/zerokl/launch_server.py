"""`python -m zerokl.launch_server`: SGLang's launch lines, unchanged (docs/sglang-flags.md)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from zerokl.cli.complaints import in_one_line
from zerokl.cli.process import set_up_logs
from zerokl.cli.serve import run
from zerokl.cli.sglang_launch import config_from


def main(arguments: Sequence[str]) -> int:
    set_up_logs("zerokl", "info")
    return in_one_line(lambda: run(config_from(arguments)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
