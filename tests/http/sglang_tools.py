"""Runs SGLang's cache-hit kit and bench_serving out of the unpacked wheel, in the clients' environment:

    python sglang_tools.py WHEEL_FOLDER TOKENIZER_JSON cache_hit URL DATASET
    python sglang_tools.py WHEEL_FOLDER TOKENIZER_JSON bench ARGUMENTS...

Their files are loaded as they are. What they import and never use here is empty modules; the one thing of transformers
that they do use, a tokenizer, is the `tokenizers` library's.
"""

# ruff: noqa: T201
from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

MISSING = ("transformers", "PIL", "msgspec", "pybase64", "psutil", "zmq", "sglang.srt")


class TokenizerOfTheWheel:
    """As much of transformers' tokenizer as the benchmark calls."""

    library: tokenizers.Tokenizer
    bos_token_id = None

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> TokenizerOfTheWheel:
        return cls()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self.library.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        text: str = self.library.decode(list(ids))
        return text

    def num_special_tokens_to_add(self) -> int:
        return 0

    @property
    def vocab_size(self) -> int:
        size: int = self.library.get_vocab_size()
        return size


class Empty(types.ModuleType):
    """A module where every name is a class of its own."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = {
            "AutoTokenizer": TokenizerOfTheWheel,
            "resolve_base_url": lambda base_url, host, port: base_url or f"http://{host}:{port}",
            "resolve_host_port": lambda base_url, host, port: f"{host}:{port}",
            "Struct": type("Struct", (), {"__init_subclass__": classmethod(lambda cls, **_: None)}),
        }.get(name) or type(name, (), {})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if any(name == one or name.startswith(one + ".") for one in MISSING):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def main() -> None:
    folder, tokenizer, what, *arguments = sys.argv[1:]
    TokenizerOfTheWheel.library = tokenizers.Tokenizer.from_file(tokenizer)
    sys.meta_path.insert(0, Finder())
    package = types.ModuleType("sglang")
    package.__path__ = [str(Path(folder) / "sglang")]
    sys.modules["sglang"] = package
    if what == "cache_hit":
        from sglang.test.kits.cache_hit_kit import run_multiturn_cache_hit_test

        url, dataset = arguments
        sizes = {"num_clients": 3, "num_rounds": 3, "request_length": 150, "output_length": 12}
        found = run_multiturn_cache_hit_test(url, "any", dataset_path=dataset, **sizes)
        print(json.dumps(found))
    else:
        sys.argv = ["bench_serving", *arguments]
        from sglang.benchmark.serving import cli_main

        cli_main()


if __name__ == "__main__":
    main()
