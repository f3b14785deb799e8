"""Quality of the two numerics of GGUF weights on the CPU: mean negative log-likelihood of a text, in pairs.

    .venv/bin/python benchmarks/quant/perplexity.py MODEL.gguf TEXT [--windows 8] [--length 512]

TEXT is a file; of a .jsonl every string of every line counts. It is cut in windows of `length` tokens, each scored from
its own start. Prints perplexities, and the mean difference of the numerics' log-likelihoods with its standard error.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from zerokl import checkpoints, models, ops
from zerokl.config import Config
from zerokl.models.memory import windows_of
from zerokl.runner.kv import KvPools
from zerokl.tokenizer import Tokenizer
from zerokl.types import WindowPool

PAGE = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    options = parser.parse_args()
    checkpoint = checkpoints.open(options.model)
    assert checkpoint.tokenizer
    ids = Tokenizer(checkpoint.tokenizer).encode(text_of(options.text))
    cuts = [ids[i * options.length : (i + 1) * options.length] for i in range(options.windows)]
    found = {}
    for numerics in ("exact", "integer"):
        model = models.load(checkpoint, Config(cpu_numerics=numerics))
        found[numerics] = np.concatenate([losses(model, cut) for cut in cuts])
        mean = found[numerics].mean()
        print(f"{numerics:8}: {mean:.5f} nats, perplexity {np.exp(mean):.4f}, {len(found[numerics])} tokens")
    difference = found["integer"] - found["exact"]
    error = difference.std(ddof=1) / len(difference) ** 0.5
    print(f"integer - exact: {difference.mean():+.5f} nats, standard error {error:.5f}")


def text_of(path: Path) -> str:
    text = path.read_text()
    if path.suffix != ".jsonl":
        return text
    rows = [json.loads(line) for line in text.splitlines() if line]
    return "\n\n".join(value for row in rows for value in row.values() if isinstance(value, str))


def losses(model: models.Model, ids: list[int]) -> np.ndarray:
    """-log p of each token but the first."""
    tokens, count = np.array(ids, np.int32), -(-len(ids) // PAGE)
    rows = np.arange(len(ids), dtype=np.int32)
    step = ops.Ragged(rows, rows, np.array([0, len(ids)], np.int32), np.arange(count, dtype=np.int32)[None], PAGE)
    sizes = windows_of(model.memory)
    pools = KvPools(model, count, PAGE, [WindowPool(window, count) for window in sizes])
    layers = pools.layers(step, dict.fromkeys(sizes, step))
    given = [ops.LayerCache(layer, ()) for layer in layers] if model.declares_memory else layers
    hidden = model.forward(tokens, step, given)
    found = []
    for start in range(0, len(ids) - 1, PAGE):
        logits = model.logits(hidden[start : min(start + PAGE, len(ids) - 1)]).astype(np.float64)
        wanted = logits[np.arange(len(logits)), tokens[start + 1 : start + 1 + len(logits)]]
        most = logits.max(axis=1)
        found.append(most + np.log(np.exp(logits - most[:, None]).sum(axis=1)) - wanted)
    return np.concatenate(found)


if __name__ == "__main__":
    main()
