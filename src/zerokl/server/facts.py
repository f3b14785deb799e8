"""Routes that tell about the server and its model."""

from __future__ import annotations

import dataclasses
from typing import Any

import zerokl
from zerokl.config import options
from zerokl.server.exchange import Exchange
from zerokl.server.openai_common import no_such_model
from zerokl.server.service import Service


async def server_info(service: Service, exchange: Exchange) -> None:
    """The resolved config, then live values; flat, because SGLang's readers want it so."""
    live = await service.engine.control("server_info")
    hello, config = service.engine.hello, service.config
    secret = {field.name for field in options() if field.metadata["secret"]}
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in secret}
    await exchange.answer_json(
        {
            **settings,
            **service.engine.facts,
            "model_path": config.model,
            "served_model_name": service.model_name,
            "tokenizer_path": config.tokenizer_path or config.model,
            "version": zerokl.__version__,
            "fingerprint": hello.fingerprint,
            "frontend": "python",
            "startup_time": service.startup_s,
            "context_length": hello.context,
            "vocab_size": hello.vocab,
            "page_size": hello.page_size,
            "max_total_num_tokens": hello.pool_tokens,
            "max_running_requests": hello.max_running,
            "random_seed": hello.default_seed,
            "tp_size": 1,
            "num_requests_in_flight": len(service.engine.flights),
            "internal_states": [live],
        }
    )


async def model_info(service: Service, exchange: Exchange) -> None:
    config, facts = service.config, service.engine.facts
    await exchange.answer_json(
        {
            "model_path": config.model,
            "served_model_name": service.model_name,
            "tokenizer_path": config.tokenizer_path or config.model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": config.weight_version,
            "load_format": config.load_format,
            "reasoning_parser": None,
            "tool_call_parser": config.tool_call_parser or None,
            "model_type": facts.get("model_type"),
            "architectures": facts.get("architectures"),
            "has_image_understanding": False,
            "has_audio_understanding": False,
        }
    )


async def version(service: Service, exchange: Exchange) -> None:
    await exchange.answer_json({"version": zerokl.__version__})


async def models(service: Service, exchange: Exchange) -> None:
    await exchange.answer_json({"object": "list", "data": [_card(service)]})


async def one_model(service: Service, exchange: Exchange) -> None:
    """The id is the rest of the path, and may hold slashes."""
    asked = exchange.path.removeprefix("/v1/models/")
    if asked != service.model_name:
        raise no_such_model(service, asked)
    await exchange.answer_json(_card(service))


def _card(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "zerokl",
        "root": service.config.model or service.model_name,
        "parent": None,
        "max_model_len": service.engine.hello.context,
    }
