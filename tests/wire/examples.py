"""Messages for the golden vectors: each field at a default and away from it, numbers at the edges of their coding."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from zerokl.types import Logprobs
from zerokl.wire.frames import Columns, encode
from zerokl.wire.messages import (
    Abort,
    Answer,
    Bias,
    Control,
    Done,
    First,
    Grammar,
    Heartbeat,
    Hello,
    LogprobOptions,
    Sampling,
    Span,
    Stopping,
    Submit,
)
from zerokl.wire.records import Record, encode_step


def submit(*prompt: int, **fields: Any) -> bytes:
    columns = Columns()
    span = columns.add(array("i", prompt).tobytes())
    fields = {"rid": 1, "sampling": Sampling(), "stopping": Stopping(), **fields}
    return encode(Submit(prompt=span, **fields), columns)


def floats(*values: float) -> bytes:
    return array("f", values).tobytes()


def ints(*values: int) -> bytes:
    return array("i", values).tobytes()


FULL_SAMPLING = Sampling(0.5, 0.1, -1, 0.25, -2.0, 2.0, 1e-300, -(2**63), 127, [Bias(0, -100.0), Bias(70000, 1.5)])

EXAMPLES: dict[str, Callable[[], bytes]] = {
    "submit_plain": lambda: submit(1, 2, 3),
    "submit_empty_prompt": lambda: submit(rid=0),
    "submit_full": lambda: submit(
        0,
        2**31 - 1,
        rid=2**64 - 1,
        sampling=FULL_SAMPLING,
        stopping=Stopping(["\n\n", "é😀"], [0, 2**32 - 1], ["a+"], True, True),
        max_new_tokens=0,
        min_new_tokens=65536,
        logprobs=LogprobOptions(0, 20, [5, 300]),
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        stream_interval=0,
        priority=-1,
        cache_salt="salt",
        use_cache=False,
        grammar=Grammar("regex", "a|b"),
    ),
    "abort": lambda: encode(Abort(128, "client gone")),
    "control": lambda: encode(Control(255, "flush_cache", '{"timeout_s":30.0}')),
    "hello": lambda: encode(
        Hello(1, "f" * 40, 49152, 8192, [2, 0], 1, 256, 1024, 2**20, 64, -5, FULL_SAMPLING, '{"model_type":"llama"}')
    ),
    "answer": lambda: encode(Answer(255, False, '{"message":"busy"}')),
    "heartbeat": lambda: encode(
        Heartbeat(2**40, 3, 0, True, 25_000, 7, 8, 9, 2**33, 2**34, 2**35, 2**36, 11, 12, 13, 14, 15, 2**37)
    ),
    "step_empty": lambda: encode_step(0, []),
    "step_tokens": lambda: encode_step(
        7, [Record(1, [65], "A"), Record(2**64 - 1, [300, 7, 0], "é😀"), Record(3, [1], "")]
    ),
    "step_scores": lambda: encode_step(
        8,
        [
            Record(1, [65], "A"),
            Record(
                2,
                [66, 67],
                "BC",
                Logprobs(1, 2, 1, floats(-0.5), ints(9, 8), floats(-0.1, float("-inf")), floats(-3.5)),
                Logprobs(2, 2, 1, floats(-0.25, -1e-40), ints(5, 6, 7, 8), floats(-1, -2, -3, -4), floats(-0.0, -7.0)),
                First(0, -(2**63), 2, 0, 1),
            ),
            Record(
                3, [], "", Logprobs(3, 0, 0, floats(-1, -2, -3)), None, First(0, 2**63 - 1, 4, 64, 1), Done(0, "length")
            ),
        ],
    ),
    "step_ends": lambda: encode_step(
        9,
        [
            Record(1, [2], "", done=Done(0, "stop", 12, 2)),
            Record(2, [7], "end", done=Done(0, "stop", 1, None, "\n")),
            Record(3, done=Done(0, "abort", 0, None, None, "too long", 400, "context_length_exceeded", "prompt")),
        ],
    ),
}

NO_SPAN = Span()
