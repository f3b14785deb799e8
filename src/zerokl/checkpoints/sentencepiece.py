"""SentencePiece's BPE has scores where the `tokenizers` library has an ordered list of merges: one from the other."""

from __future__ import annotations

from collections.abc import Sequence


def byte_token(byte: int) -> str:
    return f"<0x{byte:02X}>"


def merges_from_scores(tokens: Sequence[str], scores: Sequence[float], mergeable: Sequence[bool]) -> list[list[str]]:
    """Every way to make a token out of two, best first.

    SentencePiece joins the neighbours whose joint piece scores highest; so a merge ranks by its result's score, and
    among the ways to make one piece, by the pieces' ids.
    """
    ids = {token: i for i, (token, ok) in enumerate(zip(tokens, mergeable, strict=True)) if ok}
    ranked = []
    for token, i in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[i], i, left, right))
    ranked.sort()
    return [[tokens[left], tokens[right]] for _, _, left, right in ranked]
