"""Adapters and simulated servers against recordings: of SGLang's own code, and of a real chat route (`recorded/`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.check.fake_engine import FakeEngine
from tests.check.fake_peers import FakeChat, FakeSGLang
from tests.check.fake_server import InProcess
from tests.check.recorded.record_sglang import ASKS
from zerokl.check.answers import Answer, Ask
from zerokl.check.bits import float32_bits
from zerokl.check.targets.chat import ChatTarget
from zerokl.check.targets.native import generate_body, parse_answer, stream_body
from zerokl.check.targets.sglang import SGLangTarget
from zerokl.check.wire import Wire
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=1, stage="base-a", runner_config="cpu-small")

RECORDED = orjson.loads((Path(__file__).parent / "recorded" / "sglang-0.5.23.json").read_bytes())
CHAT = orjson.loads((Path(__file__).parent / "recorded" / "llama-cpp-chat.json").read_bytes())
HELLO = Ask(tuple(map(ord, "Say hi")), 3, top=2)
LISTED = ("sampling_params", "logprob_start_len", "top_logprobs_num")


class Replay:
    """A wire on which a recorded stream comes."""

    def __init__(self, frames: list[Any]) -> None:
        self._frames = frames

    async def frames(self, path: str, body: Any) -> AsyncIterator[Any]:
        for frame in self._frames:
            yield frame

    async def post(self, path: str, body: Any) -> Any:
        assert CHAT["body"].items() <= body.items()
        return CHAT["whole"]


def streamed(name: str, key: str, info: dict[str, Any]) -> Answer:
    target = SGLangTarget(Replay(RECORDED[key][name]), info)  # type: ignore[arg-type]
    (answer,) = asyncio.run(target.stream(ASKS[name], lambda _: None))
    return answer


def test_bodies_are_still_those_that_the_schema_was_asked_about() -> None:
    bodies = {f"{name}, whole": generate_body([ask]) for name, ask in ASKS.items()}
    bodies |= {f"{name}, streamed": stream_body(ask) for name, ask in ASKS.items() if ask.new_tokens}
    bodies["all at once"] = generate_body(list(ASKS.values()))
    assert {name: request["body"] for name, request in RECORDED["requests"].items()} == bodies


@pytest.mark.parametrize("name", RECORDED["requests"])
def test_schema_read_what_was_meant(name: str) -> None:
    body, read = RECORDED["requests"][name]["body"], RECORDED["requests"][name]["read"]
    assert all(isinstance(read[field], list) == isinstance(read["input_ids"][0], list) for field in LISTED)
    pairs = zip(_listed(body["sampling_params"]), _listed(read["sampling_params"]), strict=True)
    assert all(sent.items() <= understood.items() for sent, understood in pairs)
    assert read["logprob_start_len"] == body["logprob_start_len"]


@pytest.mark.parametrize("name", ASKS)
def test_real_answers_are_read_without_a_complaint(name: str) -> None:
    ask = ASKS[name]
    answer = parse_answer(ask, RECORDED["answers"][name][-1], 0)
    assert answer.problems == ()
    assert answer.output == ((8, 9) if ask.new_tokens else ())
    assert answer.stopped == (ask.stop is not None)
    scored = [(1, 6, -1.5), (2, 7, -2.25)] if ask.score_from is not None else []
    drawn = [(3, 8, -0.5), (4, 9, -1.5)] if ask.new_tokens else []
    assert [(row.position, row.token, row.logprob) for row in answer.rows] == [
        (position, token, float32_bits(logprob)) for position, token, logprob in scored + drawn
    ]
    assert all(len(row.top) == 2 for row in answer.rows)


@pytest.mark.parametrize("name", RECORDED["answers in parts"])
def test_streams_of_wholes_and_of_parts_are_the_same_answer(name: str) -> None:
    cumulative = streamed(name, "answers", {})
    in_parts = streamed(name, "answers in parts", {"incremental_streaming_output": True})
    assert in_parts == cumulative
    assert (cumulative.num_frames, cumulative.problems) == (2, ())


@pytest.mark.parametrize("name", ASKS)
def test_simulated_answer_has_no_field_that_the_real_one_has_not(name: str) -> None:
    wire = Wire("http://fake", transport=InProcess(FakeSGLang(FakeEngine())))
    (simulated,) = asyncio.run(wire.post("/generate", generate_body([ASKS[name]])))
    real = RECORDED["answers"][name][-1]
    assert simulated.keys() <= real.keys()
    assert simulated["meta_info"].keys() <= real["meta_info"].keys()
    for field, value in simulated["meta_info"].items():
        assert _shape(value) == _shape(real["meta_info"][field]), field


def test_real_chat_route_answers_what_was_asked_whole_and_streamed() -> None:
    target = ChatTarget(Replay(CHAT["frames"]), "m")  # type: ignore[arg-type]
    ((whole,),) = asyncio.run(target.ask([HELLO]))
    (parts,) = asyncio.run(target.stream(HELLO, lambda _: None))
    assert (whole.rows, whole.output, whole.problems) == (parts.rows, parts.output, ())
    assert parts.num_frames == 3
    assert whole.rows[0].logprob == float32_bits(-2.3221662044525146)
    assert whole.rows[0].top[0] == (whole.output[0], whole.rows[0].logprob)
    (first, *_) = whole.output
    assert asyncio.run(target.texts([first, 5])) == {
        first: CHAT["whole"]["choices"][0]["logprobs"]["content"][0]["token"]
    }


def test_pieces_of_a_character_are_told_apart_by_their_bytes() -> None:
    entries = [{"token": "\ufffd", "bytes": [byte], "logprob": -1.0, "top_logprobs": []} for byte in (240, 159)]
    assert len(set(_answered(entries).output)) == 2


def test_tokens_of_one_name_are_left_out_unless_their_ids_are_told() -> None:
    """Special tokens without a text, seen on a real route: their logprobs were taken for one token's, which moved."""
    pair = [{"token": "", "bytes": [], "logprob": value} for value in (-1.0, -2.0)]
    other = {"token": "a", "bytes": [97], "logprob": -3.0}
    told = [{**one, "id": number} for number, one in enumerate([*pair, other])]
    (unnamed,) = _answered([{**pair[0], "top_logprobs": [*pair, other]}]).rows
    assert (unnamed.logprob, len(unnamed.top)) == (None, 1)
    (named,) = _answered([{**told[0], "top_logprobs": told}]).rows
    assert (named.logprob, len(named.top)) == (float32_bits(-1.0), 3)


def _answered(entries: list[Any]) -> Answer:
    reply = {"choices": [{"index": 0, "logprobs": {"content": entries}}]}
    (answer,) = asyncio.run(ChatTarget(Replay([reply]), "m").stream(HELLO, lambda _: None))  # type: ignore[arg-type]
    return answer


def test_simulated_chat_has_no_field_that_the_real_one_has_not() -> None:
    wire = Wire("http://fake", transport=InProcess(FakeChat(FakeEngine())))
    simulated = asyncio.run(wire.post("/v1/chat/completions", CHAT["body"]))
    assert _within(simulated, CHAT["whole"])


def _within(simulated: Any, real: Any) -> bool:
    """Field by field; of lists the first item stands for all."""
    if isinstance(simulated, dict):
        return all(name in real and _within(value, real[name]) for name, value in simulated.items())
    if isinstance(simulated, list):
        return not simulated or _within(simulated[0], real[0])
    return isinstance(simulated, type(real))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _shape(value: Any) -> Any:
    """Types and lengths, not values; an object by its type alone."""
    if isinstance(value, list):
        return [_shape(one) for one in value]
    return type(value).__name__
