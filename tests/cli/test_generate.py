"""`zerokl generate`: from a server and from the model in this process, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.checkpoints.tiny import make_tiny_llama
from tests.http.live import Live, live
from zerokl.cli.main import commands

SCRIPT = [{"prompt": list(b"ab"), "tokens": list(b"xyz")}]


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(SCRIPT, api_key=("k",)) as running:
        yield running


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", seed=0)


def generate(*arguments: str, given: str | None = None) -> str:
    result = CliRunner().invoke(commands, ["generate", *arguments], input=given)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_servers_text_is_printed(server: Live) -> None:
    options = ("--url", server.url, "--api-key", "k", "--max-new-tokens", "3")
    assert generate(*options, "--raw", "ab") == "xyz\n"
    assert generate(*options, "--raw", given="ab") == "xyz\n"
    assert len(generate(*options, "ab")) == 4


def test_a_servers_refusal_is_one_line(server: Live) -> None:
    result = CliRunner().invoke(commands, ["generate", "--url", server.url, "--raw", "ab"])
    assert result.exit_code == 1
    assert "Error: no API key given" in result.output
    result = CliRunner().invoke(commands, ["generate", "--url", "http://127.0.0.1:9", "ab"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: http://127.0.0.1:9: ")


def test_the_model_in_this_process_gives_the_same_text_each_time(tiny: Path) -> None:
    options = ("--model", str(tiny), "--max-new-tokens", "8", "hello")
    assert generate(*options) == generate(*options)
    assert generate("--temperature", "100", "--seed", "1", *options) != generate(*options)


def test_an_unknown_model_is_one_line() -> None:
    result = CliRunner().invoke(commands, ["generate", "--model", "/no/such/model", "hello"])
    assert "Traceback" not in result.output
    assert "no such file or folder" in str(result.exception)
