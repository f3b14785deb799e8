"""A template that would take for ever, or all memory, is refused: soon, and the same on every machine."""

from __future__ import annotations

import resource
import time

import pytest

from zerokl.errors import InvalidRequest
from zerokl.tokenizer import fuel
from zerokl.tokenizer.chat import ChatTemplate
from zerokl.types import SpecialTokens

BIG = "{% set big = 'x' * 1000000 %}"
DOUBLE_TEXT = "{% set ns = namespace(x='x') %}{% for i in range(64) %}{% set ns.x = PUT %}{% endfor %}{{ ns.x }}"
HOSTILE = {
    "nested loops": "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}",
    "huge range": "{% for i in range(10**9) %}{% endfor %}",
    "nested loops over messages": "{% for a in messages %}" * 8 + "{% endfor %}" * 8,
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "branching recursion": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% for x in [1, 1, 1] recursive %}{{ loop([1, 1, 1]) }}{% endfor %}",
    "text times number": "{{ 'a' * 10**10 }}",
    "list times number": "{{ ([1] * 10**9)|length }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "growing integer": DOUBLE_TEXT.replace("'x'", "10**500").replace("PUT", "ns.x * ns.x"),
    "doubling by ~": DOUBLE_TEXT.replace("PUT", "ns.x ~ ns.x"),
    "doubling by +": DOUBLE_TEXT.replace("PUT", "ns.x + ns.x"),
    "doubling by %": DOUBLE_TEXT.replace("PUT", "'%s%s' % (ns.x, ns.x)"),
    "doubling by format": DOUBLE_TEXT.replace("PUT", "'{0}{0}'.format(ns.x)"),
    "doubling by join": DOUBLE_TEXT.replace("PUT", "[ns.x, ns.x]|join"),
    "doubling by str.join": DOUBLE_TEXT.replace("PUT", "''.join([ns.x, ns.x])"),
    "doubling by replace": DOUBLE_TEXT.replace("PUT", "ns.x|replace('x', 'xx')"),
    "doubling by block": DOUBLE_TEXT.replace("{% set ns.x = PUT %}", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    "doubling a list": DOUBLE_TEXT.replace("'x'", "[1]").replace("PUT", "ns.x + ns.x"),
    "a list of itself": DOUBLE_TEXT.replace("'x'", "[1]").replace("PUT", "[ns.x, ns.x]"),
    "a list of itself as JSON": DOUBLE_TEXT.replace("'x'", "[1]").replace("PUT", "[ns.x, ns.x]") + "{{ ns.x|tojson }}",
    "a dict of itself": DOUBLE_TEXT.replace("'x'", "{}").replace("PUT", "{'a': ns.x, 'b': ns.x}"),
    "padding": "{{ 'a'.center(10**9) }}",
    "padding filter": "{{ 'a'|center(10**9) }}",
    "zeros": "{{ '1'.zfill(10**9) }}",
    "printf width": "{{ '%1000000000d' % 1 }}",
    "printf star": "{{ '%*d' % (10**9, 1) }}",
    "printf filter": "{{ '%1000000000d'|format(1) }}",
    "format width": "{{ '{:1000000000}'.format(1) }}",
    "indent": "{{ ('\\n' * 1000000)|indent(9999) }}",
    "tabs": "{{ ('\\t' * 1000000).expandtabs(9999) }}",
    "JSON indent": "{{ range(100000)|list|tojson(indent=9999) }}",
    "replace nothing": BIG + "{{ big.replace('', big) }}",
    "replace filter": BIG + "{{ big|replace('x', big) }}",
    "translate": BIG + "{{ big.translate({120: big}) }}",
    "join with much": BIG + "{{ range(100000)|join(big) }}",
    "join nothing with much": BIG + "{{ ([''] * 100000)|join(big) }}",
    "join mapped nothing with much": BIG + "{{ ([{'a': ''}] * 100000)|map(attribute='a')|join(big) }}",
    "str.join nothing with much": BIG + "{{ big.join([''] * 100000) }}",
    "str.join mapped nothing": BIG + "{{ big.join(([{'a': ''}] * 100000)|map(attribute='a')) }}",
    "join much": BIG + "{{ ([big] * 100000)|join }}",
    "join mapped": BIG + "{{ ([{'a': big}] * 100000)|map(attribute='a')|join }}",
    "str.join mapped": BIG + "{{ ''.join(([{'a': big}] * 100000)|map(attribute='a')) }}",
    "sum of lists": "{% set l = range(100000)|list %}{{ ([l] * 100000)|sum(start=[])|length }}",
    "format many times": BIG + "{{ ('{0}' * 100000).format(big) }}",
    "printf many times": BIG + "{{ ('%(a)s' * 100000) % {'a': big} }}",
    "literal in a loop": "{% for i in range(100000) %}" + "y" * 100_000 + "{% endfor %}",
    "literal in a macro": "{% macro f() %}" + "y" * 100_000 + "{% endmacro %}" + "{{ f() }}" * 3000,
}  # fmt: skip


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_expensive_template_is_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a smaller budget, to be quick: what a single step may cost is the same."""
    monkeypatch.setattr(fuel, "MAX_STEPS", 300_000)
    monkeypatch.setattr(fuel, "MAX_CHARACTERS", 16 << 20)
    refuse(source, cpu_seconds=4, kilobytes=400 << 10)


@pytest.mark.slow
@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_expensive_template_is_refused_soon_and_in_bounded_memory(source: str) -> None:
    refuse(source, cpu_seconds=15, kilobytes=1 << 20)


def refuse(source: str, cpu_seconds: float, kilobytes: int) -> None:
    template = ChatTemplate(source, SpecialTokens(1))
    messages = [{"role": "user", "content": "Hi"}] * 100
    started, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidRequest, match=r"expensive|recursion"):
        template.render(messages)
    assert time.process_time() - started < cpu_seconds
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < kilobytes


def test_a_long_ordinary_chat_is_far_from_the_limits() -> None:
    source = (
        "{% for m in messages %}{% for other in messages[:loop.index] if other.role == 'system' %}{% endfor %}"
        "<{{ m.role }}>{{ m.content | trim }}{{ m | tojson }}</{{ m.role }}>\n{% endfor %}"
    )
    messages = [{"role": "user", "content": "word " * 2000}] * 1000  # ten million characters
    assert len(ChatTemplate(source, SpecialTokens(1)).render(messages)) > 20_000_000


def test_each_render_has_its_own_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{% for i in range(60000) %}{% endfor %}ok", SpecialTokens(1))
    monkeypatch.setattr(fuel, "MAX_STEPS", 200_000)
    assert [template.render([]) for _ in range(4)] == ["ok"] * 4


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__['sys'] }}",
        "{{ range.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}",
    ],
)
def test_template_can_not_reach_python(source: str) -> None:
    try:
        text = ChatTemplate(source, SpecialTokens(1)).render([])
    except InvalidRequest:
        return
    assert text == ""
