"""Special tokens, as both kinds of checkpoints need them."""

from __future__ import annotations

from typing import Any

NamedId = tuple[str, int]


def as_ids(value: Any) -> list[int]:
    """The ids in a config value: an integer, a list of them, or nothing."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values if type(item) is int]


def bos_eos_template(bos: NamedId | None, eos: NamedId | None) -> dict[str, Any] | None:
    """A post-processor that puts `bos` before and `eos` after a text; None if neither is wanted."""
    if bos is None and eos is None:
        return None

    def piece(named: NamedId | None, kind: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": named[0], "type_id": kind}}] if named else []

    def sequence(name: str, kind: int) -> list[dict[str, Any]]:
        return [*piece(bos, kind), {"Sequence": {"id": name, "type_id": kind}}, *piece(eos, kind)]

    return {
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": sequence("A", 0) + sequence("B", 1),
        "special_tokens": {n[0]: {"id": n[0], "ids": [n[1]], "tokens": [n[0]]} for n in (bos, eos) if n},
    }


def starts_with_bos(tokenizer: dict[str, Any], bos_id: int | None) -> bool:
    """True if the post-processor of a tokenizer.json puts `bos_id` first."""
    if bos_id is None:
        return False
    return any(_first_id(processor) == bos_id for processor in _processors(tokenizer.get("post_processor")))


def _processors(processor: Any) -> list[dict[str, Any]]:
    if not isinstance(processor, dict):
        return []
    if processor.get("type") == "Sequence" and isinstance(processor.get("processors"), list):
        return [inner for outer in processor["processors"] for inner in _processors(outer)]
    return [processor]


def _first_id(processor: dict[str, Any]) -> int | None:
    """The id that a processor puts first, if any. The file may hold anything: nothing is taken for granted."""
    if processor.get("type") in ("BertProcessing", "RobertaProcessing"):
        return _only_int(_item(processor.get("cls"), 1))
    name = _item(_item(_item(processor.get("single"), 0), "SpecialToken"), "id")
    return _only_int(_item(_item(_item(processor.get("special_tokens"), name), "ids"), 0))


def _item(container: Any, key: Any) -> Any:
    """container[key] where both fit, else None."""
    if isinstance(container, dict) and isinstance(key, str):
        return container.get(key)
    if isinstance(container, list) and isinstance(key, int) and key < len(container):
        return container[key]
    return None


def _only_int(value: Any) -> int | None:
    return value if type(value) is int else None
