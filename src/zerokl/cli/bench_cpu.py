"""The part of `zerokl bench` that is about this machine's CPU: its ceilings, the operations, other programs."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import click

from zerokl.errors import CallerError

OUTPUT = click.File("w", lazy=False)
"""Opened before anything is measured: a path that can't be written must not cost the measurement."""


def roofline(
    axes: dict[str, int],
    rows: tuple[int, ...],
    as_json: bool,
    threads: int | None,
    isa: str,
    dtype: str,
    plot: TextIO | None,
) -> None:
    from zerokl.bench import plot as plots
    from zerokl.bench import roofline as table
    from zerokl.bench.ceilings import Ceilings

    machine = measured_machine(threads, isa)
    click.echo(json.dumps(machine) if as_json else machine_text(machine))
    points = []
    for point in table.measured(axes, dtype, rows, Ceilings(machine["read_gb_per_s"], machine["gflop_per_s"])):
        points.append(point)
        if as_json:
            click.echo(json.dumps(asdict(point)))
            continue
        click.echo(
            f"{point.operation:12s}{point.size:>22s}{point.seconds * 1e6:12.1f} us{point.gb_per_s:8.1f} GB/s"
            f"{point.gflop_per_s:8.1f} GFLOP/s{point.reached:7.0%} of what it could be"
        )
    if plot:
        drawn = [(p.operation, p.flops / p.num_bytes, p.gflop_per_s) for p in points]
        plot.write(plots.roofline(drawn, machine["read_gb_per_s"], machine["gflop_per_s"]))


def measured_machine(threads: int | None, isa: str) -> dict[str, Any]:
    """What kernels run with from now on, and what that could do."""
    from zerokl import _native
    from zerokl.bench.ceilings import ceilings

    try:
        if threads:
            _native.set_threads(threads)
        if isa:
            _native.set_isa(isa)
    except ValueError as error:
        raise CallerError(str(error)) from error
    processor = next((x for x in cpuinfo() if x.startswith("model name")), "").partition(":")[2].strip()
    used = {"isa": _native.isa(), "threads": _native.threads(), "cpus": os.cpu_count()}
    return {"processor": processor or platform.processor()} | used | asdict(ceilings())


def cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def machine_text(machine: dict[str, Any]) -> str:
    return (
        f"{machine['processor']}, {machine['threads']} of {machine['cpus']} threads, {machine['isa']}: reads "
        f"{machine['read_gb_per_s']:.1f} GB/s, computes {machine['gflop_per_s']:.0f} GFLOP/s"
    )


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option("--llama-cpp", type=click.Path(path_type=Path), help="Folder with llama-bench and llama-batched-bench.")
@click.option("--transformers", type=click.Path(path_type=Path), help="A Python that has transformers and torch.")
@click.option(
    "--tests",
    multiple=True,
    default=("prefill:512", "prefill:2048", "decode:1", "decode:8", "decode:16"),
    show_default=True,
    help="prefill:TOKENS, decode:SEQUENCES or decode:SEQUENCES@DEPTH (repeatable).",
)
@click.option("--tokens", default=64, show_default=True, type=click.IntRange(2), help="That a decode makes.")
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1), help="Medians count.")
@click.option("--threads", default=os.cpu_count(), show_default=True, type=click.IntRange(1))
@click.option("--isa", default="", help="Another instruction set of ours than the best.")
@click.option("--dtype", default="auto", show_default=True, help="As in zerokl serve.")
@click.option("--cpu-numerics", default="exact", show_default=True, help="As in zerokl serve.")
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="Ours; theirs is f16, or bf16 if ours is.")
@click.option("--json", "to_json", type=OUTPUT, help="Write all rounds to this file.")
@click.option("--plot", type=OUTPUT, help="Write the ratios as bars (SVG) to this file.")
def peers(
    model: Path,
    llama_cpp: Path | None,
    transformers: Path | None,
    tests: tuple[str, ...],
    tokens: int,
    rounds: int,
    threads: int,
    isa: str,
    to_json: TextIO | None,
    plot: TextIO | None,
    **ours: Any,
) -> None:
    """Speed on the CPU against llama.cpp and transformers, in turns: MODEL is a GGUF file (or folder) that all read."""
    from rich.console import Console
    from rich.progress import track

    from zerokl.bench import peers as running
    from zerokl.bench import plot as plots
    from zerokl.config import Config

    asked = [running.Task.parse(test) for test in tests]
    machine = measured_machine(threads, isa)
    click.echo(machine_text(machine), err=True)
    programs: list[running.Program] = [running.Zerokl(Config(model=str(model), threads=threads, **ours), tokens)]
    if llama_cpp:
        kv_dtype = "bf16" if ours["kv_cache_dtype"] == "bfloat16" else "f16"
        programs.append(running.LlamaCpp(llama_cpp, model, threads, tokens, kv_dtype))
    if transformers:
        programs.append(running.Transformers(transformers, model, threads, tokens))
    found = []
    turns = running.rounds_of(programs, asked, rounds)
    for turn in track(turns, "Rounds", rounds, console=Console(stderr=True)):
        found.append(turn)
    summaries = {str(test): running.summary(found, str(test)) for test in asked}
    click.echo(f"{'tokens/s':16s}" + "".join(f"{program.name:>14s}" for program in programs))
    for test, summary in summaries.items():
        speeds = "".join(f"{speed:14.1f}" for speed in summary["tokens_per_second"].values())
        ratios = "".join(
            f"   {ratio['median']:.2f}x of {name} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
            for name, ratio in summary["ratio"].items()
        )
        click.echo(f"{test:16s}{speeds}{ratios}")
    if to_json:
        report = {"machine": machine, "model": model.name, "tokens": tokens} | ours
        to_json.write(json.dumps(report | {"summary": summaries, "rounds": found}, indent=1) + "\n")
    if plot:
        medians = {test: {n: r["median"] for n, r in summary["ratio"].items()} for test, summary in summaries.items()}
        plot.write(plots.bars(medians, f"zerokl, {model.name}, {machine['isa']}, {threads} threads"))
