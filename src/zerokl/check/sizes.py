"""How much of everything a run asks for: three sizes, scaled by --max-new-tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Sizes:
    name: str
    prompts: int
    """Prompts per case, in styles that take turns."""
    new_tokens: int
    long_tokens: int
    """Of the one long answer: short ones miss what shows late."""
    neighbours: tuple[int, ...]
    top: int = 5
    long_chunks: float = 2.0
    """Length of the long text in chunks of the server."""
    thorough: bool = True
    """All boundaries, cold as well as warm."""

    def capped(self, new_tokens: int | None) -> Sizes:
        if new_tokens is None:
            return self
        return replace(self, new_tokens=min(self.new_tokens, new_tokens), long_tokens=new_tokens)


QUICK = Sizes("quick", prompts=2, new_tokens=12, long_tokens=40, neighbours=(1, 7), long_chunks=1.1, thorough=False)
DEFAULT = Sizes("default", prompts=3, new_tokens=32, long_tokens=160, neighbours=(1, 2, 7, 32))
