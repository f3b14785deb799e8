"""How logprob lists name a token: by its text (`Tokenizer.token_text`), or on request as `token_id:262`.

Output text doesn't come from here: the engine decodes it once, for every frontend.
"""

from __future__ import annotations

from collections.abc import Callable

TokenText = Callable[[int], str]
TokenBytes = Callable[[int], bytes]


def id_text(token_id: int) -> str:
    """What return_tokens_as_token_ids asks for; never ambiguous."""
    return f"token_id:{token_id}"
