"""Text to ids and back, and chats to text: the `tokenizers` library and a fenced Jinja, never transformers.

tokenizer = Tokenizer.load(run_folder)
ids = tokenizer.encode("Hello")                           # with the model's BOS, if it has one
ids = tokenizer.encode(tokenizer.chat.render(messages), add_special_tokens=False)
stream = tokenizer.stream(ids)
delta = stream.push([token])
"""

from __future__ import annotations

from zerokl.tokenizer.stream import TextStream
from zerokl.tokenizer.tokenizer import Tokenizer

__all__ = ["TextStream", "Tokenizer"]
