"""A fake engine: the real process, scheduler, cache and text around a runner without a model (`fake_model.py`).

    python -m zerokl.engine.fake --socket PATH [--script FILE] [--run-folder DIR] [--step-ms 5] ...

A script says what follows a given prompt, and how it goes wrong:
[{"prompt": [1, 2], "tokens": [7, 8, 257], "logprobs": [-0.5, -1.0, -2.0], "step_ms": 50, "fail": false}, ...]
What no script says is a hash of what came before. Without a run folder ids are bytes, then <s>, </s>, <|im_end|>.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokl.cache import Cache
from zerokl.engine.fake_model import FakeModel, FakeRunner, read_script
from zerokl.engine.intake import Intake, Served
from zerokl.engine.loop import Engine
from zerokl.engine.process import EngineProcess, serve_signals
from zerokl.engine.text import Stream
from zerokl.scheduler import Limits, Scheduler
from zerokl.tokenizer import Tokenizer
from zerokl.wire.messages import PROTOCOL, Hello

BYTES, BOS, EOS, END = 256, 256, 257, 258
BYTE_VOCAB = 259


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOptions:
    """Flags of the fake engine."""

    script: Sequence[Mapping[str, Any]] = ()
    run_folder: str = ""
    """Where the tokenizer is; empty: bytes."""
    context_length: int = 4096
    page_size: int = 64
    num_pages: int = 512
    max_running_requests: int = 256
    max_queued_requests: int = 1024
    chunked_prefill_size: int = 512
    random_seed: int = 0
    lag: int = 0
    step_ms: float = 0.0
    """Least time of a step."""
    disable_radix_cache: bool = False


def fake_process(options: FakeOptions, socket: str | Path) -> EngineProcess:
    """Ready to `run`; in tests on a thread of its own."""
    served = folder_served(options) if options.run_folder else byte_served(options)
    return EngineProcess(fake_engine(options, served), Intake(served), fake_hello(options, served), socket)


def fake_engine(options: FakeOptions, served: Served) -> Engine:
    """A real engine over a fake runner."""
    model = FakeModel(served.vocab, printable(served), read_script(options.script))
    cache = Cache(options.num_pages, options.page_size, not options.disable_radix_cache)
    limits = Limits(
        context_length=served.context,
        max_running_requests=options.max_running_requests,
        max_queued_requests=options.max_queued_requests,
        chunked_prefill_size=options.chunked_prefill_size,
    )
    step_s = options.step_ms / 1000
    runner = FakeRunner(model, options.num_pages, options.page_size, lag=options.lag, step_s=step_s)
    return Engine(Scheduler(limits, cache, options.lag), runner)


def byte_served(options: FakeOptions) -> Served:
    return Served(ByteTokenizer(), BYTE_VOCAB, options.context_length, frozenset([EOS]), options.random_seed)


def folder_served(options: FakeOptions) -> Served:
    tokenizer = Tokenizer.load(options.run_folder)
    eos_ids = frozenset(tokenizer.special.eos_ids)
    return Served(tokenizer, tokenizer.vocab_size, options.context_length, eos_ids, options.random_seed)


def printable(served: Served) -> list[int]:
    """Up to 1000 ids whose text is printable ASCII, so that answers look like text and end by length."""
    ids = range(min(served.vocab, 4000))
    texts = ((token, served.tokenizer.text((token,))) for token in ids if token not in served.eos_ids)
    found = [token for token, text in texts if text and text.isascii() and text.isprintable()][:1000]
    return found or [0]


def fake_hello(options: FakeOptions, served: Served) -> Hello:
    return Hello(
        protocol=PROTOCOL,
        fingerprint="fake",
        vocab=served.vocab,
        context=served.context,
        eos_ids=sorted(served.eos_ids),
        max_running=options.max_running_requests,
        max_queued=options.max_queued_requests,
        pool_tokens=options.num_pages * options.page_size,
        page_size=options.page_size,
        default_seed=options.random_seed,
        sampling_defaults=served.defaults,
        facts=json.dumps({"model_type": "fake", "architectures": ["Fake"], "dtype": "float32"}),
    )


def options_of(arguments: Sequence[str]) -> tuple[FakeOptions, str]:
    """Flags are the fields of `FakeOptions`."""
    parser = argparse.ArgumentParser(prog="python -m zerokl.engine.fake", description="A fake engine.")
    parser.add_argument("--socket", required=True, help="where to listen")
    parser.add_argument("--script", default="", help="JSON file: what follows which prompt")
    for one in dataclasses.fields(FakeOptions):
        flag = "--" + one.name.replace("_", "-")
        if one.name == "disable_radix_cache":
            parser.add_argument(flag, action="store_true")
        elif one.name != "script":
            parser.add_argument(flag, default=one.default, type=type(one.default))
    given = vars(parser.parse_args(arguments))
    socket, script = given.pop("socket"), given.pop("script")
    entries = json.loads(Path(script).read_text(encoding="utf-8")) if script else ()
    return FakeOptions(script=entries, **given), socket


class ByteTokenizer:
    """256 bytes and three special tokens; text is the bytes as UTF-8."""

    names: Mapping[str, int] = {"<s>": BOS, "</s>": EOS, "<|im_end|>": END}
    spells_bytes = True
    special_ids = frozenset(names.values())

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < BYTES else self._names[token].encode()

    @property
    def _names(self) -> Mapping[int, str]:
        return {token: name for name, token in self.names.items()}

    def token_id(self, entry: str) -> int | None:
        return self.names.get(entry)

    def text(self, output: Sequence[int], prompt: Sequence[int] = (), *, skip_special_tokens: bool = True) -> str:
        stream = self.stream(prompt, skip_special_tokens=skip_special_tokens)
        return stream.push(output) + stream.finish()

    def stream(self, prompt: Sequence[int] = (), *, skip_special_tokens: bool = True) -> Stream:
        return ByteStream({} if skip_special_tokens else self._names)


class ByteStream:
    """Holds back what is not yet a character."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._held = b""

    def push(self, ids: Sequence[int]) -> str:
        for token in ids:
            self._held += bytes([token]) if token < BYTES else self._names.get(token, "").encode()
        text = self._held.decode("utf-8", "replace")
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._held = b""
        return text

    def finish(self) -> str:
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")


def main(arguments: Sequence[str]) -> int:
    logging.basicConfig(level=logging.WARNING)
    options, socket = options_of(arguments)
    process = fake_process(options, socket)
    serve_signals(process, drain_s=30.0)
    return process.run()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
