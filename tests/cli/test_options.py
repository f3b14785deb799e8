"""Flags are the config's fields: one each, with its help, its type and its limits."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from zerokl.cli import serve as serve_module
from zerokl.cli.complaints import in_one_line
from zerokl.cli.main import commands
from zerokl.cli.options import flag_of
from zerokl.config import Config, options
from zerokl.errors import ConfigError


def served(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Config:
    """The config that these arguments lead to."""
    taken: list[Config] = []

    def take(config: Config, dry_run: bool) -> int:
        taken.append(config)
        return 0

    monkeypatch.setattr(serve_module, "run", take)
    result = CliRunner().invoke(commands, ["serve", *arguments])
    assert result.exit_code == 0, result.output
    return taken[0]


def refused(*arguments: str) -> Result:
    result = CliRunner().invoke(commands, ["serve", *arguments])
    assert result.exit_code == 2
    return result


def test_every_field_is_a_flag_with_its_help() -> None:
    text = " ".join(CliRunner().invoke(commands, ["serve", "--help"]).output.split())
    for field in options():
        assert flag_of(field.name) in text
        assert " ".join(field.metadata["help"].split())[:40] in text
        for alias in field.metadata["aliases"]:
            assert alias in text


def test_no_flag_is_the_default_config(monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(monkeypatch) == Config()


def test_the_model_is_an_argument_or_a_flag_but_not_both(monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(monkeypatch, "folder").model == "folder"
    assert served(monkeypatch, "--model-path", "folder").model == "folder"
    assert "twice" in refused("folder", "--model", "other").output


def test_values_have_the_fields_types(monkeypatch: pytest.MonkeyPatch) -> None:
    config = served(
        monkeypatch,
        *(
            "--port",
            "1234",
            "--api-key",
            "a",
            "--api-key",
            "b",
            "--disable-radix-cache",
            "--mem-fraction-static",
            "0.5",
        ),
        *("--default-seed", "7", "--max-queued", "3", "--context-length", "99", "--dtype", "bfloat16"),
    )
    wanted: dict[str, Any] = {
        "port": 1234,
        "api_key": ("a", "b"),
        "disable_radix_cache": True,
        "mem_fraction_static": 0.5,
        "random_seed": 7,
        "max_queued_requests": 3,
        "context_length": 99,
        "dtype": "bfloat16",
    }
    assert {name: getattr(config, name) for name in wanted} == wanted


def test_a_seed_may_be_random(monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(monkeypatch, "--random-seed", "random").random_seed == "random"
    assert "neither a whole number nor 'random'" in refused("--random-seed", "x").output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--port", "70000"], "70000 is not in the range 0<=x<=65535"),
        (["--page-size", "0"], "0 is not in the range"),
        (["--dtype", "int4"], "'int4' is not one of"),
        (["--max-runing-requests", "3"], "--max-running-requests"),
    ],
)
def test_a_wrong_flag_or_value_is_one_clear_error(arguments: list[str], text: str) -> None:
    assert text in refused(*arguments).output


def test_a_wrong_command_names_the_nearest() -> None:
    result = CliRunner().invoke(commands, ["serv"])
    assert result.exit_code == 2
    assert "the nearest is 'serve'" in result.output


def test_the_version() -> None:
    assert CliRunner().invoke(commands, ["--version"]).output.startswith("zerokl, version ")


def test_an_empty_key_is_refused_and_opens_nothing() -> None:
    """As `--api-key "$KEY"` where KEY was never set."""
    with pytest.raises(ConfigError, match="--api-key is empty"):
        serve_module.run(Config(api_key=("",)))


def test_a_full_disk_is_one_line_and_a_bug_is_not(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def forbidden() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/models/x")

    assert (in_one_line(full), in_one_line(forbidden)) == (2, 2)
    assert capsys.readouterr().err == "Error: No space left on device\nError: /models/x: Permission denied\n"
    with pytest.raises(FileNotFoundError):
        in_one_line(lambda: (tmp_path / "no").open() and None)
