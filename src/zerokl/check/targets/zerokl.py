"""zerokl's own server, through the native route. Everything can be asked, and every count is exact."""

from __future__ import annotations

from collections.abc import Sequence

from zerokl.check.answers import Answer, Ask
from zerokl.check.targets.base import Can, Counters, Facts
from zerokl.check.targets.completions import echo_answers, echo_body
from zerokl.check.targets.native import NativeTarget, whole
from zerokl.check.wire import Json, Wire


class ZeroklTarget(NativeTarget):
    """`info`: the server's /server_info at the start."""

    def __init__(self, wire: Wire, info: Json) -> None:
        super().__init__(wire)
        self._info = info
        missing = {Can.UPDATE_WEIGHTS} if info.get("enable_hierarchical_cache") else {Can.UPDATE_WEIGHTS, Can.TWO_TIERS}
        self.abilities = frozenset(Can) - missing

    @classmethod
    async def make(cls, wire: Wire, _: str = "") -> ZeroklTarget:
        return cls(wire, await wire.get("/server_info"))

    async def facts(self) -> Facts:
        info = self._info
        page = int(info["page_size"])
        return Facts(
            kind="zerokl",
            model=str(info.get("served_model_name") or info.get("model_path", "")),
            version=str(info.get("version", "")),
            fingerprint=str(info.get("fingerprint", "")),
            page_size=int(info.get("prefix_interval") or page),
            cache_page=page,
            windows=tuple(sorted(int(window) for window in info.get("bytes_per_sliding_token") or {})),
            taps=int(info.get("convolution_width") or 0),
            chunk=int(info.get("chunked_prefill_size", 512)),
            attention_chunk=int((info.get("fingerprint_of") or {}).get("attention_chunk", 512)),
            context=int(info["context_length"]),
            pool_tokens=whole(info.get("max_total_num_tokens")),
            kept_tokens=_kept_tokens((info.get("internal_states") or [{}])[0].get("cache") or {}, page),
            max_running=whole(info.get("max_running_requests")),
            largest_id=int(info["vocab_size"]) - 1 if info.get("vocab_size") else None,
        )

    async def counters(self) -> Counters:
        info = await self.wire.get("/server_info")
        return _counters((info.get("internal_states") or [{}])[0])

    async def flush_first_tier(self) -> None:
        await self.wire.post_text("/flush_cache", tier="device")

    async def echo(self, ask: Ask) -> Sequence[Answer]:
        return echo_answers(ask, await self.wire.post("/v1/completions", echo_body(ask)))


def _counters(state: Json) -> Counters:
    widths, cache = state.get("decode_widths") or {}, state.get("cache") or {}
    return Counters(
        steps=whole(state.get("steps")),
        widths={int(width): int(count) for width, count in widths.items()},
        mixed_steps=whole(state.get("mixed_steps")),
        chunked_prefills=whole(state.get("chunked_prefills")),
        preemptions=whole(state.get("preemptions")),
        aborted=whole(state.get("aborted")),
        submitted=whole(state.get("submitted")),
        evicted=_sum_of(cache, "evicted"),
        loaded=sum(kind["loaded"] for kind in cache.get("host") or ()),
    )


def _sum_of(cache: Json, count: str) -> int:
    """Over all kinds of what is cached."""
    kinds = [cache, *(cache.get("windows") or ()), cache.get("states") or {}]
    return sum(int(kind.get(count, 0)) for kind in kinds)


def _kept_tokens(cache: Json, page: int) -> int | None:
    """What the smallest kind has room for."""
    if "num_pages" not in cache:
        return None
    kept = [int(cache["num_pages"]) * page, *(int(kind["size"]) * page for kind in cache.get("windows") or ())]
    states = cache.get("states")
    return min([*kept, int(states["size"]) * int(states["interval"])] if states else kept)
