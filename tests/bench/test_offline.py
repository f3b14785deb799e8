"""The engine's own benchmark runs a model and counts what it did."""

from __future__ import annotations

import json

from click.testing import CliRunner

from tests.checkpoints.tiny import make_tiny_llama
from zerokl.cli.bench import bench


def test_offline_counts_what_it_ran(tmp_path):
    folder = make_tiny_llama(tmp_path / "model", 3)
    arguments = [
        "--requests",
        "3",
        "--input-tokens",
        "10",
        "--output-tokens",
        "4",
        "--shape",
        "fixed",
        "--repeats",
        "1",
    ]
    result = CliRunner().invoke(bench, ["offline", "--model", str(folder), *arguments, "--max-total-tokens", "256"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert (found["input_tokens"], found["output_tokens"]) == (30, 12)
    assert found["output_tokens_per_second"] > 0
    assert found["fingerprint"].startswith("fp_")
