"""`zerokl serve`: a model behind HTTP."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson

from zerokl.cli.fronts import Front, listening
from zerokl.cli.options import config_of, config_options
from zerokl.cli.process import set_up_logs
from zerokl.cli.run_folder import new_run_folder, write_config
from zerokl.cli.supervisor import Child, Supervisor, lifeline, python
from zerokl.config import Config, chosen_frontend
from zerokl.errors import ConfigError

TIMEOUT_S = 5.0


@click.command()
@click.argument("model_name", metavar="[MODEL]", required=False, default="")
@config_options()
@click.option("--dry-run", is_flag=True, help="Print the config and what the model's cache takes; needs no weights.")
def serve(model_name: str, dry_run: bool, **values: Any) -> None:
    """Serve MODEL over HTTP: a folder, a GGUF file, a hub id, or nothing for SmolLM2-135M-Instruct."""
    if model_name and values["model"]:
        raise click.UsageError("MODEL is given twice, as an argument and as --model")
    raise SystemExit(run(config_of(values | {"model": model_name or values["model"]}), dry_run))


def run(config: Config, dry_run: bool = False) -> int:
    """Serve until a signal. Raises ConfigError or CheckpointError for what can be known at once."""
    set_up_logs("zerokl", config.log_level)
    if dry_run:
        config = settled(config)
        shown_all = shown(config) | {"memory": memory_figures(config)}
        click.echo(orjson.dumps(shown_all, option=orjson.OPT_INDENT_2))
        return 0
    if config.distributed_executor_backend == "external_launcher":
        from zerokl.cli import rank

        place = rank.place_here(config)
        if place.rank:
            return rank.follow(config, place)
    check_keys(config)
    check_extras(config)
    fronts = listening(config)
    with new_run_folder() as name, supervised(Path(name), fronts) as supervisor:
        config = settled(config)
        write_config(Path(name), config)
        return watch(supervisor, fronts, config)


def check_keys(config: Config) -> None:
    """A variable that was never set must not open the server to everybody."""
    if not all(config.api_key):
        raise ConfigError("--api-key is empty: leave it out for a server without keys")


def check_extras(config: Config) -> None:
    """What only the frontend would notice, and too late to be an answer."""
    if not config.otlp_traces_endpoint:
        return
    kind = chosen_frontend(config)
    if kind != "python" and not config.otlp_traces_endpoint.startswith("http://"):
        raise ConfigError("--otlp-traces-endpoint: the Rust frontend sends to http:// alone; use --frontend python")
    if kind == "rust":
        return
    try:
        found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigError("--otlp-traces-endpoint needs pip install 'zerokl[otel]'")


def settled(config: Config) -> Config:
    """What must be decided once for all processes: the model's place and name, and a random seed."""
    from zerokl import checkpoints

    path = checkpoints.find(config.model, config.revision)
    seed = int.from_bytes(os.urandom(8), "little") >> 1 if config.random_seed == "random" else config.random_seed
    name = config.served_model_name or config.model or checkpoints.DEFAULT_MODEL
    return dataclasses.replace(config, model=str(path), served_model_name=name, random_seed=seed, revision="")


def shown(config: Config) -> dict[str, Any]:
    secret = {field.name for field in dataclasses.fields(config) if field.metadata["secret"]}
    return {name: "..." if name in secret and value else value for name, value in dataclasses.asdict(config).items()}


def memory_figures(config: Config) -> dict[str, Any]:
    """What the model takes to remember a token, a checkpoint, a sequence: from its config alone, without weights."""
    from msgspec.structs import asdict

    from zerokl import checkpoints, models
    from zerokl.runner.sizes import figures
    from zerokl.runner.start import KEPT_FLOAT_BYTES

    model = models.outline(checkpoints.read_config(config.model), config)
    return asdict(figures(model.memory, KEPT_FLOAT_BYTES[config.device]))


def supervised(
    folder: Path, fronts: Sequence[Front], engine_module: str = "zerokl.cli.engine", *more: str
) -> Supervisor:
    """All processes. They load their code at once and then wait for the config in the run folder.

    `engine_module` and its further arguments: another engine (tests: the fake one).
    """
    read, _write = lifeline()
    engine = Child("engine", python(engine_module, str(folder), str(read), *more), (read,))
    return Supervisor(engine, *(front.child(folder, read) for front in fronts))


def watch(supervisor: Supervisor, fronts: Sequence[Front], config: Config) -> int:
    return supervisor.watch(
        is_ready=lambda: all(asked(front.address, "/health", config) is not None for front in fronts),
        on_ready=lambda: announce(fronts, config),
    )


def asked(address: tuple[str, int], path: str, config: Config) -> bytes | None:
    """The answer's body, or None if it isn't 200. Over a bare socket: `http.client` takes 20 ms of a start to load."""
    lines = [f"GET {path} HTTP/1.1", "host: zerokl", "connection: close"]
    lines += [f"authorization: Bearer {key}" for key in config.api_key[:1]]
    try:
        with socket.create_connection(address, TIMEOUT_S) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            head, _, body = b"".join(iter(lambda: connection.recv(65_536), b"")).partition(b"\r\n\r\n")
    except OSError:
        return None
    return body if head.startswith(b"HTTP/1.1 200 ") else None


def announce(fronts: Sequence[Front], config: Config) -> None:
    """The one line that says that it works, where, and with what."""
    facts = orjson.loads(asked(fronts[0].address, "/server_info", config) or b"{}")
    parts = [
        f"zerokl is ready: {' and '.join(map(url_of, fronts))}",
        f"model {config.served_model_name}",
        f"fingerprint {facts.get('fingerprint', '?')}",
        f"weights {megabytes(facts.get('weight_bytes'))}",
        f"cache {facts.get('max_total_num_tokens', '?')} tokens ({megabytes(facts.get('kv_bytes'))})",
    ]
    click.echo("  ".join(parts))


def url_of(front: Front) -> str:
    host, port = front.address
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def megabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e6:.0f} MB"
