"""From a config to an engine: weights are read while the rest is loaded and put together by `assembly.py`.

    config ─▶ checkpoint ─▶ weights, on all cores ───────────────┐
                    └─▶ tokenizer, the modules of the rest ──────┴─▶ Built

So this module loads only what weights need: importing the rest takes 60 ms.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokl import _native, checkpoints, models
from zerokl.config import Config, num_leaves
from zerokl.errors import ConfigError
from zerokl.models.split import check_sizes

if TYPE_CHECKING:
    from zerokl.engine.assembly import Built
    from zerokl.engine.process import EngineProcess
    from zerokl.parallel import Ranks

LIBRARY = ("zerokl.engine.assembly", "zerokl.engine.local")
PROCESS = ("zerokl.engine.assembly", "zerokl.engine.process")
"""What an `LLM` and a server's engine need besides."""
RANK_MODULE = "zerokl.cli.rank"


def build(config: Config, run_folder: str | Path | None = None, battery: bool = False) -> Built:
    """Load everything. Run folder and `battery`: see `tokenizing.tokenizer_of`.

    Raises ConfigError, CheckpointError or UnsupportedModel for what the caller can mend, EngineError for a machine
    whose arithmetic is not the contract's.
    """
    with without_collections():
        built = build_on_ranks(config, run_folder, battery)
    _native.trim_memory()  # now that the checkpoint's vocabulary is gone
    return built


@contextmanager
def without_collections() -> Iterator[None]:
    """Nothing that is loaded is garbage, and looking for some among 100,000 tokens takes 40 ms."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def build_on_ranks(config: Config, run_folder: str | Path | None, battery: bool) -> Built:
    check_device(config)
    if config.tp == 1:
        return build_with(config, run_folder, battery)
    ranks, store = gathered(config)
    try:
        return build_with(config, run_folder, battery, ranks, store)
    except BaseException:
        ranks.close(in_order=False)
        raise


def gathered(config: Config) -> tuple[Ranks, Any]:
    """The other ranks, started here or by torchrun, and where those on GPUs meet first."""
    from zerokl.parallel import launch, machines, meeting_store

    if config.distributed_executor_backend == "mp":
        store = meeting_store(config.device, config.tp)
        return launch(config.tp, RANK_MODULE, store.port if store else 0), store
    place = machines.place_of(os.environ, config.tp)
    if place.rank:
        raise ConfigError(f"rank {place.rank} can't lead: under torchrun `zerokl serve` runs, which follows there")
    store = meeting_store(config.device, config.tp, place.host)
    return machines.lead(place, store.port if store else 0), store


def build_with(
    config: Config, run_folder: str | Path | None, battery: bool, ranks: Ranks | None = None, store: Any = None
) -> Built:
    """`build`, the other ranks being on their way; `store` is where those on GPUs meet."""
    began = time.monotonic()
    path = checkpoints.find(config.model, config.revision)
    if ranks:
        tell(ranks, config, path)
    elif config.threads is not None:
        _native.set_threads(config.threads)
    checkpoint = checkpoints.open(
        path,
        load_format=config.load_format,
        shapes_of=models.tensor_shapes,
        quantization=config.quantization,
        tokenizer_later=True,
    )
    team = team_of(config, ranks, store, checkpoint) if ranks else models.Team(num_leaves(config))
    from zerokl.engine.tokenizing import tokenizer_of

    with ThreadPoolExecutor(1) as aside, models.loading(checkpoint, config, team) as loaded:
        rest = aside.submit(lambda: [*map(import_module, LIBRARY if run_folder is None else PROCESS)])
        # Here and not aside: what the C library gives another thread for a while stays in memory.
        tokenizer = tokenizer_of(config, run_folder, battery, checkpoint)
        model = loaded()
    rest.result()
    from zerokl.engine import assembly

    return assembly.assembled(config, checkpoint, model, tokenizer, ranks, began)


def tell(ranks: Ranks, config: Config, path: Path) -> None:
    """The other ranks what to read; each takes its share of the threads, as this one does."""
    from zerokl.runner.rank import threads_of_rank

    _native.set_threads(threads_of_rank(config, ranks.group.local_size))
    ranks.setup(dataclasses.asdict(dataclasses.replace(config, model=str(path))))


def team_of(config: Config, ranks: Ranks, store: Any, checkpoint: checkpoints.Checkpoint) -> models.Team:
    """All ranks, which read the same weights."""
    from zerokl.parallel import group_of
    from zerokl.parallel.host_group import PeerGone
    from zerokl.runner.rank import check_same_weights

    if not ranks.group.shares_files:
        try:
            check_same_weights(ranks.group, checkpoint.digest)
        except PeerGone:
            ranks.ready()  # raises for the rank that is to blame
            raise
    return models.Team(num_leaves(config), group_of(config.device, ranks.group, store))


def build_process(
    config: Config, run_folder: str | Path | None, socket: str | Path, battery: bool = False
) -> EngineProcess:
    """An engine behind a socket, ready to `run`."""
    built = build(config, run_folder, battery)
    from zerokl.engine.intake import Intake
    from zerokl.engine.process import EngineProcess

    gc.collect()
    gc.freeze()  # a full collection over what is loaded takes 50 ms, which every stream would feel
    process = EngineProcess(built.engine, Intake(built.served), built.hello, socket)
    ranks = getattr(built.engine.runner, "ranks", None)
    if ranks is not None:
        ranks.watch(lambda: process.fail(ranks.failure()))
    return process


def check_device(config: Config) -> None:
    """Raise ConfigError, before anything is loaded, if the config's device isn't there or can't do what it asks."""
    check_sizes(config.tp, num_leaves(config))
    models.check_numerics(config)
    if config.device == "cuda":
        from importlib.util import find_spec

        if config.enable_hierarchical_cache:
            raise ConfigError("--enable-hierarchical-cache: --device cuda has no host tier yet")
        if find_spec("torch") is None or find_spec("triton") is None:
            raise ConfigError("--device cuda needs torch and Triton: pip install 'zerokl[cuda]'")
        if config.logprobs_mode != "raw":
            raise ConfigError("--logprobs-mode processed: --device cuda gives raw logprobs only, for now")
        if config.kv_cache_dtype == "float32":
            raise ConfigError("--kv-cache-dtype float32: --device cuda keeps bfloat16 or fp8_e4m3")
        from zerokl.runner import cuda_start

        cuda_start.check(config)
