"""A tiny model on the device, and the same on the CPU."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from tests.gpu.device import INTERPRETED
from tests.models.memory import tiny_checkpoint
from zerokl import models
from zerokl.config import Config
from zerokl.models import Model
from zerokl.ops import triton
from zerokl.runner.cuda import CudaRunner, Options

SHAPE = {} if INTERPRETED else {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64}
CHOSEN = {"num_key_value_heads": 2, "tie_word_embeddings": False, "max_position_embeddings": 1024}
MAX_TOKENS, NUM_PAGES = (64, 20) if INTERPRETED else (256, 64)

if INTERPRETED:  # activations are float32 there
    triton.pack = lambda weight, dtype, device: torch.from_numpy(np.ascontiguousarray(weight)).float()
    triton.upload = lambda array, device: torch.from_numpy(np.ascontiguousarray(array))


@cache
def model(device: str = "cuda") -> Model:
    dtype = "auto" if device == "cuda" else "float32" if INTERPRETED else "bfloat16"
    return models.load(tiny_checkpoint(5, **SHAPE, **CHOSEN), Config(device=device, dtype=dtype))


@cache
def runner(graphs: bool) -> CudaRunner:
    """One runner for all tests, since its start takes seconds; `fresh` makes its pool NaN again."""
    options = Options(max_tokens=MAX_TOKENS, max_segments=16, decode_graphs=graphs, prefill_graphs=graphs)
    return CudaRunner(model(), NUM_PAGES, options, fill=float("nan"))


def fresh(graphs: bool) -> CudaRunner:
    made = runner(graphs)
    made.layers.fill(float("nan"))
    settle()
    return made


def settle() -> None:
    """The runner works on a stream of its own: it shall find what was filled."""
    if not INTERPRETED:
        torch.cuda.synchronize()
