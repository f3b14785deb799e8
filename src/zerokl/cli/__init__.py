"""The command line, and the only place that wires parts: serve · generate · check.

Commands are imported when they are called, so that `zerokl --version` and a typo cost nothing.
"""

from __future__ import annotations


def main() -> None:
    """The console script. The processes of a server are modules here too, and need nothing of its flags."""
    from zerokl.cli.main import main as run

    run()
