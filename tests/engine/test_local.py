"""The engine in the caller's process: what is left early, interrupted or closed in the middle."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from zerokl.engine import local as local_engine
from zerokl.engine.fake import FakeOptions, byte_served, fake_engine
from zerokl.engine.intake import Intake
from zerokl.engine.local import LocalEngine
from zerokl.errors import EngineError, InvalidRequest
from zerokl.wire.frames import NO_COLUMN
from zerokl.wire.messages import Sampling, Stopping, Submit

PROMPT = [1, 2, 3]


def local(**options: Any) -> LocalEngine:
    chosen = FakeOptions(**options)
    served = byte_served(chosen)
    return LocalEngine(fake_engine(chosen, served), Intake(served))


def asked(tokens: int, prompt: list[int] = PROMPT) -> tuple[Submit, list[int]]:
    stopping = Stopping(ignore_eos=True)
    return Submit(1, NO_COLUMN, Sampling(), stopping, tokens, stream_interval=1), prompt


def places(records: Iterator[tuple[int, Any]]) -> list[int]:
    return [place for place, _ in records]


@pytest.mark.parametrize("lag", [0, 1])
def test_the_cache_can_be_flushed_once_what_ran_was_left(lag: int) -> None:
    engine = local(lag=lag)
    left = engine.run([asked(50)])
    next(left)
    assert not engine.flush_cache()
    left.close()
    assert engine.flush_cache()
    assert engine.engine.stats.cache.leased == 0


@pytest.mark.timeout(30)
def test_the_garbage_collector_may_leave_an_iterator_in_the_middle_of_a_step() -> None:
    engine = local()

    class Holder:
        pass

    holder: Any = Holder()
    holder.records = engine.run([asked(2000)])
    next(holder.records)
    holder.itself = holder
    step = engine.engine.step

    def collecting() -> Any:
        gc.collect()
        return step()

    engine.engine.step = collecting  # type: ignore[method-assign]
    del holder
    assert len(places(engine.run([asked(5)]))) == 5
    assert engine.flush_cache()


@pytest.mark.parametrize("lag", [0, 1])
def test_ctrl_c_ends_what_was_asked_and_not_the_engine(lag: int) -> None:
    engine = local(lag=lag, step_ms=20)
    expected = places(engine.run([asked(4)]))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        places(engine.run([asked(1000)]))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert places(engine.run([asked(4)])) == expected
    assert engine.flush_cache()


def test_a_second_ctrl_c_does_not_wait_for_the_step() -> None:
    engine = local()
    stuck = threading.Event()

    def step() -> Any:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        assert not stuck.wait(20)

    engine.engine.step = step  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        places(engine.run([asked(4)]))
    with pytest.raises(EngineError, match="failed before"):
        places(engine.run([asked(4)]))


def test_a_prompt_that_can_never_fit_is_refused_before_the_others_run() -> None:
    engine = local(num_pages=4, page_size=16, max_running_requests=1, max_queued_requests=0)
    got: list[int] = []
    with pytest.raises(InvalidRequest, match="prompt 2: "):
        got += places(engine.run([asked(4), asked(4), asked(200)]))
    assert got == []
    assert engine.engine.stats.scheduler.counters.submitted == 0


def test_a_signals_handler_may_close_in_the_middle_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_engine, "CLOSE_S", 0.1)
    engine = local()
    step = engine.engine.step

    def interrupted() -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return step()

    engine.engine.step = interrupted  # type: ignore[method-assign]
    before = signal.signal(signal.SIGUSR1, lambda number, frame: engine.close())
    try:
        with pytest.raises(EngineError, match="this LLM was closed"):
            places(engine.run([asked(50)]))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_close_ends_what_another_thread_asks() -> None:
    engine = local(step_ms=20)
    ends: list[BaseException] = []
    began = threading.Event()

    def ask() -> None:
        try:
            for _ in engine.run([asked(2000)]):
                began.set()
        except EngineError as error:
            ends.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert began.wait(10)
    engine.close()
    engine.close()
    asking.join(5)
    assert [str(end) for end in ends] == ["this LLM was closed"]
