"""The engine process over its socket: every request ends once, whoever goes away or breaks."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.serving import GREEDY, collected, fake_engine, greedy, text_of, tokens_of
from zerokl.engine import process as process_module
from zerokl.engine.fake import EOS
from zerokl.suites import register_cpu_ci
from zerokl.wire.client import ControlError, EngineClient
from zerokl.wire.frames import encode
from zerokl.wire.messages import Abort, Grammar, LogprobOptions, Sampling, Stopping

register_cpu_ci(est_time=4, stage="base-b", runner_config="cpu-small")


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
        ([1], {"grammar": Grammar("regex", "a[")}, 400, None, "regex is not usable"),
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
