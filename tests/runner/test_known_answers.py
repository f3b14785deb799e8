"""The known answers: the same on every machine, or the start is refused."""

from __future__ import annotations

import json

import pytest

from zerokl import ops
from zerokl.errors import EngineError
from zerokl.runner import known_answers as known


@pytest.fixture(autouse=True)
def fresh():
    known.verify_known_answers.cache_clear()
    yield
    known.verify_known_answers.cache_clear()


def test_known_answers_are_the_golden_ones(request):
    if request.config.getoption("--write-goldens", default=False):
        families = json.loads(known.COMMITTED.read_text()) | {"cpu": known.known_answers()}
        known.COMMITTED.write_text(json.dumps(families, indent=1, sort_keys=True) + "\n")
    assert json.loads(known.COMMITTED.read_text())["cpu"] == known.known_answers()
    known.verify_known_answers()


def test_every_public_operation_has_a_known_answer():
    types = {"ConvState", "Draw", "LayerCache", "LayerKV", "Matrix", "Ragged", "RecurrentState", "StepStates"}
    types |= {"AnyMatrix", "DeviceExperts", "DeviceMatrix", "DeviceStates", "Group", "InputShard", "VocabularyShard"}
    types |= {"LeafExperts", "PackedLeaves", "PackedMatrix"}
    copies = {"split_heads", "upload", "chunk_inputs", "chunk_states", "conv_inputs"}
    copies |= {"at_positions", "columns", "filled_like", "joined", "leading", "take_columns", "under_each_other"}
    copies |= {"packed_leaves", "store_checkpoints", "store_conv", "store_inputs", "store_states"}
    covered_by = {"pack_blocks": "linear of blocks", "pack_nvfp4": "linear of nvfp4", "pack_fp8": "linear of fp8"}
    covered_by |= {"stack": "linear of nvfp4", "pack_stored": "linear"}
    covered_by |= {"pack_on_device": "linear", "pack_experts": "experts", "convolved": "short_conv", "sigmoid": "gated"}
    covered_by |= {"pack": "linear", "rope_table": "rope", "store_kv": "attention"}
    more = {"attention with bias", "attention of narrow keys", "linear by int8"}
    more |= {"linear in leaves", "experts in leaves"}
    found = {covered_by.get(name, name) for name in set(ops.__all__) - types - copies}
    assert found | more == known.known_answers().keys()


@pytest.mark.parametrize("operation", ["linear", "attention", "score"])
def test_one_wrong_bit_stops_the_start_and_names_the_operation(operation, monkeypatch):
    true = getattr(ops, operation)

    def off_by_one_bit(*arguments, **options):
        answer = true(*arguments, **options)
        if operation == "score":
            return type(answer)(answer.rows, chosen=answer.chosen[:-1] + bytes([answer.chosen[-1] ^ 1]))
        answer.view("uint32").flat[-1] ^= 1
        return answer

    monkeypatch.setattr(ops, operation, off_by_one_bit)
    with pytest.raises(EngineError, match=f"in: {operation}(, {operation} [a-z0-9 ]+)*$"):
        known.verify_known_answers()
