"""The yardstick of `near_cpu.py`: how often transformers in bfloat16 gives the text of transformers in float32.

    python benchmarks/gpu/near_peer.py MODEL [--tokens 64]

The same fifty prompts, the same weights (rounded to bfloat16 once), greedy, one batch on the GPU. MODEL is of
the Llama family; its tensors are read by zerokl, so that a GGUF file will do.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch
from near_cpu import PROMPTS
from transformers import LlamaConfig, LlamaForCausalLM

from zerokl import checkpoints
from zerokl.checkpoints.chosen_tokenizer import tokenizer_files
from zerokl.config import Config
from zerokl.tokenizer import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    checkpoint = checkpoints.open(given.model)
    tokenizer = Tokenizer(tokenizer_files(Config(model=given.model), checkpoint))
    prompts = [list(tokenizer.encode(prompt)) for prompt in PROMPTS.values()]
    weights = {name: torch.from_numpy(np.array(tensor.array())) for name, tensor in checkpoint.tensors.items()}
    texts: dict[str, list] = {}
    for kind, implementation in ((torch.float32, "eager"), (torch.bfloat16, "eager"), (torch.bfloat16, "sdpa")):
        config = LlamaConfig(**checkpoint.config, attn_implementation=implementation)
        model = LlamaForCausalLM(config).to("cuda", kind).eval()
        model.load_state_dict({name: w.to(torch.bfloat16).to(kind) for name, w in weights.items()}, strict=False)
        name = f"{str(kind).removeprefix('torch.')} {implementation}"
        texts[name] = greedy(model, prompts, given.tokens)
        equal = sum(a == b for a, b in zip(texts[name], texts["float32 eager"], strict=True))
        print(json.dumps({"transformers": name, "prompts": len(prompts), "texts as in float32": equal}), flush=True)


@torch.no_grad()
def greedy(model, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Prompts are padded on the left, and the padding masked."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device="cuda")
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device="cuda")
    found, cache = [], None
    for _ in range(tokens):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        cache, ids = out.past_key_values, out.logits[:, -1:].argmax(-1)
        mask = torch.cat((mask, torch.ones_like(ids)), 1)
        found.append(ids)
    return torch.cat(found, 1).tolist()


if __name__ == "__main__":
    main()
