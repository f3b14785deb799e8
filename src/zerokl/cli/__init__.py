"""The command line, and the only place that wires parts: serve · generate · check.

Commands are imported when they are called, so that `zerokl --version` and a typo cost nothing.
"""

from __future__ import annotations

from zerokl.cli.main import main

__all__ = ["main"]
