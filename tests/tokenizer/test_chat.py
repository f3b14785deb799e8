"""Chat templates: what transformers renders, messages as sent, and errors that say what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tokenizer.chats import CONVERSATIONS, NAMES, TEMPLATES, TOOLS
from zerokl.errors import CheckpointError, InvalidRequest
from zerokl.tokenizer.chat import ChatTemplate
from zerokl.types import SpecialTokens

GOLDEN = Path(__file__).parent.parent / "goldens" / "tokenizer" / "chats.json"
USER = [{"role": "user", "content": "Hi"}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, SpecialTokens(1, names=tuple(NAMES.items())))


@pytest.fixture(scope="module")
def golden() -> Any:
    return json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_what_transformers_renders(name: str, golden: Any) -> None:
    """Goldens of tools/tokenizer_goldens.py; null where transformers raised, and so must we."""
    chat = template(TEMPLATES[name])
    for i, messages in enumerate(CONVERSATIONS):
        for tools in (None, TOOLS):
            for prompt in (False, True):
                expected = golden["texts"][f"{name}/{i}/{bool(tools)}/{prompt}"]
                try:
                    found = chat.render(messages, tools=tools, add_generation_prompt=prompt)
                except InvalidRequest:
                    found = None
                assert found == expected


def test_golden_covers_failures_and_texts(golden: Any) -> None:
    texts = golden["texts"].values()
    assert sum(text is None for text in texts) >= 4
    assert sum(text is not None for text in texts) >= 100


def test_messages_reach_the_template_as_sent() -> None:
    message = {"zeta": None, "role": "user", "alpha": [1, {"b": 2.5, "a": "é"}], "content": None}
    chat = template("{{ messages | tojson }}")
    assert chat.render([message]) == json.dumps([message], ensure_ascii=False)


def test_tools_reach_the_template_as_sent() -> None:
    assert template("{{ tools | tojson }}").render(USER, tools=TOOLS) == json.dumps(TOOLS, ensure_ascii=False)


def test_variables_reach_the_template() -> None:
    assert template("{{ enable_thinking }}").render(USER, variables={"enable_thinking": False}) == "False"


PARTS = [{"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}]


def test_parts_are_joined_for_a_template_that_takes_text() -> None:
    chat = template("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert not chat.takes_parts
    assert chat.render(PARTS) == "[a b]"


def test_parts_stay_parts_for_a_template_that_walks_them() -> None:
    chat = template(
        "{% for m in messages %}{% if m.content is string %}[{{ m.content }}]{% else %}"
        "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}"
    )
    assert chat.takes_parts
    assert chat.render(PARTS) == "<a ><b>"
    assert chat.render(USER) == "[Hi]"


@pytest.mark.parametrize("content", ["Sure", "Sure, ", "  Sure", " Sure \n"])
@pytest.mark.parametrize("filter", ["", " | trim"])
def test_continued_message_is_left_open(content: str, filter: str) -> None:
    chat = template("{% for m in messages %}<{{ m.role }}>{{ m.content" + filter + " }}</{{ m.role }}>\n{% endfor %}")
    text = chat.render(
        [*USER, {"role": "assistant", "content": content}], add_generation_prompt=False, continue_final_message=True
    )
    kept = content.strip() if filter else content
    assert text == f"<user>Hi</user>\n<assistant>{kept}"


def test_continuing_and_prompting_exclude_each_other() -> None:
    with pytest.raises(InvalidRequest, match="exclude"):
        template("x").render(USER, continue_final_message=True)


def test_no_template_is_the_requests_fault() -> None:
    with pytest.raises(InvalidRequest, match="no chat template"):
        template("").render(USER)


def test_raise_exception_tells_its_message() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        template("{{ raise_exception('roles must alternate') }}").render(USER)


def test_broken_template_names_its_line() -> None:
    with pytest.raises(CheckpointError, match="line 3"):
        template("a\nb\n{% for %}\n")


@pytest.mark.parametrize("source", ["{% if x %}" * 3000 + "{% endif %}" * 3000, "{{ " + "(" * 5000, "x" * (2**20 + 1)])
def test_absurd_template_is_a_checkpoint_error(source: str) -> None:
    with pytest.raises(CheckpointError):
        template(source)


def test_generation_block_stands_as_its_body_with_a_scope_of_its_own() -> None:
    chat = template("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}")
    assert chat.render(USER) == "21"


def test_strftime_now_formats_a_date() -> None:
    assert template("{{ strftime_now('%Y') }}").render(USER).isdecimal()
