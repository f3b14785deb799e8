"""The engine process over its socket: every request ends once, whoever goes away or breaks."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.engine.serving import collected, fake_engine, text_of, tokens_of
from zerokl.engine import process as process_module
from zerokl.engine.fake import EOS
from zerokl.engine.fake_model import FakeModel, state_of
from zerokl.wire.client import ControlError, EngineClient, EngineGone
from zerokl.wire.frames import encode
from zerokl.wire.messages import Abort, Grammar, LogprobOptions, Sampling, Stopping

GREEDY = Sampling(temperature=0.0)
PRINTABLE = FakeModel(259, range(32, 127))


def greedy(prompt: list[int], count: int) -> list[int]:
    """What the fake model says, asked directly."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(PRINTABLE.token_at(state_of(tokens), 0))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("lag", [0, 1])
def test_a_crowd_is_answered_as_the_model_answers_each_alone(tmp_path, lag):
    prompts = [[number, *range(number * 7)] for number in range(20)]

    async def talk(client):
        streams = [client.submit(prompt, sampling=GREEDY, max_new_tokens=9) for prompt in prompts]
        return await asyncio.gather(*map(collected, streams))

    with fake_engine(tmp_path, lag=lag, num_pages=12, page_size=16, chunked_prefill_size=24) as engine:
        answers = engine.ask(talk)
    assert [tokens_of(records) for records in answers] == [greedy(prompt, 9) for prompt in prompts]
    assert [text_of(records) for records in answers] == [bytes(greedy(prompt, 9)).decode() for prompt in prompts]
    assert all(records[0].first.prompt_tokens == len(prompt) for records, prompt in zip(answers, prompts, strict=True))
    assert all(len(records) == 9 and records[-1].done.kind == "length" for records in answers)


def test_scores_come_with_the_first_record_and_agree_with_what_was_generated(tmp_path):
    async def talk(client):
        options = LogprobOptions(0, 3, [5])
        (made,) = await collected(
            client.submit([1, 2, 3], sampling=GREEDY, max_new_tokens=5, logprobs=options, stream_interval=0)
        )
        whole = [1, 2, 3, *made.tokens]
        (scored,) = await collected(client.submit(whole, max_new_tokens=0, logprobs=LogprobOptions(2, 3, [5])))
        return made, scored

    with fake_engine(tmp_path, chunked_prefill_size=2) as engine:
        made, scored = engine.ask(talk)
    assert made.scores.rows == 2
    assert made.first.leading_nulls == 1
    assert (scored.tokens, scored.text, scored.done.kind) == ([], "", "length")
    assert scored.scores == made.logprobs


def test_a_stop_string_ends_the_request_in_the_engine_and_nothing_past_it_is_sent(tmp_path):
    stop = bytes(greedy([7], 8)[4:6]).decode()

    async def talk(client):
        stopping = Stopping(strings=[stop])
        records = await collected(client.submit([7], sampling=GREEDY, stopping=stopping, max_new_tokens=500))
        flushed = await client.control("flush_cache")
        return records, flushed, await client.control("server_info")

    with fake_engine(tmp_path, lag=1) as engine:
        records, flushed, stats = engine.ask(talk)
    assert tokens_of(records) == greedy([7], 6)
    assert text_of(records) == bytes(greedy([7], 4)).decode()
    assert records[-1].done.matched_text == stop
    assert records[-1].done.completion_tokens == 6
    assert flushed == {"flushed": True}
    assert stats["sampled_tokens"] < 100, "the engine went on long after the stop"
    assert stats["cache"]["free"] == stats["cache"]["num_pages"]


def test_an_eos_ends_it_and_the_script_says_what_follows(tmp_path):
    script = [{"prompt": [1], "tokens": [104, 105, EOS], "logprobs": [-0.5, -0.25, -2.0]}]

    async def talk(client):
        return await collected(client.submit([1], logprobs=LogprobOptions(), stream_interval=0))

    with fake_engine(tmp_path, script=script) as engine:
        (record,) = engine.ask(talk)
    assert (record.tokens, record.text) == ([104, 105, EOS], "hi")
    assert (record.done.kind, record.done.matched_id) == ("stop", EOS)
    assert memoryview(record.logprobs.chosen).cast("f").tolist() == [-0.5, -0.25, -2.0]


def test_an_abort_gives_a_last_record_and_is_idempotent(tmp_path):
    async def talk(client):
        stream = client.submit([1], max_new_tokens=4000)
        first = await anext(stream)
        stream.abort("enough")
        stream.abort()
        rest = await collected(stream)
        client._send(encode(Abort(stream.rid)))
        client._send(encode(Abort(999)))
        return first, rest, await client.control("server_info")

    with fake_engine(tmp_path, step_ms=1) as engine:
        first, rest, stats = engine.ask(talk)
    assert first.done is None
    assert (rest[-1].done.kind, rest[-1].done.message, rest[-1].done.status) == ("abort", "enough", None)
    assert rest[-1].done.completion_tokens == 1 + len(tokens_of(rest))
    assert (stats["running"], stats["queued"], stats["aborted"]) == (0, 0, 1)


def test_a_lost_frontend_loses_its_requests_and_nobody_elses(tmp_path):
    async def talk(client):
        other = await EngineClient.connect(engine.path)
        mine = [client.submit([1, number], max_new_tokens=60, sampling=GREEDY) for number in range(3)]
        theirs = [other.submit([2, number], max_new_tokens=4000) for number in range(3)]
        await asyncio.gather(*map(anext, [*mine, *theirs]))
        other.close()
        answers = await asyncio.gather(*map(collected, mine))
        return answers, await client.control("flush_cache", timeout_s=5), await client.control("server_info")

    with fake_engine(tmp_path, step_ms=1) as engine:
        answers, flushed, stats = engine.ask(talk)
    assert [tokens_of(records) for records in answers] == [greedy([1, number], 60)[1:] for number in range(3)]
    assert flushed["flushed"]
    assert (stats["running"], stats["aborted"]) == (0, 3)
    assert stats["cache"]["leased"] == 0


def test_two_frontends_may_use_the_same_rids(tmp_path):
    async def talk(client):
        other = await EngineClient.connect(engine.path)
        streams = [
            one.submit([number], sampling=GREEDY, max_new_tokens=5) for number, one in enumerate((client, other))
        ]
        assert streams[0].rid == streams[1].rid
        return await asyncio.gather(*map(collected, streams))

    with fake_engine(tmp_path) as engine:
        answers = engine.ask(talk)
    assert [tokens_of(records) for records in answers] == [greedy([0], 5), greedy([1], 5)]


@pytest.mark.parametrize(
    ("prompt", "fields", "status", "code", "message"),
    [
        ([1, 259], {}, 400, None, "prompt[1] is 259: ids run from 0 to 258"),
        ([], {}, 400, None, "the prompt is empty"),
        ([1] * 65, {}, 400, "context_length_exceeded", "the prompt has 65 tokens, the context length is 64"),
        ([1] * 60, {"max_new_tokens": 5}, 400, "context_length_exceeded", "make 65, the context length is 64"),
        ([1], {"sampling": Sampling(temperature=float("nan"))}, 400, None, "temperature is nan"),
        ([1], {"grammar": Grammar("regex", "a")}, 400, None, "regex is not supported"),
        ([1] * 60, {"max_new_tokens": 4}, 400, "context_length_exceeded", "the whole cache has 32"),
    ],
)
def test_what_can_never_be_served_is_refused_in_one_record(tmp_path, prompt, fields, status, code, message):
    async def talk(client):
        return await collected(client.submit(prompt, **fields))

    with fake_engine(tmp_path, context_length=64, num_pages=2, page_size=16) as engine:
        (record,) = engine.ask(talk)
    assert (record.done.kind, record.done.status, record.done.code) == ("abort", status, code)
    assert message in record.done.message
    assert record.first is None


def test_past_the_queue_requests_are_refused_and_the_others_are_served(tmp_path):
    async def talk(client):
        streams = [client.submit([number], max_new_tokens=4000) for number in range(10)]
        await client.control("server_info")  # answered after all of them were taken or refused
        for stream in streams:
            stream.abort()
        return await asyncio.gather(*map(collected, streams))

    with fake_engine(tmp_path, max_running_requests=2, max_queued_requests=3, step_ms=1) as engine:
        ends = [records[-1].done for records in engine.ask(talk)]
    assert [(end.status, end.code) for end in ends] == [(None, None)] * 5 + [(429, "queue_full")] * 5


def test_a_flush_is_refused_while_something_runs_and_waits_if_asked(tmp_path):
    async def talk(client):
        stream = client.submit([1], max_new_tokens=4000)
        await anext(stream)
        with pytest.raises(ControlError, match="running or waiting"):
            await client.control("flush_cache")
        with pytest.raises(ControlError, match="running or waiting"):
            await client.control("flush_cache", timeout_s=0.01)
        waiting = asyncio.create_task(client.control("flush_cache", timeout_s=30))
        await client.control("server_info")
        assert not waiting.done()
        stream.abort()
        return await waiting

    with fake_engine(tmp_path, step_ms=1) as engine:
        assert engine.ask(talk) == {"flushed": True}


@pytest.mark.parametrize(
    ("name", "args", "why"),
    [
        ("nonsense", {}, "unknown control call 'nonsense'"),
        ("flush_cache", {"timeout_s": -1}, "timeout_s is -1"),
        ("flush_cache", {"timeout_s": "x"}, "timeout_s is 'x'"),
        ("shutdown", {"timeout_s": True}, "timeout_s is True"),
    ],
)
def test_a_control_call_that_makes_no_sense_is_refused(tmp_path, name, args, why):
    async def talk(client):
        with pytest.raises(ControlError, match=why):
            await client.control(name, **args)

    with fake_engine(tmp_path) as engine:
        engine.ask(talk)


def test_heartbeats_tell_of_the_queue_whether_it_works_or_not(tmp_path, monkeypatch):
    monkeypatch.setattr(process_module, "HEARTBEAT_S", 0.02)

    async def heard(client, matches):
        for _ in range(500):
            if client.heartbeat and matches(client.heartbeat):
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"last heartbeat: {client.heartbeat}")

    async def talk(client):
        await heard(client, lambda beat: beat.running == 0)
        streams = [client.submit([number], max_new_tokens=4000) for number in range(3)]
        await heard(client, lambda beat: (beat.running, beat.waiting) == (2, 1) and beat.step > 0)
        assert await client.control("abort_all", message="over") == {"aborted": 3}
        ends = await asyncio.gather(*map(collected, streams))
        assert {records[-1].done.message for records in ends} == {"over"}

    with fake_engine(tmp_path, max_running_requests=2, step_ms=1) as engine:
        engine.ask(talk)


def test_draining_ends_what_runs_and_refuses_what_comes(tmp_path):
    async def talk(client):
        stream = client.submit([1], max_new_tokens=300, sampling=GREEDY)
        await anext(stream)
        await client.control("shutdown", timeout_s=10)
        (refused,) = await collected(client.submit([1]))
        records = await collected(stream)
        await client.closed.wait()
        return refused, records

    with fake_engine(tmp_path, step_ms=2) as engine:
        refused, records = engine.ask(talk)
        assert engine.ended() == 0
    assert (refused.done.status, refused.done.code) == (503, "draining")
    assert tokens_of(records) == greedy([1], 300)[1:]


def test_draining_aborts_what_is_not_done_in_time(tmp_path):
    async def talk(client):
        stream = client.submit([1], max_new_tokens=4000)
        await anext(stream)
        await client.control("shutdown", timeout_s=0.05)
        return (await collected(stream))[-1]

    with fake_engine(tmp_path, step_ms=2) as engine:
        last = engine.ask(talk)
        assert engine.ended() == 0
    assert (last.done.kind, last.done.status) == ("abort", 503)


def test_an_engine_that_breaks_tells_every_open_request_and_logs_the_plan(tmp_path, caplog):
    script = [{"prompt": [1, 2, 3], "fail": True}]

    async def talk(client):
        running = client.submit([1], max_new_tokens=4000)
        await anext(running)
        fatal = client.submit([1, 2, 3])
        ends = [(await collected(stream))[-1] for stream in (running, fatal)]
        await client.closed.wait()
        return ends

    with caplog.at_level(logging.CRITICAL), fake_engine(tmp_path, script=script, step_ms=1) as engine:
        ends = engine.ask(talk)
        assert engine.ended() == 1
    assert [(end.done.kind, end.done.status, end.done.code) for end in ends] == [("abort", 500, "engine_failed")] * 2
    assert ends[0].done.completion_tokens > 0
    assert "request 2 [0, 3)" in caplog.text


def test_a_text_that_cannot_be_made_ends_only_its_own_request(tmp_path, monkeypatch, caplog):
    def push(self, ids):
        if ids == (66,):
            raise RuntimeError("planted")
        return "."

    async def talk(client):
        streams = [client.submit([number], max_new_tokens=500) for number in (1, 2)]
        return await asyncio.gather(*map(collected, streams)), await client.control("flush_cache", timeout_s=5)

    script = [{"prompt": [1], "tokens": [65, 66]}, {"prompt": [2], "tokens": [65, 65, EOS]}]
    with fake_engine(tmp_path, script=script) as engine:
        monkeypatch.setattr("zerokl.engine.fake.ByteStream.push", push)
        (broken, whole), flushed = engine.ask(talk)
    assert (broken[-1].done.status, broken[-1].done.code) == (500, "engine_failed")
    assert tokens_of(whole) == [65, 65, EOS]
    assert flushed["flushed"]
    assert "planted" in caplog.text


def test_a_request_that_cannot_be_taken_in_ends_only_itself(tmp_path, monkeypatch):
    def broken(self, prompt, *, skip_special_tokens=True):
        raise RuntimeError("planted")

    async def talk(client):
        (refused,) = await collected(client.submit([1], max_new_tokens=1))
        monkeypatch.undo()
        return refused, await collected(client.submit([1], max_new_tokens=1))

    with fake_engine(tmp_path) as engine:
        monkeypatch.setattr("zerokl.engine.fake.ByteTokenizer.stream", broken)
        refused, served = engine.ask(talk)
    assert refused.done.status == 500
    assert "planted" not in refused.done.message
    assert served[-1].done.kind == "length"


def test_a_text_thread_that_breaks_stops_the_engine(tmp_path, monkeypatch):
    def broken(connection, step, records):
        raise RuntimeError("planted")

    async def talk(client):
        with pytest.raises(EngineGone):
            await collected(client.submit([1], max_new_tokens=4000))

    with fake_engine(tmp_path) as engine:
        monkeypatch.setattr(process_module, "send_step", broken)
        engine.ask(talk)
        assert engine.ended() == 1


def test_records_too_long_for_one_frame_are_sent_one_by_one_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("zerokl.wire.messages.MAX_TO_FRONTEND_BYTES", 1500)

    async def talk(client):
        sizes = (40, 40, 300)
        streams = [client.submit([n], max_new_tokens=size, stream_interval=0) for n, size in enumerate(sizes)]
        return await asyncio.gather(*map(collected, streams))

    with fake_engine(tmp_path) as engine:
        short, other, long = engine.ask(talk)
    assert len(tokens_of(short)) == len(tokens_of(other)) == 40
    assert (long[0].done.status, long[0].done.kind) == (413, "abort")
    assert "the limit is 1500" in long[0].done.message


def start_fake(path, *flags: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "zerokl.engine.fake", "--socket", str(path), *flags])


@pytest.mark.parametrize(("number", "count", "kind"), [(signal.SIGTERM, 50, "length"), (signal.SIGINT, 4000, "abort")])
def test_sigterm_drains_and_sigint_aborts(tmp_path, number, count, kind):
    path = tmp_path / "engine.sock"
    process = start_fake(path, "--step-ms", "2")

    async def talk():
        client = await EngineClient.connect(path, timeout_s=20)
        stream = client.submit([1], max_new_tokens=count)
        await anext(stream)
        process.send_signal(number)
        return (await collected(stream))[-1]

    try:
        assert asyncio.run(talk()).done.kind == kind
        assert process.wait(10) == 0
        assert not path.exists()
    finally:
        process.kill()


def test_an_engine_that_is_killed_is_engine_gone_and_a_new_one_takes_its_place(tmp_path):
    path = tmp_path / "engine.sock"
    process = start_fake(path, "--step-ms", "2")

    async def talk():
        client = await EngineClient.connect(path, timeout_s=20)
        stream = client.submit([1], max_new_tokens=4000)
        await anext(stream)
        os.kill(process.pid, signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(EngineGone):
            await collected(stream)
        assert time.monotonic() - started < 5

    try:
        asyncio.run(talk())
    finally:
        process.kill()
        process.wait()
    with fake_engine(tmp_path) as engine:
        assert len(engine.ask(lambda client: collected(client.submit([1], max_new_tokens=3)))) == 3
