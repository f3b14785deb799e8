"""Runs against live servers with a fake engine, and against a scripted one where something must go wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from tests.http.live import live
from zerokl.check.outcome import CouldNotRun
from zerokl.check.wire import Wire
from zerokl.errors import ConfigError
from zerokl.evals.asking import find_asker
from zerokl.evals.choice import run_choice
from zerokl.evals.cli import evaluate
from zerokl.evals.compare import compare
from zerokl.evals.gsm8k import make_task
from zerokl.evals.results import load
from zerokl.evals.run import run_gsm8k, score_references

DATA = Path(__file__).parent / "gsm8k"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live(engine={"context_length": 8192}) as server:
        yield server.url


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(evaluate, arguments, catch_exceptions=False)


def gsm8k(url: str, *more: str) -> Result:
    sizes = ["--data", str(DATA), "--shots", "1", "--max-new-tokens", "24"]
    return invoke("gsm8k", url, *sizes, *more)


def test_cold_and_warm_alone_and_in_a_crowd_give_the_same_outputs(url: str, tmp_path: Path) -> None:
    cold, warm, page = tmp_path / "cold.jsonl", tmp_path / "warm.jsonl", tmp_path / "page.html"
    assert gsm8k(url, "--out", str(cold), "--flush", "--parallel", "1").exit_code == 0
    result = gsm8k(url, "--out", str(warm), "--against", str(cold), "--same", "--html", str(page))
    assert result.exit_code == 0, result.output
    assert "0 of 8 outputs differ" in result.output
    assert sum(one.cached_tokens for one in load(warm).answers.values()) > 0
    assert all(one.ids and one.logprobs for one in load(warm).answers.values())
    assert "<svg" in page.read_text()


def test_completions_give_the_texts_of_the_native_route(url: str, tmp_path: Path) -> None:
    native, other = tmp_path / "native.jsonl", tmp_path / "completions.jsonl"
    gsm8k(url, "--out", str(native))
    gsm8k(url, "--out", str(other), "--route", "completions")
    result = invoke("compare", str(native), str(other), "--same")
    assert (result.exit_code, result.output.splitlines()[0][:18]) == (0, "0 of 8 outputs dif")


def test_references_are_scored_and_compared_as_a_paired_mean(url: str, tmp_path: Path) -> None:
    task = make_task(DATA, shots=1)
    for name in ("a", "b"):
        run(url, lambda asker, name=name: score_references(asker, task, tmp_path / name))
    found = compare(load(tmp_path / "a"), load(tmp_path / "b"))
    assert found.differing == ()
    assert (found.logprobs.n, found.logprobs.mean, found.logprobs.error) == (8, 0.0, 0.0)
    assert len(load(tmp_path / "a").answers[0].logprobs) > 10


def test_the_likeliest_letter_is_chosen(url: str, tmp_path: Path) -> None:
    data = tmp_path / "choices.jsonl"
    data.write_text(json.dumps({"question": "1 + 1?", "choices": ["1", "2", "3"], "answer": 1}) + "\n")
    results = run(url, lambda asker: run_choice(asker, data, tmp_path / "out"))
    (one,) = results.answers.values()
    best = max(one.logprobs)
    letters = [letter for letter, score in zip("ABC", one.logprobs, strict=True) if score == best]
    assert one.value == " ".join(letters)
    assert one.verdict == ("right" if letters == ["B"] else "wrong")


def test_perplexity_is_of_all_tokens_but_the_first_of_each_piece(url: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(DATA.joinpath("train.jsonl").read_text()[:300])
    result = invoke("perplexity", url, str(text), "--piece-chars", "100")
    assert result.exit_code == 0, result.output
    tokens = 0
    for piece in range(3):
        body = {"prompt": text.read_text()[100 * piece : 100 * (piece + 1)]}
        tokens += len(httpx.post(f"{url}/tokenize", json=body).json()["tokens"]) - 1
    assert f"({tokens} tokens in 3 pieces)" in result.output


def test_a_gate_that_fails_says_what_it_can_see(url: str, tmp_path: Path) -> None:
    result = gsm8k(url, "--out", str(tmp_path / "out"), "--gate", "0.8", "--expected", "0.9")
    assert result.exit_code == 1
    assert "gate 0.8: FAILED; at least 7 of 8" in result.output
    assert "fails it by chance with probability" in result.output


def run(url: str, work, transport: httpx.AsyncBaseTransport | None = None):
    async def whole():
        wire = Wire(url, transport=transport)
        try:
            return await work(await find_asker(wire))
        finally:
            await wire.close()

    return asyncio.run(whole())


class Scripted:
    """A native server that answers as it is told: by default "#### 18"; it fails at the `fails_at`-th question."""

    def __init__(self, fails_at: int = 0, logprob: float = -0.5, text: str = " #### 18", version: str = "1") -> None:
        self.fails_at, self.logprob, self.text, self.version, self.asked = fails_at, logprob, text, version, 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/server_info":
            return httpx.Response(200, json={"fingerprint": "f", "model_path": "m", "version": self.version})
        self.asked += 1
        if self.asked == self.fails_at:
            return httpx.Response(500, json={"error": {"message": "out of luck"}})
        meta = {
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": [[self.logprob, 7, None]],
            "cached_tokens": 0,
        }
        return httpx.Response(200, json={"text": self.text, "output_ids": [7], "meta_info": meta})


def scripted(path: Path, **options):
    server = Scripted(**options)
    task = make_task(DATA, shots=1)
    run("http://fake", lambda asker: run_gsm8k(asker, task, path, parallel=1), httpx.MockTransport(server))
    return server


def test_a_request_error_ends_the_run_and_the_next_call_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with pytest.raises(CouldNotRun, match="out of luck"):
        scripted(path, fails_at=4)
    assert len(load(path).answers) == 3
    with path.open("ab") as file:
        file.write(b'{"id": 5, "prom')  # as if it had been killed while writing
    assert scripted(path).asked == 5
    assert (len(load(path).answers), load(path).right) == (8, 1)


def test_another_servers_file_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    scripted(path)
    with pytest.raises(ConfigError, match="server version '1' instead of '2'"):
        scripted(path, version="2")


@pytest.mark.parametrize(
    ("change", "what"),
    [({"logprob": -0.5000001}, "logprobs from 0 on"), ({"text": " #### 3"}, "text from character 6 on")],
)
def test_a_planted_difference_is_seen_whatever_it_does_to_the_accuracy(tmp_path: Path, change: dict, what: str) -> None:
    scripted(tmp_path / "a")
    scripted(tmp_path / "b", **change)
    found = compare(load(tmp_path / "a"), load(tmp_path / "b"))
    assert len(found.differing) == 8
    assert found.differing[0].what == what
    result = invoke("compare", str(tmp_path / "a"), str(tmp_path / "b"), "--same")
    assert result.exit_code == 1


def test_accuracies_are_compared_pair_by_pair(tmp_path: Path) -> None:
    scripted(tmp_path / "a")  # right on question 0
    scripted(tmp_path / "b", text=" #### 3")  # right on question 1
    found = compare(load(tmp_path / "a"), load(tmp_path / "b"))
    assert (found.mcnemar.lost, found.mcnemar.won) == (1, 1)


def test_files_of_different_questions_are_not_compared(tmp_path: Path) -> None:
    scripted(tmp_path / "a")
    task = make_task(DATA, shots=2)
    transport = httpx.MockTransport(Scripted())
    run("http://fake", lambda asker: run_gsm8k(asker, task, tmp_path / "b"), transport)
    with pytest.raises(ConfigError, match="not the same questions"):
        compare(load(tmp_path / "a"), load(tmp_path / "b"))


def test_power_is_told_before_anything_runs() -> None:
    output = invoke("power", "--questions", "200", "--gate", "0.8", "--expected", "0.9").output
    assert "at least 160 of 200" in output
    assert "true accuracy 0.850: fails with probability 0.02" in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gate", "1.5"], "a share is from 0 to 1, not 1.5"),
        (["--gate", "most"], "'most' is no share, such as 0.8"),
        (["--against", "nowhere.jsonl"], "'nowhere.jsonl' does not exist"),
        (["--html", "nowhere/page.html"], "there is no folder nowhere"),
        (["--out", "nowhere/out.jsonl"], "there is no folder nowhere"),
    ],
)
def test_what_would_spoil_a_runs_end_is_said_before_it(tmp_path: Path, arguments: list[str], said: str) -> None:
    """No server answers at that address, and none is asked."""
    out = ["--out", str(tmp_path / "out.jsonl")] if arguments[0] != "--out" else []
    result = gsm8k("http://127.0.0.1:1", *out, *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("\u2502", "").split())


def test_the_url_may_end_as_openais_clients_write_it(url: str, tmp_path: Path) -> None:
    result = gsm8k(f"{url}/v1/", "--out", str(tmp_path / "out.jsonl"), "--questions", "2")
    assert result.exit_code == 0, result.output
