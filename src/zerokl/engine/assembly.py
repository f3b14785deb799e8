"""What stands around a model's weights: tokenizer, runner, cache and scheduler, and what is known of them all."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from zerokl import checkpoints, models
from zerokl.cache import Cache
from zerokl.config import Config
from zerokl.engine.fingerprint import Evidence, fingerprint
from zerokl.engine.intake import Served
from zerokl.engine.loop import Engine
from zerokl.engine.seeds import default_seed
from zerokl.errors import CheckpointError
from zerokl.ops import AnyMatrix
from zerokl.quant import numbers_of
from zerokl.runner.sizes import figures, tokens_per_step
from zerokl.runner.start import KEPT_FLOAT_BYTES, Numerics, Started, start
from zerokl.scheduler import Limits, Scheduler
from zerokl.tokenizer import Tokenizer
from zerokl.wire.messages import PROTOCOL, Hello, Sampling

if TYPE_CHECKING:
    from zerokl.parallel import Ranks

log = logging.getLogger(__name__)

GENERATION_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What a model's generation_config.json says about sampling."""


class Built(Struct, frozen=True):
    """An engine that can run, and what is known about it."""

    engine: Engine
    served: Served
    tokenizer: Tokenizer
    hello: Hello


def assembled(
    config: Config,
    checkpoint: checkpoints.Checkpoint,
    model: models.Model,
    tokenizer: Tokenizer,
    ranks: Ranks | None,
    began: float,
) -> Built:
    """An engine for a loaded model; `began`: when that was asked for, for the log."""
    started = start(model, config, ranks)
    runner, pools = started.runner, started.pools
    enabled = not config.disable_radix_cache
    cache = Cache(
        pools.num_pages, pools.page_size, enabled, windows=pools.windows, states=pools.states, host=pools.host
    )
    limits = Limits(
        context_length=model.context_length,
        max_running_requests=config.max_running_requests,
        max_queued_requests=config.max_queued_requests,
        chunked_prefill_size=tokens_per_step(config),
    )
    served = Served(
        tokenizer=tokenizer,
        vocab=model.vocab_size,
        context=model.context_length,
        eos_ids=frozenset(token for token in tokenizer.special.eos_ids if token < model.vocab_size),
        default_seed=default_seed(config.random_seed),
        defaults=sampling_defaults(config, checkpoint.generation_config),
        media_ids=model.media_ids,
    )
    log.info("built in %.2f s: %s, %d cache pages", time.monotonic() - began, model.architecture, pools.num_pages)
    hello = hello_of(config, checkpoint, model, served, tokenizer, started)
    return Built(Engine(Scheduler(limits, cache, runner.lag), runner), served, tokenizer, hello)


def sampling_defaults(config: Config, generation_config: Mapping[str, Any]) -> Sampling:
    """What absent sampling values become. OpenAI's defaults are the neutral ones, so nothing is set."""
    if config.sampling_defaults == "openai":
        return Sampling()
    given = {key: generation_config[key] for key in GENERATION_KEYS if generation_config.get(key) is not None}
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"generation_config: {key} is {value!r}, not a number")
    if "top_k" in given:
        given["top_k"] = int(given["top_k"]) or -1  # Hugging Face writes "all" as 0
    values: dict[str, Any] = {key: value if key == "top_k" else float(value) for key, value in given.items()}
    return Sampling(**values)


def hello_of(
    config: Config,
    checkpoint: checkpoints.Checkpoint,
    model: models.Model,
    served: Served,
    tokenizer: Tokenizer,
    started: Started,
) -> Hello:
    matrices = list(matrices_of(model.weights))
    dtypes = tuple(sorted({name for matrix in matrices for name in numbers_of(matrix)}))
    kept = sorted({name for matrix in matrices for name in matrix.dtype.split("+")})
    evidence = evidence_of(config, checkpoint, tokenizer, dtypes, started.numerics, model.rotations)
    evidence = replace(evidence, default_seed=served.default_seed)  # drawn once, if it was drawn
    pools = started.pools
    pool_tokens = pools.num_pages * pools.page_size
    facts = {
        "model_type": checkpoint.config.get("model_type"),
        "architectures": checkpoint.config.get("architectures"),
        "dtype": ",".join(kept),
        "num_layers": model.num_layers,
        "weight_bytes": sum(matrix.nbytes for matrix in matrices),
        "kv_bytes": started.kv_bytes,
        "prefix_interval": pools.prefix_interval,
        **asdict(figures(model.memory, KEPT_FLOAT_BYTES[config.device])),
        "device": config.device,
        "chunked_prefill_size": tokens_per_step(config),
        **started.facts,
        "fingerprint_of": asdict(evidence),
    }
    return Hello(
        protocol=PROTOCOL,
        fingerprint=fingerprint(config, evidence),
        vocab=served.vocab,
        context=served.context,
        eos_ids=sorted(served.eos_ids),
        bos_id=tokenizer.special.bos_id,
        max_running=config.max_running_requests,
        max_queued=config.max_queued_requests,
        pool_tokens=pool_tokens,
        page_size=config.page_size,
        default_seed=served.default_seed,
        sampling_defaults=served.defaults,
        facts=json.dumps(facts),
    )


def evidence_of(
    config: Config,
    checkpoint: checkpoints.Checkpoint,
    tokenizer: Tokenizer,
    weight_dtypes: tuple[str, ...],
    numerics: Numerics,
    rotations: str,
) -> Evidence:
    """What the fingerprint is made of, besides the options."""
    defaults = sampling_defaults(config, checkpoint.generation_config)
    return Evidence(
        weights=checkpoint.digest,
        weight_dtypes=weight_dtypes,
        **asdict(numerics),
        tokenizer=tokenizer.digest,
        rotations=rotations,
        default_seed=default_seed(config.random_seed),
        sampling_defaults={key: value for key in GENERATION_KEYS if (value := getattr(defaults, key)) is not None},
    )


def matrices_of(parameters: object) -> Iterator[AnyMatrix]:
    """Every packed matrix of a model, once."""
    if isinstance(parameters, AnyMatrix):
        yield parameters
    elif isinstance(parameters, list | tuple):
        for part in parameters:
            yield from matrices_of(part)
    elif hasattr(parameters, "__dict__"):
        seen = {id(part): part for part in vars(parameters).values()}
        for part in seen.values():
            yield from matrices_of(part)
