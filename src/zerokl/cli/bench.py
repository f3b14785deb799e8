"""`zerokl bench`: speed of a server, of the engine alone, of the kernels, and against other programs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TextIO

import click

from zerokl.bench.load import Load
from zerokl.cli.bench_cpu import OUTPUT, peers, roofline
from zerokl.cli.generate import SERVER_OPTIONS
from zerokl.cli.options import config_of, config_options
from zerokl.errors import CallerError

QWEN3_8B = {"E": 4096, "F": 12288, "H": 32, "K": 8, "D": 128, "V": 151936}


@click.group()
def bench() -> None:
    """Measure speed."""


bench.add_command(peers)


def load_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--requests", default=200, show_default=True, type=click.IntRange(1), help="How many."),
        click.option("--input-tokens", default=512, show_default=True, type=click.IntRange(1), help="Of a prompt."),
        click.option("--output-tokens", default=128, show_default=True, type=click.IntRange(1), help="To generate."),
        click.option(
            "--shape",
            default="random",
            show_default=True,
            type=click.Choice(["fixed", "random", "chat"]),
            help="Lengths: all alike, from half to one and a half, or log-normal as people talk.",
        ),
        click.option("--load-seed", default=0, show_default=True, help="Lengths, words and arrivals follow from it."),
        click.option("--json", "to_json", type=OUTPUT, help="Write the figures to this file."),
    ):
        command = option(command)
    return command


@bench.command()
@click.argument("url")
@load_options
@click.option("--concurrency", default=64, show_default=True, type=click.IntRange(1), help="Requests at a time.")
@click.option("--rate", default=0.0, help="Requests a second, arriving at random; 0: all at once.")
@click.option("--shared", default=0.0, type=click.FloatRange(0, 1), help="Part of each prompt that all have in common.")
@click.option("--ids", default=0, help="Prompts of random token ids below this number instead of words.")
@click.option("--model", default="", help="Model name to send; else the server's first.")
@click.option("--api-key", default="", help="Sent as a bearer token.")
@click.option("--extra", default="{}", help="JSON object: more fields of each request.")
@click.option("--plot", type=OUTPUT, help="Write a plot (SVG) to this file.")
def serve(url: str, to_json: TextIO | None, plot: TextIO | None, load_seed: int, **values: Any) -> None:
    """Time a server's streams: URL is the base of anything that speaks OpenAI's /v1/completions."""
    from zerokl.bench import plot as plots
    from zerokl.bench import serve as serving

    try:
        extra = json.loads(values.pop("extra"))
    except ValueError as error:
        raise CallerError(f"--extra is not JSON: {error}") from error
    chosen = {name: values.pop(name) for name in ("model", "api_key", "concurrency")}
    client = serving.Client(url.rstrip("/"), extra=extra, **chosen)
    load = Load(seed=load_seed, **values)
    seconds, streams = asyncio.run(serving.serve(load, client))
    found = {"url": url, "load": asdict(load), "concurrency": client.concurrency} | serving.summary(seconds, streams)
    click.echo(serving_text(found))
    if to_json:
        kept = found | {"streams": [asdict(stream) for stream in streams]}
        to_json.write(json.dumps(kept) + "\n")
    if plot:
        good = [stream for stream in streams if not stream.error]
        curves = {
            "time to first token": [(stream.pieces[0] - stream.sent) * 1e3 for stream in good],
            "whole request": [(stream.ended - stream.sent) * 1e3 for stream in good],
        }
        plot.write(plots.cumulative(curves, f"{len(good)} requests, {found['output_tokens_per_second']} tokens/s"))
    if found["failed"]:
        raise SystemExit(1)


def serving_text(found: dict[str, Any]) -> str:
    lines = [
        f"{found['requests']} requests in {found['seconds']} s, {found['failed']} failed, "
        f"at most {found['concurrency']} at a time",
        f"{found['input_tokens_per_second']} tokens/s in, {found['output_tokens_per_second']} tokens/s out, "
        f"{found['requests_per_second']} requests/s",
    ]
    if found["first_failure"]:
        lines.append(f"first failure: {found['first_failure']}")
    names = ("mean", "p50", "p90", "p95", "p99", "max")
    lines.append(f"{'ms':22s}" + "".join(f"{name:>10s}" for name in names))
    for what, times in found["ms"].items():
        if times:
            lines.append(f"{what.replace('_', ' '):22s}" + "".join(f"{times[name]:10.2f}" for name in names))
    return "\n".join(lines)


@bench.command()
@load_options
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(1), help="The best one counts.")
@config_options(*SERVER_OPTIONS)
def offline(to_json: TextIO | None, repeats: int, load_seed: int, **values: Any) -> None:
    """Time the engine alone, in this process: all requests at once. Takes the server's options for the model."""
    from zerokl.bench.offline import offline as measured

    names = ("requests", "input_tokens", "output_tokens", "shape")
    load = Load(seed=load_seed, **{name: values.pop(name) for name in names})
    found = measured(config_of(values), load, repeats)
    click.echo(json.dumps(found, indent=1))
    if to_json:
        to_json.write(json.dumps(found) + "\n")


@bench.command()
@click.option("--model", default="", help="Take the layers of this model; else those of Qwen3-8B.")
@click.option("--rows", multiple=True, type=int, help="Tokens of a step (repeatable); else a range of them.")
@click.option("--layers", multiple=True, help="On the GPU: only these: qkv, out, gate_up, down, head.")
@click.option("--device", default="cpu", show_default=True, type=click.Choice(["cpu", "cuda"]))
@click.option("--threads", type=click.IntRange(1), help="On the CPU; else as many as there are.")
@click.option("--isa", default="", help="On the CPU: another instruction set than the best.")
@click.option("--dtype", default="bfloat16", show_default=True, help="On the CPU: how weights are kept.")
@click.option("--plot", type=OUTPUT, help="On the CPU: write the roofline (SVG) to this file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def kernels(
    model: str, rows: tuple[int, ...], layers: tuple[str, ...], device: str, as_json: bool, **on_cpu: Any
) -> None:
    """How fast the operations are: on the CPU against what it could do, on the GPU against cuBLAS.

    On the GPU it shows as well which ways to compute a layer were admitted or rejected.
    """
    if device == "cpu":
        roofline(axes_of(model), rows or (1, 2, 4, 8, 16, 64, 512), as_json, **on_cpu)
        return
    from zerokl.bench import kernels as table
    from zerokl.ops.triton.ways import forbid_split_k

    forbid_split_k()
    shapes = table.layers_of(axes_of(model))
    lines = []
    counts = rows or (1, 8, 16, 64, 256, 2048, 8192)
    for line in table.measured({name: shapes[name] for name in layers or shapes}, counts):
        lines.append(line)
        click.echo(json.dumps(asdict(line)) if as_json else text_of(line))
    if not as_json:
        for count in counts:
            ours = sum(line.ways[line.chosen][0] for line in lines if line.shape.rows == count)
            alone = sum(line.default[0] for line in lines if line.shape.rows == count)
            same = sum(line.same_work for line in lines if line.shape.rows == count)
            click.echo(
                f"{count:5d} rows: all layers {ours:9.1f} us; cuBLAS, products alone, {alone:9.1f} us, "
                f"{alone / ours:.2f} times; the same work {same:9.1f} us, {same / ours:.2f} times"
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
    text = f"{shape}  {took:8.1f} us  {line.ratio:5.2f} times cuBLAS ({line.default[0]:.1f} us alone, "
    text += f"{line.same_work:.1f} the same work)  {line.chosen}"
    for way, (_, differ) in line.ways.items():
        if differ:
            text += f"\n         rejected: {way}, {differ} outputs differ"
    if line.default[1]:
        text += f"\n         rejected: cuBLAS's own choice, {line.default[1]} sums differ"
    return text
