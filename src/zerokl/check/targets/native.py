"""The native route's JSON (SGLang's /generate): an Ask to a body, an answer to Rows, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from zerokl.check.answers import Answer, Ask, Phase, Row
from zerokl.check.bits import float32_bits, from_bits
from zerokl.check.outcome import CouldNotRun
from zerokl.check.targets.base import Can
from zerokl.check.wire import Json, Wire


class NativeTarget:
    """What zerokl and SGLang have in common: /generate, /tokenize, /flush_cache."""

    abilities: frozenset[Can]
    in_parts = False
    """A stream's frames hold what is new only."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def tokenize(self, text: str) -> list[int] | None:
        reply = await self.wire.post("/tokenize", {"prompt": text, "add_special_tokens": False})
        return [int(token) for token in reply["tokens"]]

    async def flush(self) -> None:
        await self.wire.post_text("/flush_cache", timeout=30)

    async def ask(self, asks: Sequence[Ask]) -> list[list[Answer]]:
        return generate_answers(asks, await self.wire.post("/generate", generate_body(asks)))

    async def stream(self, ask: Ask, on_token: Callable[[int], None]) -> list[Answer]:
        """Frames are cumulative: each holds all tokens so far, and the last one is the answer."""
        last: dict[int, Json] = {}
        frames: dict[int, int] = {}
        problems: dict[int, list[str]] = {}
        async for frame in self.wire.frames("/generate", stream_body(ask)):
            sample = int(frame.get("index", 0))
            before = last.get(sample, {}).get("output_ids", [])
            if self.in_parts and sample in last:
                frame = _joined(last[sample], frame)
            ids = frame.get("output_ids", [])
            if ids[: len(before)] != before:
                problems.setdefault(sample, []).append(f"frame {frames[sample]} takes back tokens that were sent")
            frames[sample] = frames.get(sample, 0) + (len(ids) > len(before))
            last[sample] = frame
            on_token(sum(len(item.get("output_ids", [])) for item in last.values()))
        return [
            parse_answer(ask, last[sample], sample, problems.get(sample, []), frames[sample]) for sample in sorted(last)
        ]

    async def texts(self, ids: Sequence[int]) -> dict[int, str]:
        body = {"tokens": [[token] for token in ids], "skip_special_tokens": False}
        return dict(zip(ids, (await self.wire.post("/detokenize", body))["text"], strict=True))

    async def echo(self, ask: Ask) -> Sequence[Answer]:
        raise CouldNotRun("this target doesn't echo")


def _joined(before: Json, part: Json) -> Json:
    """What came before and what is new, as one frame."""
    names = ("output_token_logprobs", "output_top_logprobs")
    lists = {name: before["meta_info"][name] + part["meta_info"][name] for name in names if name in part["meta_info"]}
    meta = {**part["meta_info"], **lists}
    return {**part, "output_ids": before["output_ids"] + part["output_ids"], "meta_info": meta}


def whole(value: Json) -> int | None:
    """An optional integer of /server_info."""
    return None if value is None else int(value)


def generate_body(asks: Sequence[Ask]) -> dict[str, Json]:
    """One request for all of them; what may be a list per prompt is one."""
    first = asks[0]
    wanted = [ask.logprobs for ask in asks]
    return {
        "input_ids": [list(ask.ids) for ask in asks],
        "sampling_params": sampling_params(first) if first.samples > 1 else [sampling_params(ask) for ask in asks],
        "return_logprob": wanted[0] if len(set(wanted)) == 1 else wanted,
        "logprob_start_len": [-1 if ask.score_from is None else ask.score_from for ask in asks]
        if first.samples == 1
        else (-1 if first.score_from is None else first.score_from),
        "top_logprobs_num": [ask.top if ask.logprobs else 0 for ask in asks] if first.samples == 1 else first.top,
    }


def stream_body(ask: Ask) -> dict[str, Json]:
    """One prompt that isn't in a list: then nothing else may be in one."""
    return {
        "input_ids": list(ask.ids),
        "sampling_params": sampling_params(ask),
        "return_logprob": ask.logprobs,
        "logprob_start_len": -1 if ask.score_from is None else ask.score_from,
        "top_logprobs_num": ask.top if ask.logprobs else 0,
        "stream": True,
    }


def sampling_params(ask: Ask) -> dict[str, Json]:
    params: dict[str, Json] = {
        "temperature": ask.temperature,
        "max_new_tokens": ask.new_tokens,
        "ignore_eos": ask.stop is None,  # SGLang takes it to mean stop ids, too
    }
    if ask.stop is not None:
        params["stop_token_ids"] = [ask.stop]
    if not ask.greedy:
        params["top_p"] = ask.top_p
        if ask.seed is not None:
            params["sampling_seed"] = ask.seed
    if ask.samples > 1:
        params["n"] = ask.samples
    return params


def generate_answers(asks: Sequence[Ask], reply: Json) -> list[list[Answer]]:
    """The array in prompt-major order, sorted back to the asks."""
    items = reply if isinstance(reply, list) else [reply]
    samples = asks[0].samples
    if len(items) != len(asks) * samples:
        raise CouldNotRun(f"/generate: {len(items)} answers to {len(asks)} prompts with {samples} samples each")
    return [
        [parse_answer(ask, items[index * samples + sample], sample) for sample in range(samples)]
        for index, ask in enumerate(asks)
    ]


def parse_answer(ask: Ask, item: Json, sample: int, problems: Sequence[str] = (), num_frames: int = 0) -> Answer:
    """What can be read is read; what is missing or contradicts itself is a problem."""
    found = list(problems)
    try:
        meta = item["meta_info"]
        output = tuple(int(token) for token in item["output_ids"])
        reader = NumberReader()
        rows = _prompt_rows(ask, meta, reader, found) + _output_rows(ask, meta, output, reader, found)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CouldNotRun(f"/generate: not an answer: {type(error).__name__} {error}") from error
    finish = meta.get("finish_reason") or {}
    kind = str(finish.get("type", "")) if isinstance(finish, dict) else str(finish)
    if kind == "abort":
        raise CouldNotRun(f"/generate: aborted: {finish.get('message', '')}")
    found += count_problems(
        ask, output, meta.get("prompt_tokens"), meta.get("completion_tokens"), stopped=kind == "stop"
    )
    return Answer(
        ask=ask,
        output=output,
        rows=tuple(rows),
        cached_tokens=meta.get("cached_tokens"),
        finish=kind,
        sample=sample,
        not_float32=tuple(reader.not_float32),
        problems=tuple(found),
        num_frames=num_frames,
    )


class NumberReader:
    """JSON numbers to float32 bits; remembers those that no float32 widens to."""

    def __init__(self) -> None:
        self.not_float32: list[float] = []

    def bits(self, value: Json) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{value!r} is not a logprob")
        if math.isnan(value):
            raise ValueError("a logprob is NaN")
        number = float(value)
        bits = float32_bits(number)
        if from_bits(bits) != number:
            self.not_float32.append(number)
        return bits


def count_problems(
    ask: Ask, output: Sequence[int], prompt_tokens: Json, completion_tokens: Json, *, stopped: bool = False
) -> list[str]:
    """Does the answer have as many tokens as it says and as it should? (Without a stop, end-of-sequence is ignored.)"""
    problems = []
    if prompt_tokens is not None and prompt_tokens != len(ask.ids):
        problems.append(f"{len(ask.ids)} ids sent, the server counted {prompt_tokens}")
    if completion_tokens is not None and completion_tokens != len(output):
        problems.append(f"completion_tokens says {completion_tokens}, but {len(output)} came")
    early = stopped and ask.stop is not None
    if not (0 < len(output) <= ask.new_tokens if early else len(output) == ask.new_tokens):
        problems.append(f"truncated: {len(output)} of {ask.new_tokens} tokens came")
    return problems


def _prompt_rows(ask: Ask, meta: Json, reader: NumberReader, problems: list[str]) -> list[Row]:
    if not ask.logprobs or ask.score_from is None:
        return []
    entries = meta["input_token_logprobs"]
    tops = meta.get("input_top_logprobs") or [None] * len(entries)
    expected = len(ask.ids) - ask.score_from
    if len(entries) != expected:
        problems.append(f"{len(entries)} prompt scores from position {ask.score_from}, expected {expected}")
    rows = []
    for index, (entry, top) in enumerate(zip(entries, tops, strict=False)):
        position = ask.score_from + index
        if position >= len(ask.ids) or entry[1] != ask.ids[position]:
            problems.append(f"the score at {position} is of token {entry[1]}, not of the one sent")
            break
        if index == 0:
            continue
        rows.append(_row(position, entry, top, "scored", reader))
    return rows


def _output_rows(ask: Ask, meta: Json, output: Sequence[int], reader: NumberReader, problems: list[str]) -> list[Row]:
    if not ask.logprobs:
        return []
    entries = meta["output_token_logprobs"] if ask.new_tokens else []  # SGLang gives one even where none was asked
    tops = meta.get("output_top_logprobs") or [None] * len(entries)
    if len(entries) != len(output):
        problems.append(f"{len(entries)} logprobs of {len(output)} tokens")
    rows = []
    for index, (entry, top) in enumerate(zip(entries, tops, strict=False)):
        if index >= len(output) or entry[1] != output[index]:
            problems.append(f"the logprob of output token {index} is of another token")
            break
        rows.append(_row(len(ask.ids) + index, entry, top, "decoded" if index else "first", reader))
    return rows


def _row(position: int, entry: Json, top: Json, phase: Phase, reader: NumberReader) -> Row:
    likeliest = tuple((int(item[1]), reader.bits(item[0])) for item in top or ())
    return Row(position, int(entry[1]), reader.bits(entry[0]), likeliest, phase)
