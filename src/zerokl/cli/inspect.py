"""`zerokl inspect`: what a model is, what it takes, and whether it will run, before it is loaded."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import click

from zerokl.cli.generate import SERVER_OPTIONS
from zerokl.cli.options import config_of, config_options
from zerokl.cli.process import set_up_logs
from zerokl.engine.inspection import Inspection


@click.command()
@click.argument("model", default="")
@click.option("--json", "as_json", is_flag=True, help="Everything, for programs.")
@config_options("model", *SERVER_OPTIONS)
def inspect(model: str, as_json: bool, **values: Any) -> None:
    """Say what MODEL is and whether it will run with these options, without loading it.

    MODEL is a folder, a GGUF file or a hub id (which is downloaded first). Exit status 1: it won't run.
    """
    from zerokl.engine import inspection

    set_up_logs("zerokl", "warning")
    found = inspection.inspect(config_of(values | {"model": model}))
    click.echo(json.dumps(dataclasses.asdict(found), default=str, indent=1) if as_json else described(found))
    sys.exit(1 if found.problem else 0)


def described(found: Inspection) -> str:
    """Lines of a name and a value; what wasn't found out isn't said."""
    lines = {
        "model": str(found.path),
        "architecture": found.architecture + (f", {found.layers} layers" if found.layers else ""),
        "parameters": f"{found.parameters:,}" if found.parameters else "",
        "on disk": ", ".join(f"{kind} {size(count)}" for kind, count in found.stored.items()),
        "in memory": f"{size(found.weight_bytes)} of weights ({', '.join(found.kept)})" if found.weight_bytes else "",
        "context": f"{found.context_length:,} tokens" if found.context_length else "",
        "cache": cache_line(found) if found.context_length else "",
        "tokenizer": tokenizer_line(found) if found.vocabulary else "",
        "weights": found.weights,
        "fingerprint": found.fingerprint,
        "runs": f"no: {found.problem}" if found.problem else "yes",
    }
    return "\n".join(f"{name:<13} {value}" for name, value in lines.items() if value)


def cache_line(found: Inspection) -> str:
    """What a text costs while it is known."""
    kinds = [f"{found.bytes_per_token:,} bytes per token"] if found.bytes_per_token else []
    kinds += [f"{count:,} per token within {window}" for window, count in found.bytes_per_sliding_token.items()]
    kinds += [f"{size(found.bytes_per_sequence)} per sequence"] if found.bytes_per_sequence else []
    return ", ".join(kinds)


def tokenizer_line(found: Inspection) -> str:
    return f"{found.vocabulary:,} ids, {'a' if found.chat_template else 'no'} chat template"


def size(count: int) -> str:
    """With three digits or so: 98.4 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}" if count < 1000 * factor else f"{count / factor:,.0f} {unit}"
    return f"{count} bytes"
