"""zerokl: an LLM server whose bits don't move, and the checker that proves it."""

__version__ = "0.1.0"
