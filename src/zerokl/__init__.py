"""zerokl: an LLM server whose bits don't move, and the checker that proves it."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`from zerokl import LLM`, without loading the engine for those who only want the version."""
    if name == "LLM":
        # From here: at the depth at which our own modules would import it, each call that numpy makes on its way takes
        # Python 3.11 to the end of a piece of its stack, which is mapped and unmapped again: 25 ms.
        import numpy  # noqa: F401

        from zerokl.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
