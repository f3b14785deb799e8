"""/v1/chat/completions: messages as a prompt, through the model's own template."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from zerokl.config import Config
from zerokl.errors import InvalidRequest
from zerokl.server.fields import message, shown
from zerokl.server.grammars import openai_grammar
from zerokl.server.job import Job, Prompt
from zerokl.server.openai_common import check_model, jobs_of
from zerokl.server.prompts import LONG_TEXT, Limits, bounded_ids, empty
from zerokl.server.service import Service
from zerokl.server.tools import PARSERS, PlainText, ToolParser
from zerokl.server.tools.forced import forced_grammar, forced_parser
from zerokl.server.validate import Values
from zerokl.wire.messages import LogprobOptions

ROLES = ("system", "developer", "user", "assistant", "tool")


def check_chat(service: Service, values: Values) -> None:
    """What the table can't say."""
    check_model(service, values)
    check_messages(values["messages"])
    top = values["top_logprobs"]
    if top and not values["logprobs"]:
        raise InvalidRequest(message("top_needs_logprobs", value=top), param="top_logprobs")
    if "chat_template" in values["chat_template_kwargs"]:
        raise InvalidRequest(message("template_in_request"), param="chat_template_kwargs")


def check_messages(messages: Sequence[Any]) -> None:
    """Roles and content; everything else reaches the template as it was sent."""
    for position, one in enumerate(messages):
        if not isinstance(one, dict):
            raise _bad("message_object", position, one)
        if one.get("role") not in ROLES:
            raise _bad("message_role", position, one.get("role"))
        content = one.get("content")
        if isinstance(content, list):
            _check_parts(content, position)
        elif content is not None and not isinstance(content, str):
            raise _bad("message_content", position, content)


def _check_parts(parts: Sequence[Any], position: int) -> None:
    for index, part in enumerate(parts):
        good = isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        if not good:
            raise _bad("message_part", position, part, part=index)


def _bad(key: str, position: int, value: Any, **more: Any) -> InvalidRequest:
    return InvalidRequest(message(key, position=position, value=shown(value), **more), param="messages")


async def chat_prompt(service: Service, values: Values, received: int) -> Prompt:
    """The rendered conversation as ids. The template writes BOS itself, so the tokenizer must not."""
    tools = values["tools"] if values["tool_choice"] != "none" else None
    variables = dict(values["chat_template_kwargs"])
    if values["reasoning_effort"] is not None:
        variables["reasoning_effort"] = values["reasoning_effort"]
    return await render(
        service,
        values["messages"],
        received,
        tools=tools,
        add_generation_prompt=values["add_generation_prompt"] and not values["continue_final_message"],
        continue_final_message=values["continue_final_message"],
        variables=variables,
    )


async def render(service: Service, messages: Sequence[Any], received: int, **options: Any) -> Prompt:
    """A template is somebody else's program, so what may take it long runs off the event loop.

    `received`: of how many bytes the conversation was made.
    """
    context = service.engine.limits.context

    def work() -> Prompt:
        text = service.tokenizer.chat.render(messages, **options)
        return Prompt(bounded_ids(service.tokenizer, text, context, add_special_tokens=False))

    try:
        prompt = await asyncio.to_thread(work) if received > LONG_TEXT else work()
    except InvalidRequest as error:
        raise InvalidRequest(str(error), param="messages", code=error.code) from error
    if not prompt.ids:
        raise empty("messages")
    return prompt


def parser_of(config: Config, values: Values, forced: str | None) -> Callable[[], ToolParser]:
    """Makes the parser of one choice: calls are looked for where tools were given and may be used."""
    if forced is not None:
        return lambda: forced_parser(forced)
    if not config.tool_call_parser or not values["tools"] or values["tool_choice"] == "none":
        return PlainText
    return PARSERS[config.tool_call_parser]


def chat_jobs(
    values: Values, prompt: Prompt, limits: Limits, forced: str | None = None, shows_special: bool = False
) -> list[Job]:
    """`forced`: the tool that must be called. `shows_special`: special tokens stay in the text, for the parser."""
    asked = values["max_completion_tokens"]
    max_tokens = values["max_tokens"] if asked is None else asked
    logprobs = LogprobOptions(num_top=values["top_logprobs"] or 0) if values["logprobs"] else None
    grammar = openai_grammar(values)
    if forced is not None:
        if grammar:
            raise InvalidRequest(message("one_grammar", given=f"tool_choice and {grammar.kind}"), param="tool_choice")
        grammar = forced_grammar(forced, values["tools"], values["parallel_tool_calls"] is not False)
    if shows_special:
        values = {**values, "skip_special_tokens": False}
    return jobs_of(values, prompt, max_tokens, logprobs, limits, grammar)
