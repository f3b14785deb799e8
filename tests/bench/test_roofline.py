"""The roofline: ceilings that are plausible, and operations that are counted right."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from zerokl import _native
from zerokl.bench import roofline
from zerokl.bench.ceilings import Ceilings, ceilings
from zerokl.cli.bench import bench

SMALL = {"E": 64, "F": 96, "H": 4, "K": 2, "D": 16, "V": 300}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("zerokl.bench.ceilings.READ_BYTES", 1 << 20)
    monkeypatch.setattr("zerokl.bench.ceilings.ROUNDS", 1 << 12)
    monkeypatch.setattr(roofline, "PAST_THE_CACHES", 1 << 16)
    monkeypatch.setattr(roofline, "CONTEXTS", (128,))


def test_what_multiply_add_counts_is_what_it_does():
    """12 chains of 16 lanes, two operations each, on every thread; and twice the rounds are twice the work."""
    threads = _native.threads()
    assert _native.multiply_add(1) == 12 * 16 * 2 * threads
    assert _native.multiply_add(10) == 10 * _native.multiply_add(1)


@pytest.mark.parametrize("isa", _native.isas())
def test_every_instruction_set_has_ceilings(isa):
    before = _native.isa()
    _native.set_isa(isa)
    try:
        found = ceilings(repeats=2)
    finally:
        _native.set_isa(before)
    assert 0.01 < found.read_gb_per_s < 10_000
    assert 0.01 < found.gflop_per_s < 1_000_000


def test_points_count_bytes_and_operations():
    points = {(p.operation, p.size): p for p in roofline.measured(SMALL, "bfloat16", (1, 100), Ceilings(10.0, 100.0))}
    wide = points["gate_up", "100 x 64 x 192"]
    assert (wide.num_bytes, wide.flops) == (2 * 64 * 192, 2 * 100 * 64 * 192)
    assert wide.floor == pytest.approx(max(wide.num_bytes / 10e9, wide.flops / 100e9))
    assert ("head", "100 x 64 x 300") not in points, "nobody wants the logits of so many rows"
    one, half = points["attention", "1 at 128, float32"], points["attention", "1 at 128, bfloat16"]
    assert (one.num_bytes, one.flops) == (8 * 128 * 2 * 16, 4 * 128 * 4 * 16)
    assert (half.num_bytes, half.flops) == (one.num_bytes // 2, one.flops)
    assert points["attention", "512 at 512, float32"].flops == 4 * (512 * 513 // 2) * 4 * 16
    assert all(p.reached > 0 and p.seconds > 0 for p in points.values())


def test_the_command_prints_the_machine_and_each_operation(tmp_path, monkeypatch):
    monkeypatch.setattr("zerokl.cli.bench.QWEN3_8B", SMALL)
    plot = tmp_path / "plot.svg"
    result = CliRunner().invoke(bench, ["kernels", "--rows", "3", "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    machine, *lines = result.stdout.splitlines()
    assert "GFLOP/s" in machine
    assert [line.split()[0] for line in lines[:5]] == ["qkv", "out", "gate_up", "down", "head"]
    assert plot.read_text().count("<circle") == len(lines)
    result = CliRunner().invoke(bench, ["kernels", "--rows", "3", "--json"])
    assert json.loads(result.stdout.splitlines()[1])["operation"] == "qkv"


def test_an_instruction_set_that_is_not_there_is_refused():
    result = CliRunner().invoke(bench, ["kernels", "--isa", "sse"])
    assert result.exit_code != 0
    assert "can't run 'sse'" in str(result.exception)
