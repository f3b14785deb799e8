"""zerokl: an LLM server whose bits don't move, and the checker that proves it."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`from zerokl import LLM`, without loading the engine for those who only want the version."""
    if name == "LLM":
        import gc

        collects = gc.isenabled()
        gc.disable()  # nothing that is loaded is garbage, and looking for some takes 5 ms
        try:
            _load_numpy()
            from zerokl.llm import LLM
        finally:
            if collects:
                gc.enable()
        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _load_numpy() -> None:
    """First, and from here: at the depth at which our own modules would import it, each call that numpy makes on its
    way takes Python 3.11 to the end of a piece of its stack, which is mapped and unmapped again (25 ms).

    Threads of its BLAS, which we never call, spin for 2^26 cycles whenever they have nothing to do, on the cores that
    pack weights. For 2^20 they still hear of a caller's next product.
    """
    import os

    variable = "OPENBLAS_THREAD_TIMEOUT"
    ours = variable not in os.environ
    os.environ.setdefault(variable, "20")
    try:
        import numpy  # noqa: F401
    finally:
        if ours:
            os.environ.pop(variable)
