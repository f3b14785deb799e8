"""SGLang, through its native route. Its cache depends on the model and its counts aren't predicted, only required."""

from __future__ import annotations

from zerokl.check.outcome import CouldNotRun
from zerokl.check.targets.base import Can, Counters, Facts
from zerokl.check.targets.native import NativeTarget, whole
from zerokl.check.wire import Json, Wire

ALWAYS = frozenset(
    {
        Can.FLUSH,
        Can.PROMPT_LOGPROBS,
        Can.TOKEN_IDS,
        Can.TOP_ROWS,
        Can.STREAM,
        Can.ARRIVALS,
        Can.CACHED_SCORES,
        Can.WIDE_FLOATS,
        Can.UPDATE_WEIGHTS,
        Can.STOPS,
    }
)


class SGLangTarget(NativeTarget):
    """Seeds need --enable-deterministic-inference; n samples share one seed, so they can't be told apart."""

    def __init__(self, wire: Wire, info: Json) -> None:
        super().__init__(wire)
        self._info = info
        self.abilities = ALWAYS
        self.in_parts = bool(info.get("incremental_streaming_output"))
        if not info.get("disable_radix_cache"):
            self.abilities |= {Can.CACHED_COUNT}
        if info.get("enable_deterministic_inference"):
            self.abilities |= {Can.SEEDS}

    @classmethod
    async def make(cls, wire: Wire, _: str = "") -> SGLangTarget:
        info = await wire.get_or_none("/server_info") or await wire.get("/get_server_info")
        return cls(wire, info)

    async def facts(self) -> Facts:
        info = self._info
        return Facts(
            kind="sglang",
            model=str(info.get("model_path", "")),
            version=str(info.get("version", "")),
            page_size=whole(info.get("page_size")),
            chunk=whole(info.get("chunked_prefill_size")),
            context=whole(info.get("context_length")) or whole(info.get("max_req_input_len")) or 4096,
            pool_tokens=whole(info.get("max_total_num_tokens")),
            max_running=whole(info.get("max_running_requests")),
            largest_id=whole(info.get("vocab_size", 0)) or None,
        )

    async def update_weights(self, place: str) -> None:
        """Raises CouldNotRun where the server says that it didn't work."""
        body = {"model_path": place or str(self._info.get("model_path", ""))}
        reply = await self.wire.post("/update_weights_from_disk", body)
        if not reply.get("success"):
            raise CouldNotRun(f"/update_weights_from_disk: {reply.get('message', 'no success')}")

    async def counters(self) -> Counters:
        return Counters()
