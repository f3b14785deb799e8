"""Chat templates: messages in, the prompt's text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from zerokl.errors import InvalidRequest
from zerokl.tokenizer.sandbox import compile_template, render
from zerokl.types import SpecialTokens

Message = Mapping[str, Any]


class ChatTemplate:
    """A model's template, compiled once. Renders the same text for the same messages, except for `strftime_now`."""

    def __init__(self, source: str, special: SpecialTokens) -> None:
        self.source = source
        self._names = dict(special.names)
        self._template = compile_template(source) if source else None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a chat. Messages and tools reach the template as they are; parts are joined if it takes text.

        `continue_final_message` leaves the last message open, for the model to go on. Raises InvalidRequest.
        """
        if self._template is None:
            raise InvalidRequest("the model has no chat template; send a prompt, or start with --chat-template")
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest("continue_final_message and add_generation_prompt exclude each other")
        if not self.takes_parts:
            messages = [_with_text(message) for message in messages]
        context = {"messages": messages, "tools": tools, "documents": None, **self._names, **(variables or {})}
        text = render(self._template, context | {"add_generation_prompt": add_generation_prompt})
        return _left_open(text, messages[-1]) if continue_final_message and messages else text

    @cached_property
    def takes_parts(self) -> bool:
        """True if the template itself walks a content that is a list of parts; else contents must be text."""
        if self._template is None:
            return False
        mark = "zerokl-part"
        message = {"role": "user", "content": [{"type": "text", "text": mark}]}
        context = {"messages": [message], "tools": None, "add_generation_prompt": False, **self._names}
        try:
            text = render(self._template, context)
        except InvalidRequest:
            return False
        return mark in text and "'text'" not in text and '"text"' not in text


def _with_text(message: Message) -> Message:
    """The message with a content of text parts joined; any other stays as it is."""
    content = message.get("content")
    if not isinstance(content, list) or not all(
        isinstance(p, dict) and isinstance(p.get("text"), str) for p in content
    ):
        return message
    return {**message, "content": "".join(part["text"] for part in content)}


def _left_open(text: str, last: Message) -> str:
    """`text` cut off right after the last message's content, whose outer spaces the template may have dropped."""
    content = _with_text(last).get("content")
    if not isinstance(content, str) or content.strip() not in text:
        raise InvalidRequest("continue_final_message: the chat template changes the last message's text")
    start = text.rindex(content.strip())
    kept = content.lstrip()
    return text[: start + len(kept if text.startswith(kept, start) else content.strip())]
