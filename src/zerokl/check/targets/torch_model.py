"""transformers at work in this process: token ids in, log-probabilities out. The only file of the checker that needs
torch, and only once a model is loaded.

    hf:FOLDER                       the checkpoint's own dtype
    hf:FOLDER?dtype=float32         computed in another one; float64 is the reference of references
    hf:FILE.gguf?attn=eager         a GGUF file; another attention of transformers
    hf:FOLDER?rows=1                one row a step, prompts too: no kernel can tell prefill from decode, or who is there
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from zerokl.check.outcome import CouldNotRun

SCHEME = "hf:"
INSTALL = "pip install 'zerokl[hf]'"
DTYPES = ("auto", "float32", "float64", "bfloat16", "float16")
WRONG = (OSError, ValueError, KeyError, RuntimeError, ImportError, AttributeError, TypeError)
"""What transformers raises for a folder that it can't read."""


@dataclass(frozen=True, slots=True)
class Place:
    """What `hf:PATH?dtype=...&attn=...&rows=1` says."""

    path: Path
    dtype: str = "auto"
    attention: str = ""
    one_row: bool = False


def parse_place(url: str) -> Place:
    parts = urlsplit(url.removeprefix(SCHEME))
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - {"dtype", "attn", "rows"})
    if unknown:
        raise CouldNotRun(f"{url}: no option {unknown[0]!r}; there are: dtype, attn, rows")
    if options.get("rows", "1") != "1":
        raise CouldNotRun(f"{url}: rows={options['rows']}; a step has one row (rows=1) or all of them (leave it out)")
    path = Path(parts.path).expanduser()
    place = Place(path, options.get("dtype", "auto"), options.get("attn", ""), one_row="rows" in options)
    if place.dtype not in DTYPES:
        raise CouldNotRun(f"{url}: no dtype {place.dtype!r}; there are: {', '.join(DTYPES)}")
    if not place.path.exists():
        raise CouldNotRun(f"{url}: {place.path} does not exist; give a folder with config.json, or a GGUF file")
    return place


class TorchModel:
    """A causal language model. Batches are padded on the left, as `generate` does."""

    def __init__(self, place: Place) -> None:
        try:
            self._torch: Any = import_module("torch")
            transformers: Any = import_module("transformers")
        except ImportError as error:
            raise CouldNotRun(f"hf: needs torch and transformers ({error}): {INSTALL}") from error
        transformers.logging.set_verbosity_error()
        source, named = (place.path, {}) if place.path.is_dir() else (place.path.parent, {"gguf_file": place.path.name})
        options: dict[str, Any] = {**named, "dtype": place.dtype}
        if place.attention:
            options["attn_implementation"] = place.attention
        try:
            self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(source, **options).eval()
        except WRONG as error:
            raise CouldNotRun(f"hf: {place.path}: {error}") from error
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source, **named)
        except WRONG:
            self._tokenizer = None
        self._one_row = place.one_row
        self.name = place.path.name
        self.version = f"{transformers.__version__}, torch {self._torch.__version__}, {self._model.dtype}".replace(
            "torch.", ""
        )

    @property
    def vocabulary(self) -> int:
        return int(self._model.config.get_text_config().vocab_size)

    @property
    def context(self) -> int:
        return int(getattr(self._model.config.get_text_config(), "max_position_embeddings", None) or 2048)

    def encode(self, text: str) -> list[int] | None:
        return None if self._tokenizer is None else list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token: int) -> str | None:
        return None if self._tokenizer is None else str(self._tokenizer.decode([token]))

    def prefill(self, prompts: Sequence[Sequence[int]], *, all_rows: bool) -> tuple[np.ndarray, Any]:
        """[batch, 1 or length, vocabulary] float32 log-probabilities, and what `decode_step` goes on from."""
        if self._one_row:
            return self._prefill_by_rows(prompts, all_rows)
        torch = self._torch
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        return self._forward(ids, mask, None, all_rows)

    def decode_step(self, tokens: Sequence[int], state: Any) -> tuple[np.ndarray, Any]:
        """One more token of each; [batch, 1, vocabulary]."""
        if self._one_row:
            rows, states = zip(*map(self._row, tokens, state), strict=True)
            return np.concatenate(rows), list(states)
        torch = self._torch
        mask, keys = state
        mask = torch.cat([mask, torch.ones((len(tokens), 1), dtype=mask.dtype)], dim=1)
        return self._forward(torch.tensor([[token] for token in tokens]), mask, keys, False)

    def _prefill_by_rows(self, prompts: Sequence[Sequence[int]], all_rows: bool) -> tuple[np.ndarray, Any]:
        longest = max(map(len, prompts)) if all_rows else 1
        found, states = np.zeros((len(prompts), longest, self.vocabulary), np.float32), []
        for number, prompt in enumerate(prompts):
            state = None
            for left, token in zip(range(len(prompt), 0, -1), prompt, strict=True):
                row, state = self._row(token, state)
                if left <= longest:
                    found[number, -left] = row[0, 0]
            states.append(state)
        return found, states

    def _row(self, token: int, state: Any) -> tuple[np.ndarray, Any]:
        torch = self._torch
        ids, one = torch.tensor([[token]]), torch.ones((1, 1), dtype=torch.int64)
        mask, keys = (one, None) if state is None else (torch.cat([state[0], one], dim=1), state[1])
        return self._forward(ids, mask, keys, True)

    def _forward(self, ids: Any, mask: Any, keys: Any, all_rows: bool) -> tuple[np.ndarray, Any]:
        """All rows go through the head, whoever is wanted: its sums depend on how many there are."""
        torch = self._torch
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        padded = not bool(mask.all())
        with torch.inference_mode():
            found = self._model(
                input_ids=ids,
                attention_mask=mask if padded else None,
                position_ids=positions,
                past_key_values=keys,
                use_cache=True,
            )
            logits = found.logits if all_rows else found.logits[:, -1:]
            wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
            logprobs = torch.log_softmax(logits.to(wide), dim=-1).to(torch.float32)
        return logprobs.numpy(), (mask, found.past_key_values)
