"""The tokenizer of a Hugging Face folder, resolved once into what the bare `tokenizers` library needs.

As transformers 5 does it: tokenizer.json alone decides about BOS and EOS (the flags add_bos_token and add_eos_token of
tokenizer_config.json are ignored where it exists), tokens that only tokenizer_config.json knows are appended, and
truncation and padding are switched off. Nobody after this file needs transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from zerokl.checkpoints.files import fail, read_json, read_text
from zerokl.checkpoints.special import as_ids, starts_with_bos
from zerokl.types import SpecialTokens, TokenizerFiles

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_tokenizer(folder: Path, config: dict[str, Any], generation: dict[str, Any]) -> TokenizerFiles | None:
    """None if the folder brings no tokenizer.json."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    tokenizer = read_json(path)
    settings = _optional_json(folder / "tokenizer_config.json")
    names = _special_names(folder, settings)
    _append_missing_tokens(path, tokenizer, settings)
    ids = _token_ids(path, tokenizer)
    tokenizer["truncation"] = tokenizer["padding"] = None
    special = _special(
        path, config, generation, names, ids, starts_with_bos(tokenizer, ids.get(names.get("bos_token", "")))
    )
    return TokenizerFiles(orjson.dumps(tokenizer).decode(), special, _chat_template(folder, settings))


def _special(
    path: Path,
    config: dict[str, Any],
    generation: dict[str, Any],
    names: dict[str, str],
    ids: dict[str, int],
    add_bos: bool,
) -> SpecialTokens:
    text_config = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert isinstance(text_config, dict)
    vocab_size = text_config.get("vocab_size", max(ids.values(), default=-1) + 1)
    if type(vocab_size) is not int or vocab_size < 1:
        fail(path.parent / "config.json", f"vocab_size must be a positive integer, not {vocab_size!r:.40}")

    def named(kind: str) -> list[int]:
        token = ids.get(names.get(f"{kind}_token", ""))
        said = as_ids(generation.get(f"{kind}_token_id")) or as_ids(text_config.get(f"{kind}_token_id"))
        return list(dict.fromkeys(([] if token is None else [token]) + said))

    bos, eos, pad = named("bos"), named("eos"), named("pad")
    for token in (*bos, *eos, *pad):
        if not 0 <= token < vocab_size:
            fail(path.parent / "config.json", f"special id {token} is outside the vocabulary of {vocab_size}")
    return SpecialTokens(
        vocab_size=vocab_size,
        bos_id=bos[0] if bos else None,
        eos_ids=tuple(eos),
        pad_id=pad[0] if pad else None,
        add_bos=add_bos,
        names=tuple(names.items()),
    )


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _special_names(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """ "bos_token" -> "<s>" and so on; tokenizer_config.json wins over special_tokens_map.json."""
    names: dict[str, str] = {}
    for source in (settings, _optional_json(folder / "special_tokens_map.json")):
        for key in NAMED:
            value = source.get(key)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                names.setdefault(key, value)
    return names


def _token_ids(path: Path, tokenizer: dict[str, Any]) -> dict[str, int]:
    model = tokenizer.get("model")
    if not isinstance(model, dict):
        fail(path, "no model in it")
    vocab = model.get("vocab")
    if isinstance(vocab, list):  # Unigram: [[token, score], ...]
        vocab = {entry[0]: i for i, entry in enumerate(vocab) if isinstance(entry, list) and entry}
    if not isinstance(vocab, dict):
        fail(path, "no vocabulary in it")
    added = {token["content"]: token["id"] for token in _added(path, tokenizer)}
    return {token: i for token, i in {**vocab, **added}.items() if type(i) is int}


def _added(path: Path, tokenizer: dict[str, Any]) -> list[dict[str, Any]]:
    added = tokenizer.setdefault("added_tokens", [])
    if not isinstance(added, list) or not all(
        isinstance(token, dict) and isinstance(token.get("content"), str) and type(token.get("id")) is int
        for token in added
    ):
        fail(path, "added_tokens must be a list of objects with content and id")
    return added


def _append_missing_tokens(path: Path, tokenizer: dict[str, Any], settings: dict[str, Any]) -> None:
    """Tokens that only tokenizer_config.json knows."""
    said = settings.get("added_tokens_decoder")
    if not isinstance(said, dict):
        return
    added = _added(path, tokenizer)
    known = {token["id"] for token in added}
    for key, token in said.items():
        if (
            key.isdecimal()
            and int(key) not in known
            and isinstance(token, dict)
            and isinstance(token.get("content"), str)
        ):
            flags = {
                flag: bool(token.get(flag)) for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")
            }
            added.append({"id": int(key), "content": token["content"], **flags})
    added.sort(key=lambda token: int(token["id"]))


def _chat_template(folder: Path, settings: dict[str, Any]) -> str:
    """chat_template.jinja, else tokenizer_config.json's, of several the one named "default"."""
    for name in ("chat_template.jinja", "chat_template.json"):
        if (folder / name).exists():
            text = read_text(folder / name)
            return text if name.endswith("jinja") else str(read_json(folder / name).get("chat_template") or "")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else ""
