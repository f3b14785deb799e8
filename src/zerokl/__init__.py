"""zerokl: an LLM server whose bits don't move, and the checker that proves it."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`from zerokl import LLM`, without loading the engine for those who only want the version."""
    if name == "LLM":
        from zerokl.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
