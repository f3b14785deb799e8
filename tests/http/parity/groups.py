"""All cases by the server that they are asked of; each group is one file of transcripts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.http.conftest import SCRIPT, says
from tests.http.parity import cases_generate, cases_openai, cases_routes
from tests.http.parity.exchanges import Case
from tests.http.toy import END, EOS


@dataclass(frozen=True, slots=True)
class Group:
    cases: list[Case]
    options: dict[str, Any] = field(default_factory=dict)
    """Of `live`."""
    admin: str = ""


def asked(*outputs: str | list[int]) -> list[dict[str, Any]]:
    """A script for the chats "t0", "t1", ..."""
    texts = [[*f"<user>t{i}".encode(), END, *b"<assistant>"] for i in range(len(outputs))]
    written = [list(output.encode()) if isinstance(output, str) else output for output in outputs]
    return [{"prompt": p, "tokens": [*o, EOS], "logprobs": []} for p, o in zip(texts, written, strict=True)]


def tool_cases(count: int) -> list[Case]:
    cases = []
    for i in range(count):
        body = {"messages": [{"role": "user", "content": f"t{i}"}], "tools": [cases_openai.NOW], "temperature": 0}
        cases.append(cases_openai.chat(f"what the model wrote, number {i}, whole", **body))
        cases.append(cases_openai.chat(f"what the model wrote, number {i}, as a stream", **body, stream=True, n=1))
    return cases


def tools_of(parser: str, *outputs: str | list[int]) -> Group:
    return Group(tool_cases(len(outputs)), {"script": asked(*outputs), "tool_call_parser": parser})


HERMES = (
    "plain",
    'I look. <tool_call>\n{"name": "now", "arguments": {"a": 1.0, "b": "é\\u00e9"}}\n</tool_call> then',
    '<tool_call>{"name":"a","arguments":{}}</tool_call>\n'
    '<tool_call>{"name":"b","parameters":"{\\"x\\": 2}"}</tool_call>',
    "<tool_call>not JSON</tool_call> <tool_call>{}",
    '<tool_call>{"name":"\\ud800","arguments":{}}</tool_call>',
    '<tool_call>{"name":"deep","arguments":{"a":' + "[" * 120 + "]" * 120 + "}}</tool_call>",
    '<tool_call>{"name":"big","arguments":{"a":' + "9" * 200 + ',"b":1e999}}',
)
LLAMA = (
    '{"name": "now", "parameters": {"a": 1}}; {"name": "b", "arguments": {}} ; ',
    '<|python_tag|>{"name": "now", "parameters": {}}',
    '{"name": "now", "parameters": {}} and more',
    ' {"other": 1}',
    "<|python",
)
MISTRAL = (
    '[TOOL_CALLS] [{"name": "a", "arguments": {"x": [1]}}, {"name": "b", "arguments": {}}]',
    'say [TOOL_CALLS]now[ARGS]{"x": 1}[TOOL_CALLS]then[CALL_ID]abc[ARGS]{} end',
    "[TOOL_CALLS] [1, 2]",
    "[TOOL_CALLS]",
)

PLAIN = {"script": [*SCRIPT, says("nan2", "ab", [-1.0, float("nan")])]}
SMALL = [
    Case("exactly as large as may be", "POST", "/generate", b" " * 2000),
    Case("one byte more, said", "POST", "/generate", b" " * 2001),
]
NAMED = {"served_model_name": "org/model", "weight_version": "v2", "strict_model": True, "disable_playground": True}
NAMED_CASES = [
    Case("its name", "GET", "/v1/models"),
    Case("one model by a name with slashes", "GET", "/v1/models/org/model"),
    Case("the same, escaped", "GET", "/v1/models/org%2Fmodel"),
    Case("no page", "GET", "/"),
    Case("the weights' version", "POST", "/generate", {"text": "ab", "sampling_params": {"max_new_tokens": 1}}),
    Case("facts", "GET", "/model_info"),
    *(
        Case(f"the model {name!r}", "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "model": name})
        for name in ("org/model", "gpt", "", None)
    ),
    Case("another model in chat", "POST", "/v1/chat/completions", {"messages": cases_openai.HI, "model": "x"}),
]
DOUBLE_BOS = {"input_ids": [256, 256, 97], "return_prompt_token_ids": True, "sampling_params": {"max_new_tokens": 1}}
ECHO = {"prompt": "a", "max_tokens": 1, "echo": True, "logprobs": 0}
BOS = [
    Case("BOS before a text", "POST", "/tokenize", {"prompt": "a"}),
    Case("no BOS before a chat", "POST", "/tokenize", {"messages": cases_openai.HI}),
    Case("an empty text has one token", "POST", "/tokenize", {"prompt": ""}),
    Case("echo leaves BOS out", "POST", "/v1/completions", ECHO),
    Case("ids are as they are", "POST", "/generate", DOUBLE_BOS),
    Case("an empty prompt is still refused", "POST", "/generate", {"text": ""}),
]
SYSTEM = {"messages": [{"role": "system", "content": "x"}]}
CHANGED = {"messages": [{"role": "assistant", "content": "abc"}], "continue_final_message": True}
FAILING = [
    Case("a template that refuses", "POST", "/v1/chat/completions", SYSTEM),
    Case("the same in /tokenize", "POST", "/tokenize", SYSTEM),
    Case("a template that renders nothing", "POST", "/tokenize", {"messages": [{"role": "user", "content": ""}]}),
    Case("a last message that isn't there", "POST", "/v1/chat/completions", CHANGED),
    Case("a completion needs no template", "POST", "/v1/completions", {"prompt": "ab", "max_tokens": 1}),
]
REFUSING = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system, é') }}{% endif %}"
    "{% if m.role == 'user' %}{{ m.content }}{% else %}?{% endif %}{% endfor %}"
)

GROUPS: dict[str, Group] = {
    "generate": Group(cases_generate.all_cases(), PLAIN),
    "openai": Group(cases_openai.all_cases(), PLAIN),
    "routes": Group(cases_routes.all_cases(), PLAIN),
    "incremental": Group(list(cases_generate.streams()), {**PLAIN, "incremental_streaming_output": True}),
    "keys": Group(
        list(cases_routes.keys()), {"api_key": ("user-key", "other-key"), "admin_api_key": "admin-key"}, "admin-key"
    ),
    "origins": Group(list(cases_routes.origins()), {"allow_origins": ("https://a.example",)}),
    "any_origin": Group(list(cases_routes.origins()), {"allow_origins": ("*",)}),
    "small": Group(SMALL, {"max_body_bytes": 2000}),
    "named": Group(NAMED_CASES, NAMED),
    "bos": Group(BOS, {"add_bos": True}),
    "refusing": Group(FAILING, {"template": REFUSING}),
    "no_template": Group(FAILING[:2], {"template": ""}),
    "hermes": tools_of("hermes", *HERMES),
    "llama3": tools_of("llama3", *LLAMA),
    "mistral": tools_of("mistral", *MISTRAL),
}
