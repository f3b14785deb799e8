"""zerokl's own server, through the native route. Everything can be asked, and every count is exact."""

from __future__ import annotations

from collections.abc import Sequence

from zerokl.check.answers import Answer, Ask
from zerokl.check.targets.base import Can, Counters, Facts
from zerokl.check.targets.completions import echo_answers, echo_body
from zerokl.check.targets.native import NativeTarget, whole
from zerokl.check.wire import Json, Wire


class ZeroklTarget(NativeTarget):
    abilities = frozenset(Can)

    @classmethod
    async def make(cls, wire: Wire, _: str = "") -> ZeroklTarget:
        return cls(wire)

    async def facts(self) -> Facts:
        info = await self.wire.get("/server_info")
        return Facts(
            kind="zerokl",
            model=str(info.get("served_model_name") or info.get("model_path", "")),
            version=str(info.get("version", "")),
            fingerprint=str(info.get("fingerprint", "")),
            page_size=int(info.get("prefix_interval") or info["page_size"]),  # what a hit is a multiple of
            chunk=int(info.get("chunked_prefill_size", 512)),
            attention_chunk=int((info.get("fingerprint_of") or {}).get("attention_chunk", 512)),
            context=int(info["context_length"]),
            pool_tokens=whole(info.get("max_total_num_tokens")),
            max_running=whole(info.get("max_running_requests")),
            largest_id=int(info["vocab_size"]) - 1 if info.get("vocab_size") else None,
        )

    async def counters(self) -> Counters:
        info = await self.wire.get("/server_info")
        return _counters((info.get("internal_states") or [{}])[0])

    async def echo(self, ask: Ask) -> Sequence[Answer]:
        return echo_answers(ask, await self.wire.post("/v1/completions", echo_body(ask)))


def _counters(state: Json) -> Counters:
    widths = state.get("decode_widths") or {}
    return Counters(
        steps=whole(state.get("steps")),
        widths={int(width): int(count) for width, count in widths.items()},
        mixed_steps=whole(state.get("mixed_steps")),
        chunked_prefills=whole(state.get("chunked_prefills")),
        preemptions=whole(state.get("preemptions")),
        aborted=whole(state.get("aborted")),
        submitted=whole(state.get("submitted")),
    )
