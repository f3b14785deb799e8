"""Replicas of a server on Ray: Ray Serve starts, counts, routes to and replaces them. `pip install 'zerokl[ray]'`.

    ray start --head
    serve run zerokl.serve_ray:app model=FOLDER replicas=2

client ── HTTP ──▶ Front ── Ray's router, by prefix ──▶ Replica ── HTTP on this machine ──▶ `zerokl serve`

No router and no cluster manager is ours. All replicas of one configuration have the same fingerprint, so any of them
may answer, and a request that one of them lost can be sent again.
"""

from __future__ import annotations

from typing import Any

__all__ = ["app"]


def app(options: dict[str, Any]) -> Any:
    """The application that `serve run` starts. Options: those of `zerokl serve`, and `replicas=N` or `replicas=1-4`.

    Raises ConfigError.
    """
    from zerokl.serve_ray.application import application

    return application(options)
