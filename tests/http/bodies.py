"""Request bodies by the field tables: most of them nearly right, because those get furthest."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from zerokl.server.fields import Field, table

TEXTS = st.text(min_size=1, max_size=12) | st.sampled_from(
    ["", "ab", "zh", "我😀é", "\x00", "\ufffd", "a" * 600, "<|im_end|>"]
)
IDS = st.lists(st.integers(0, 258), min_size=1, max_size=6)
SCHEMAS = st.sampled_from(
    ["{}", '{"type":"integer"}', "{", '{"type":"x"}', "[a-z]{3}", "(", 'root ::= "a" | "b"', "a" * 99]
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "tool", "x"]), "content": TEXTS}),
    min_size=1,
    max_size=3,
)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function")},
        optional={"function": st.fixed_dictionaries({"name": TEXTS}, optional={"parameters": st.just({})})},
    ),
    max_size=2,
)
SMALL = 6
"""Outputs are kept this short, or thousands of requests would take hours."""

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def bodies(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies of one table: a few fields, nearly all of them right, perhaps one wrong or a stranger among them."""
    fields = {field.name: field for field in table(name)}
    needed = [key for key, field in fields.items() if field.required or key in SHORT]
    others = [key for key in fields if key not in needed and key not in ALTERNATIVES]
    alternatives = [key for key in ALTERNATIVES if key in fields and key not in needed][:2]

    def of(keys: list[str]) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({key: value_of(fields[key]) for key in keys})

    chosen = st.lists(st.sampled_from(others or needed), max_size=4, unique=True)
    one_of_two = st.sampled_from([[key] for key in alternatives] or [[]])
    right = st.builds(lambda few, one: [*dict.fromkeys([*needed, *one, *few])], chosen, one_of_two).flatmap(of)
    wrong = st.dictionaries(st.sampled_from([*fields, "stranger"]), JUNK, min_size=1, max_size=1)
    return st.one_of(right, right, right, st.builds(lambda a, b: {**a, **b}, right, wrong))


ALTERNATIVES = ("text", "input_ids", "prompt", "messages")
"""Of these a body has exactly one."""
SHORT = ("max_tokens", "max_completion_tokens", "sampling_params", "max_new_tokens")


def value_of(field: Field) -> st.SearchStrategy[Any]:
    """A value that the field takes, or nearly."""
    if field.name in SHORT and field.type == "int":
        return st.integers(0, SMALL)
    if field.name == "n":
        return st.integers(1, 3)
    if field.name in ("json_schema", "regex", "ebnf", "structural_tag"):
        return SCHEMAS
    if field.name == "messages":
        return MESSAGES
    if field.name == "tools":
        return TOOLS
    if field.name == "tool_choice":
        return st.sampled_from(["auto", "none", "required", {"type": "function", "function": {"name": "f"}}])
    if field.fields:
        return bodies(field.fields)
    if field.choices:
        return st.sampled_from(field.choices)
    return BY_TYPE[field.type](field)


def whole_numbers(field: Field) -> st.SearchStrategy[int]:
    low = int(field.min if field.min is not None else -3)
    high = int(field.max if field.max is not None else 2**31 - 1)
    inside = st.integers(low, min(low + 4, high))
    return st.one_of(inside, inside, inside, st.sampled_from([low - 1, low, high, high + 1]))


def numbers(field: Field) -> st.SearchStrategy[float]:
    low, high = field.min if field.min is not None else field.above or 0, field.max if field.max is not None else 2.0
    inside = st.floats(low, min(high, low + 2))
    return st.one_of(inside, inside, inside, st.sampled_from([low, high, high + 1, 1, 1e-300, 5e-324]))


BY_TYPE: dict[str, Any] = {
    "bool": lambda field: st.booleans(),
    "int": whole_numbers,
    "float": numbers,
    "str": lambda field: TEXTS,
    "text_or_list": lambda field: TEXTS | st.lists(TEXTS, max_size=3),
    "stops": lambda field: TEXTS | st.lists(TEXTS, max_size=3),
    "text_or_object": lambda field: TEXTS | st.just({}),
    "object": lambda field: st.dictionaries(
        st.sampled_from(["enable_thinking", "chat_template", "x"]), JUNK, max_size=2
    ),
    "object_or_list": lambda field: st.just({}),
    "list": lambda field: st.lists(JUNK, max_size=2),
    "ids": lambda field: IDS,
    "ids_or_list": lambda field: IDS | st.lists(IDS, max_size=3),
    "prompt": lambda field: TEXTS | st.lists(TEXTS, max_size=3) | IDS | st.lists(IDS, max_size=3),
    "id_numbers": lambda field: st.dictionaries(
        st.sampled_from(["1", "258", "259", "x"]), st.floats(-100, 100), max_size=2
    ),
    "unset": lambda field: st.sampled_from([None, False, 0, True]),
    "null": lambda field: st.none(),
}
