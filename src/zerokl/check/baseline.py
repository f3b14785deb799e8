"""New differences only: what an earlier report already told is known, and doesn't fail the run again."""

from __future__ import annotations

import re
from typing import Any

Key = tuple[str, str, str, int]


def new_divergences(report: dict[str, Any], baseline: dict[str, Any]) -> list[dict[str, Any]]:
    """The divergences of `report` that are not in `baseline`: by case, both settings, and first position."""
    known = {_key(one) for one in baseline["divergences"]}
    return [one for one in report["divergences"] if _key(one) not in known]


def _key(divergence: dict[str, Any]) -> Key:
    first, other = (re.sub(r" \[.*\]$|\d+ tokens cached", "", divergence[side]) for side in ("first", "other"))
    return divergence["case"], first, other, min(divergence["positions"])
