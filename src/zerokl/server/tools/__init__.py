"""Tool calls in the model's text: one file per form in which models write them, and the forms that are forced."""

from zerokl.server.tools.calls import CallPart, Event, PlainText, ToolParser
from zerokl.server.tools.hermes import Hermes
from zerokl.server.tools.llama3 import Llama3
from zerokl.server.tools.mistral import Mistral

PARSERS: dict[str, type[ToolParser]] = {"hermes": Hermes, "qwen25": Hermes, "llama3": Llama3, "mistral": Mistral}
"""By the values of --tool-call-parser."""

__all__ = ["PARSERS", "CallPart", "Event", "PlainText", "ToolParser"]
