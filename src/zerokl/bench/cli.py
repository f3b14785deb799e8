"""`zerokl bench`: speed of a server, of the engine alone, of the GPU's kernels."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

QWEN3_8B = {"E": 4096, "F": 12288, "H": 32, "K": 8, "D": 128, "V": 151936}


@click.group()
def bench() -> None:
    """Measure speed."""


@bench.command()
@click.option("--model", default="", help="Take the layers of this model; else those of Qwen3-8B.")
@click.option("--rows", multiple=True, type=int, default=(1, 8, 16, 64, 256, 2048, 8192), show_default=True)
@click.option("--layers", multiple=True, help="Only these: qkv, out, gate_up, down, head.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def kernels(model: str, rows: tuple[int, ...], layers: tuple[str, ...], as_json: bool) -> None:
    """Ways to compute the linear layers on this GPU: which were admitted or rejected, and how fast they are."""
    from zerokl.bench import kernels as table
    from zerokl.ops.triton.ways import forbid_split_k

    forbid_split_k()
    shapes = table.layers_of(axes_of(model))
    lines = []
    for line in table.measured({name: shapes[name] for name in layers or shapes}, rows):
        lines.append(line)
        click.echo(json.dumps(asdict(line)) if as_json else text_of(line))
    if not as_json:
        for count in rows:
            ours = sum(line.ways[line.chosen][0] for line in lines if line.shape.rows == count)
            theirs = sum(line.default[0] for line in lines if line.shape.rows == count)
            click.echo(
                f"{count:5d} rows: all layers {ours:9.1f} us, cuBLAS {theirs:9.1f} us, {theirs / ours:.2f} times"
            )


def axes_of(model: str) -> dict[str, int]:
    if not model:
        return QWEN3_8B
    from zerokl import checkpoints
    from zerokl.checkpoints import hub
    from zerokl.models.registry import architecture_of

    config = checkpoints.open(hub.resolve(model, "")).config
    return dict(architecture_of(config)[1].Config.from_checkpoint(config).axes)


def text_of(line: Any) -> str:
    """A line for the chosen way, one for each rejected way, one if the library's own choice would be rejected."""
    took, _ = line.ways[line.chosen]
    shape = f"{line.layer:8s} {line.shape.rows:5d} x {line.shape.depth} x {line.shape.columns:6d}"
    text = f"{shape}  {took:8.1f} us  {line.ratio:5.2f} times cuBLAS ({line.default[0]:.1f} us)  {line.chosen}"
    for way, (_, differ) in line.ways.items():
        if differ:
            text += f"\n         rejected: {way}, {differ} outputs differ"
    if line.default[1]:
        text += f"\n         rejected: cuBLAS's own choice, {line.default[1]} sums differ"
    return text
