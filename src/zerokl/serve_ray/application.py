"""The application: a front that takes HTTP, and replicas behind Ray's prefix-aware router."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from zerokl.serve_ray.asked import asked
from zerokl.serve_ray.options import deployed
from zerokl.serve_ray.replica import Replica

log = logging.getLogger(__name__)

ROUTER = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router:PrefixCacheAffinityRouter"
"""Ray's own. Its public name, in ray.serve.llm, can't be imported unless vLLM or SGLang is installed too."""
ROUTING = {"imbalanced_threshold": 8, "do_eviction": True}
"""A replica that has so many requests more than another is spared, whatever prefixes it has seen."""
TRIES = 3
"""Of a request whose replica ended before it said anything: any other gives the same answer."""
MAX_ONGOING = 1024


class Front:
    """Takes a request, hands it to the replica that Ray chooses, and passes on what that says."""

    def __init__(self, replicas: Any) -> None:
        self._replicas = replicas.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        question = asked(request.method, target, request.headers.items(), await request.body())
        for tried in range(TRIES):
            pieces = self._replicas.answer.remote(question)
            try:
                status, headers = await anext(pieces)
                break
            except RayActorError:
                log.warning("a replica ended before it answered; try %d of %d", tried + 1, TRIES)
        else:
            return Response(b'{"error":{"message":"no replica answers"}}', 503, {"retry-after": "1"})
        response = StreamingResponse(rest_of(pieces), status)
        response.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return response


async def rest_of(pieces: Any) -> AsyncIterator[bytes]:
    """The body. A replica that ends in the middle of it ends the connection, and the client asks again."""
    async for piece in pieces:
        yield piece


def application(options: Mapping[str, Any]) -> Any:
    """Raises ConfigError."""
    given = deployed(options)
    replicas = serve.deployment(
        Replica,
        name="Replica",
        max_ongoing_requests=MAX_ONGOING,
        autoscaling_config={
            "min_replicas": given.least,
            "max_replicas": given.most,
            "target_ongoing_requests": given.requests_per_replica,
        },
        health_check_period_s=5,
        health_check_timeout_s=30,
        ray_actor_options={"num_cpus": 1, "num_gpus": given.gpus},
        request_router_config=RequestRouterConfig(request_router_class=ROUTER, request_router_kwargs=ROUTING),
    ).bind(list(given.flags))
    front = serve.deployment(Front, name="Front", max_ongoing_requests=MAX_ONGOING)
    return front.options(ray_actor_options={"num_cpus": 0.1}).bind(replicas)
