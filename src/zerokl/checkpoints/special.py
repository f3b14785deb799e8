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
    if processor.get("type") in ("BertProcessing", "RobertaProcessing"):
        cls = processor.get("cls")
        return cls[1] if isinstance(cls, list) and len(cls) == 2 and type(cls[1]) is int else None
    single = processor.get("single")
    if not isinstance(single, list) or not single or not isinstance(single[0], dict):
        return None
    token = single[0].get("SpecialToken", {}).get("id") if "SpecialToken" in single[0] else None
    entry = (processor.get("special_tokens") or {}).get(token)
    ids = entry.get("ids") if isinstance(entry, dict) else None
    return ids[0] if isinstance(ids, list) and ids and type(ids[0]) is int else None
