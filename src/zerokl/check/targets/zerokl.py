"""zerokl's own server, through the native route /generate (SGLang's wire format)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zerokl.check.answers import Answer, Ask
from zerokl.check.targets.base import Can, Counters, Facts
from zerokl.check.targets.completions import echo_answers, echo_body
from zerokl.check.targets.native import generate_answers, generate_body, parse_answer
from zerokl.check.wire import Json, Wire


class ZeroklTarget:
    """Everything can be asked, and every count is exact."""

    abilities = frozenset(Can)

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def facts(self) -> Facts:
        info = await self._wire.get("/server_info")
        model = await self._wire.get("/model_info")
        return Facts(
            kind="zerokl",
            model=str(model.get("model_path", info.get("model_path", ""))),
            version=str(info.get("version", "")),
            fingerprint=str(info.get("fingerprint", "")),
            page_size=int(info["page_size"]),
            chunk=int(info.get("chunked_prefill_size", 512)),
            attention_chunk=int(info.get("attention_chunk", 512)),
            context=int(info["context_length"]),
            pool_tokens=_whole(info.get("max_total_num_tokens")),
            max_running=_whole(info.get("max_running_requests")),
            largest_id=int(info["vocab_size"]) - 1 if info.get("vocab_size") else None,
        )

    async def tokenize(self, text: str) -> list[int] | None:
        reply = await self._wire.post("/tokenize", {"prompt": text, "add_special_tokens": False})
        return [int(token) for token in reply["tokens"]]

    async def flush(self) -> None:
        await self._wire.post_text("/flush_cache", timeout=30)

    async def counters(self) -> Counters:
        info = await self._wire.get("/server_info")
        states = info.get("internal_states") or [{}]
        return _counters(states[0])

    async def ask(self, asks: Sequence[Ask]) -> list[list[Answer]]:
        return generate_answers(asks, await self._wire.post("/generate", generate_body(asks)))

    async def stream(self, ask: Ask, on_token: Callable[[int], None]) -> list[Answer]:
        body = {**generate_body([ask]), "input_ids": list(ask.ids), "stream": True}
        last: dict[int, Json] = {}
        frames: dict[int, int] = {}
        problems: dict[int, list[str]] = {}
        async for frame in self._wire.frames("/generate", body):
            sample = int(frame.get("index", 0))
            before = last.get(sample, {}).get("output_ids", [])
            ids = frame.get("output_ids", [])
            if ids[: len(before)] != before:
                problems.setdefault(sample, []).append(f"frame {frames[sample]} takes back tokens that were sent")
            frames[sample] = frames.get(sample, 0) + (len(ids) > len(before))
            last[sample] = frame
            on_token(sum(len(item.get("output_ids", [])) for item in last.values()))
        return [
            parse_answer(ask, last[sample], sample, problems.get(sample, []), frames[sample]) for sample in sorted(last)
        ]

    async def echo(self, ask: Ask) -> list[Answer]:
        return echo_answers(ask, await self._wire.post("/v1/completions", echo_body(ask)))


def _counters(state: Json) -> Counters:
    widths = state.get("decode_widths") or {}
    return Counters(
        steps=_whole(state.get("steps")),
        widths={int(width): int(count) for width, count in widths.items()},
        mixed_steps=_whole(state.get("mixed_steps")),
        chunked_prefills=_whole(state.get("chunked_prefills")),
        preemptions=_whole(state.get("preemptions")),
        submitted=_whole(state.get("submitted")),
    )


def _whole(value: Json) -> int | None:
    return None if value is None else int(value)
