"""SGLang's launch lines: what maps, what is said, what is refused, and that the page is the table's."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from zerokl.cli.sglang_flags import TABLE
from zerokl.cli.sglang_launch import FIELDS, config_from, document, flags_of
from zerokl.config import Config
from zerokl.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "sglang-flags.md"


def test_a_deterministic_launch_line_works_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    line = (
        "--model-path some/model --port 30123 --random-seed 42 --enable-deterministic-inference "
        "--disable-prefill-cuda-graph --attention-backend fa3 --tp-size 1 --mem-fraction-static 0.8 "
        "--trust-remote-code --host 0.0.0.0 --api-key k --disable-radix-cache --chunked-prefill-size 256"
    )
    with caplog.at_level(logging.INFO):
        config = config_from(line.split())
    assert config == Config(
        model="some/model",
        port=30123,
        random_seed=42,
        disable_prefill_cuda_graph=True,
        mem_fraction_static=0.8,
        host="0.0.0.0",
        api_key=("k",),
        disable_radix_cache=True,
        chunked_prefill_size=256,
    )
    said = [record.getMessage().split(":")[0].split()[0] for record in caplog.records]
    assert said == ["--enable-deterministic-inference", "--attention-backend", "--trust-remote-code"]


def test_a_value_may_follow_an_equals_sign_and_lists_several_words() -> None:
    words = ["--port=5", "--cuda-graph-bs-decode", "1", "2", "4", "--schedule-conservativeness", "-1", "--model", "m"]
    assert list(flags_of(words)) == [
        ("--port", ["5"]),
        ("--cuda-graph-bs-decode", ["1", "2", "4"]),
        ("--schedule-conservativeness", ["-1"]),
        ("--model", ["m"]),
    ]
    assert config_from(words).port == 5
    assert config_from(["--tensor-parallel-size", "4"]).tp == 4


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--model-pth x", "unknown flag --model-pth; the nearest is --model-path"),
        ("--enable-determinstic-inference", "the nearest is --enable-deterministic-inference"),
        ("--pp-size 2", "--pp-size 2: several devices share a model by --tp alone; accepted: 1"),
        ("--ep 8", "--ep 8: several devices"),
        ("--quantization awq", "'awq' is not one of"),
        ("--kv-cache-dtype fp8_e5m2", "'fp8_e5m2' is not one of"),
        ("--enable-lora", "--enable-lora: zerokl doesn't do this: no LoRA"),
        ("--allow-auto-truncate", "never cut"),
        ("--port x", "--port: 'x' is not a valid integer"),
        ("--port 1 2", "--port takes one value, got 1 2"),
        ("--port", "--port takes one value, got none"),
        ("--load-format bitsandbytes", "'bitsandbytes' is not one of"),
        ("model", "unexpected 'model': every option is a flag"),
    ],
)
def test_what_cannot_be_done_is_an_error_that_says_so(line: str, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_from(line.split())
    assert text in str(error.value)


def test_their_words_become_ours() -> None:
    assert config_from(["--dtype", "half"]).dtype == "float16"
    assert config_from(["--chunked-prefill-size", "-1"]) == Config()
    assert config_from(["--logprobs-mode", "raw"]) == Config()
    assert config_from(["--kv-cache-dtype", "fp32"]).kv_cache_dtype == "float32"
    assert config_from(["--quantization", "modelopt_fp4"]).quantization == "modelopt_fp4"


def test_every_mapped_row_names_a_field_and_no_name_stands_twice() -> None:
    names = [name for row in TABLE for name in row.names]
    assert len(names) == len(set(names))
    for row in TABLE:
        assert row.kind != "mapped" or row.field in FIELDS
        assert row.kind == "mapped" or row.why


def test_the_page_is_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(), "run `make docs`"
