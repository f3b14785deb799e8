"""Keys and values in bf16 and fp8: rounded once when they are stored, and the same bits for every cut."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models import run
from tests.models.memory import tiny_checkpoint
from tests.ops.cpus import every_cpu
from tests.ops.numbers import same, wide
from zerokl import models
from zerokl.config import Config
from zerokl.ops import LayerKV, Ragged, attention, reference, store_kv

DTYPES = {"bfloat16": np.uint16, "fp8_e4m3": np.uint8}
PAGE, HEADS, SIZE, LENGTH = 16, 2, 8, 45


def pool(dtype: type, page_size: int = PAGE) -> LayerKV:
    """Room for one sequence; free slots hold NaN."""
    pages, nan = -(-LENGTH // page_size), {np.uint16: 0x7FC0, np.uint8: 0x7F}[dtype]
    rows = np.arange(LENGTH, dtype=np.int32)
    step = Ragged(rows, rows, np.array([0, LENGTH], np.int32), np.arange(pages, dtype=np.int32)[None], page_size)
    k = np.full((pages, HEADS, SIZE, page_size), nan, dtype)
    return LayerKV(k, np.full((pages, HEADS, page_size, SIZE), nan, dtype), step, scales=(0.03, 0.02))


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("page_size", [16, 24])
def test_what_is_stored_and_read_is_the_references(dtype, page_size):
    keys, values, q = (wide(seed, LENGTH, HEADS, SIZE) for seed in (1, 2, 3))
    keys[3, 0, :4] = [0.0, -0.0, 1e9, -1e-9]
    ours, theirs = pool(dtype, page_size), pool(dtype, page_size)
    store_kv(ours, keys, values)
    reference.store_kv(theirs, keys, values)
    assert (ours.k == theirs.k).all()
    assert (ours.v == theirs.v).all()
    expected = reference.attention(q, theirs, 0.3)
    for cpu in every_cpu():
        assert same(attention(q, ours, 0.3), expected), cpu


@pytest.mark.parametrize("dtype", DTYPES)
def test_scored_and_generated_logprobs_agree_to_the_bit_from_every_position(dtype):
    """Peers' caches of eight bits break here: what a prefill saw before it was rounded, a decode sees after."""
    model = models.load(tiny_checkpoint(), Config(kv_cache_dtype=dtype))
    tokens = [int(token) for token in np.random.default_rng(4).integers(0, 284, 150)]
    whole = run.logits(model, tokens, range(150))
    plain = run.logits(models.load(tiny_checkpoint(), Config()), tokens, range(150))
    assert not np.array_equal(whole, plain), "the cache's type shows"
    for start in (1, 63, 64, 65, 100, 149):
        assert np.array_equal(in_two_steps(model, tokens, start), whole[start:]), start


def in_two_steps(model: models.Model, tokens: list[int], start: int) -> np.ndarray:
    """The rows from `start` on, computed by a step of their own after a step of those before."""
    from tests.models.run import PAGE_SIZE, pages_of, runner_of, segment_of
    from zerokl.runner.batch import ragged_tokens
    from zerokl.types import PageId

    runner = runner_of(model, pages_of(len(tokens)))
    pages = [PageId(page) for page in range(pages_of(len(tokens)))]
    hidden = None
    for first, last in ((0, start), (start, len(tokens))):
        batch, ragged = ragged_tokens([segment_of(model, 0, first, tokens[first:last], pages)], PAGE_SIZE)
        hidden = model.forward(batch, ragged, runner.pools.layers(ragged))
    return model.logits(hidden)


def test_the_pool_is_as_small_as_its_numbers():
    sizes = {name: models.load(tiny_checkpoint(), Config(kv_cache_dtype=name)) for name in ("auto", *DTYPES)}
    of_keys = {name: model.memory[0].keys.bytes_per_token for name, model in sizes.items()}
    assert of_keys["auto"] == 2 * of_keys["bfloat16"] == 4 * of_keys["fp8_e4m3"]
