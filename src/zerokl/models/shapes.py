"""The small language of weight tables: braces in names, letters and factors in shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod


def spread(text: str) -> list[str]:
    """'{q,k,v}_proj' -> ['q_proj', 'k_proj', 'v_proj']; without braces, the text alone."""
    found = re.search(r"\{([^{}]*)\}", text)
    if not found:
        return [text]
    return [text[: found.start()] + choice + text[found.end() :] for choice in found[1].split(",")]


def sizes(shape: str, axes: Mapping[str, int]) -> tuple[int, ...]:
    """'2F H·D' with {F: 96, H: 4, D: 16} -> (192, 64); 'F+F' is the size of 2F."""
    return tuple(sum(term_size(term, axes) for term in dimension.split("+")) for dimension in shape.split())


def term_size(term: str, axes: Mapping[str, int]) -> int:
    """'H·D'."""
    return prod(size(factor, axes) for factor in term.split("·"))


def size(factor: str, axes: Mapping[str, int]) -> int:
    """'F' or '2F' or '3'."""
    count, letter = re.fullmatch(r"(\d*)([A-Z]?)", factor).groups()  # type: ignore[union-attr]  # a table's own typo
    return int(count or 1) * (axes[letter] if letter else 1)
