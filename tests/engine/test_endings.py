"""How an engine ends: drained, told to stop, broken or killed; and what its open requests hear of it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.engine.serving import GREEDY, collected, fake_engine, greedy, tokens_of
from zerokl.engine import process as process_module
from zerokl.engine.fake import EOS
from zerokl.wire.client import EngineClient, EngineGone


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
