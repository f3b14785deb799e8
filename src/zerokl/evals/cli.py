"""`zerokl eval`: gsm8k, references, choice, perplexity, compare, power."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from zerokl.check.files import write_named
from zerokl.check.outcome import CouldNotRun
from zerokl.check.wire import Wire
from zerokl.evals import report
from zerokl.evals.asking import Asker, find_asker
from zerokl.evals.choice import run_choice
from zerokl.evals.compare import compare
from zerokl.evals.gsm8k import Task, make_task
from zerokl.evals.perplexity import perplexity
from zerokl.evals.results import Answered, Results, load
from zerokl.evals.run import run_gsm8k, score_references
from zerokl.evals.statistics import Gate

Command = Callable[..., Any]
FILE = click.Path(path_type=Path, dir_okay=False)
THERE = click.Path(path_type=Path, dir_okay=False, exists=True)
SHARE = click.FloatRange(0, 1)
Found = TypeVar("Found")


class NewFile(click.Path):
    """A file to write: what would keep it from being written is said before the run, not after it."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        path: Any = super().convert(value, param, context)
        if not Path(path).parent.is_dir():
            self.fail(f"there is no folder {Path(path).parent}", param, context)
        return path


NEW = NewFile()


def checked_share(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """A gate is kept as it was written, and refused before anything runs."""
    if text is not None:
        threshold_gate(1, text)
    return text


@click.group("eval")
def evaluate() -> None:
    """Evaluate a server's answers, with honest error bars."""


def server_options(command: Command) -> Command:
    for option in (
        click.argument("url"),
        click.option("--route", type=click.Choice(["auto", "native", "completions"]), default="auto"),
        click.option("--model", default="", help="Name to send, where the route wants one."),
        click.option("--api-key", default="", envvar="ZEROKL_API_KEY", help="Sent as a bearer token."),
        click.option("--parallel", default=64, show_default=True, type=click.IntRange(1), help="Requests at a time."),
        click.option("--timeout", default=600.0, show_default=True, help="Seconds to wait for one answer."),
    ):
        command = option(command)
    return command


def file_options(command: Command) -> Command:
    for option in (
        click.option("--out", required=True, type=NEW, help="Results, a line per question; an unfinished one goes on."),
        click.option("--overwrite", is_flag=True, help="Begin anew, whatever --out holds."),
        click.option("--flush", is_flag=True, help="Empty the server's prefix cache first: a cold run."),
        click.option("--json", "json_path", type=NEW, help="Write the summary to this file."),
        click.option("--html", "html_path", type=NEW, help="Write a page with the interval drawn."),
    ):
        command = option(command)
    return command


def gsm8k_options(command: Command) -> Command:
    for option in (
        click.option("--data", required=True, type=click.Path(path_type=Path, file_okay=False, exists=True)),
        click.option("--mode", type=click.Choice(["default", "compat", "cot"]), default="default", show_default=True),
        click.option("--shots", default=5, show_default=True, type=click.IntRange(0)),
        click.option("--questions", default=200, show_default=True, type=click.IntRange(1)),
    ):
        command = option(command)
    return command


@evaluate.command()
@server_options
@gsm8k_options
@file_options
@click.option("--max-new-tokens", default=512, show_default=True, type=click.IntRange(1))
@click.option("--gate", type=str, callback=checked_share, help="Exit status 1 if less than this share is right.")
@click.option("--expected", type=SHARE, help="The reference's accuracy, for the gate's false alarms.")
@click.option("--against", type=THERE, help="An earlier --out: compare with it, pair by pair.")
@click.option("--same", is_flag=True, help="With --against: exit status 1 if any output differs in any bit.")
def gsm8k(data: Path, mode: str, shots: int, questions: int, max_new_tokens: int, **chosen: Any) -> None:
    """Grade-school maths, few-shot by completion. URL is the server's base, such as http://127.0.0.1:30000."""
    task = make_task(data, mode=mode, shots=shots, questions=questions)
    earlier = load(chosen["against"]) if chosen["against"] else None

    async def work(asker: Asker, done: Callable[[Answered], None]) -> Results:
        return await run_gsm8k(asker, task, max_new_tokens=max_new_tokens, done=done, **_running(chosen))

    results = run(chosen, len(task.items), work)
    content = report.summary(results)
    click.echo(report.words(content))
    red = judge_gate(content, chosen["gate"], chosen["expected"])
    compared = ""
    if earlier is not None:
        content["comparison"] = report.comparison_content(compare(earlier, results))
        compared = report.comparison_words(content["comparison"])
        click.echo(compared)
        red = red or (chosen["same"] and bool(content["comparison"]["differing"]))
    write(chosen, content, [(chosen["out"].name, content)], compared)
    sys.exit(red)


@evaluate.command()
@server_options
@gsm8k_options
@file_options
def references(data: Path, mode: str, shots: int, questions: int, **chosen: Any) -> None:
    """Score GSM8K's own answers (native route): a continuous measure, to compare precisions and servers with."""
    task: Task = make_task(data, mode=mode, shots=shots, questions=questions)

    async def work(asker: Asker, done: Callable[[Answered], None]) -> Results:
        return await score_references(asker, task, done=done, **_running(chosen))

    results = run(chosen, len(task.items), work)
    logprobs = [value for one in results.answers.values() for value in one.logprobs or ()]
    click.echo(
        f"{len(results.answers)} answers, {len(logprobs)} tokens, mean logprob {sum(logprobs) / len(logprobs):.6f}"
    )
    write(chosen, {**results.head.as_json(), "tokens": len(logprobs), "sum": sum(logprobs)}, ())


@evaluate.command()
@server_options
@file_options
@click.option("--data", required=True, type=THERE, help='Lines of {"question", "choices", "answer": index}.')
@click.option("--shots", default=0, show_default=True, type=click.IntRange(0), help="First lines shown, not asked.")
@click.option("--questions", type=click.IntRange(1))
def choice(data: Path, shots: int, questions: int | None, **chosen: Any) -> None:
    """Multiple choice in MMLU's form, by the likeliest letter (native route)."""

    async def work(asker: Asker, done: Callable[[Answered], None]) -> Results:
        return await run_choice(asker, data, shots=shots, questions=questions, done=done, **_running(chosen))

    content = report.summary(run(chosen, None, work))
    click.echo(report.words(content))
    write(chosen, content, [(chosen["out"].name, content)])


@evaluate.command("perplexity")
@server_options
@click.argument("text", type=THERE)
@click.option("--piece-chars", default=4000, show_default=True, type=click.IntRange(16))
def perplexity_command(text: Path, piece_chars: int, **chosen: Any) -> None:
    """Perplexity of a text file, with the error of its mean over pieces (native route)."""

    async def work(asker: Asker, _: Callable[[Answered], None]) -> Any:
        return await perplexity(asker, text.read_text("utf-8"), piece_chars=piece_chars, parallel=chosen["parallel"])

    found = run({**chosen, "flush": False}, None, work)
    click.echo(
        f"perplexity {found.value:.4f}: {found.nats:.6f} nats per token, standard error {found.error:.2g} "
        f"({found.tokens} tokens in {found.pieces} pieces)"
    )


@evaluate.command("compare")
@click.argument("first", type=FILE)
@click.argument("other", type=FILE)
@click.option("--same", is_flag=True, help="Exit status 1 if any output differs in any bit.")
@click.option("--worse", type=SHARE, metavar="P", help="Exit status 1 if McNemar's one-sided p is below this.")
@click.option("--json", "json_path", type=NEW)
@click.option("--html", "html_path", type=NEW)
def compare_command(first: Path, other: Path, same: bool, worse: float | None, **paths: Any) -> None:
    """Two files of results on the same questions, pair by pair."""
    one, two = load(first), load(other)
    content = report.comparison_content(compare(one, two))
    compared = report.comparison_words(content)
    click.echo(compared)
    named = [(first.name, report.summary(one)), (other.name, report.summary(two))]
    write(paths, {**content, "first": named[0][1], "other": named[1][1]}, named, compared)
    sys.exit((same and bool(content["differing"])) or (worse is not None and content["p_worse"] < worse))


@evaluate.command()
@click.option("--questions", default=200, show_default=True, type=click.IntRange(1))
@click.option("--gate", required=True)
@click.option("--expected", type=SHARE, required=True)
def power(questions: int, gate: str, expected: float) -> None:
    """What a gate on accuracy would catch, before anything is run."""
    made = threshold_gate(questions, gate)
    click.echo(report.gate_words(report.gate_content(made, None, expected), questions))
    for drop in (0.02, 0.05, 0.1, 0.15, 0.2):
        if expected > drop:
            click.echo(
                f"  true accuracy {expected - drop:.3f}: fails with probability {made.fails_at(expected - drop):.4f}"
            )


def judge_gate(content: dict[str, Any], gate: str | None, expected: float | None) -> bool:
    """Adds the gate to the summary and says what it means; whether it failed."""
    if gate is None:
        return False
    content["gate"] = report.gate_content(threshold_gate(content["n"], gate), content["right"], expected)
    click.echo(report.gate_words(content["gate"], content["n"]))
    return not content["gate"]["passed"]


def threshold_gate(n: int, text: str) -> Gate:
    try:
        gate = report.make_gate(n, text)
    except (ValueError, ZeroDivisionError):
        raise click.BadParameter(f"{text!r} is no share, such as 0.8") from None
    if not 0 <= gate.threshold <= 1:
        raise click.BadParameter(f"a share is from 0 to 1, not {text}")
    return gate


def run(
    chosen: dict[str, Any], total: int | None, work: Callable[[Asker, Callable[[Answered], None]], Awaitable[Found]]
) -> Found:
    """Opens the server, draws the bar, runs. A request error is exit status 2; answers so far are kept."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)

    async def all_of_it() -> Found:
        wire = Wire(
            base_of(chosen["url"]),
            api_key=chosen["api_key"],
            concurrency=chosen["parallel"],
            timeout_s=chosen["timeout"],
        )
        try:
            asker = await find_asker(wire, chosen["route"], chosen["model"])
            if chosen["flush"]:
                await asker.flush()
            task = progress.add_task("questions", total=total)
            return await work(asker, lambda _: progress.advance(task))
        finally:
            await wire.close()

    try:
        with progress:
            return asyncio.run(all_of_it())
    except CouldNotRun as error:
        click.echo(f"could not run: {error}", err=True)
        sys.exit(2)


def base_of(url: str) -> str:
    """The server's base, also of what OpenAI's clients call so, which ends in /v1."""
    return (url if "//" in url else f"http://{url}").removesuffix("/").removesuffix("/v1")


def _running(chosen: dict[str, Any]) -> dict[str, Any]:
    return {"path": chosen["out"], "parallel": chosen["parallel"], "overwrite": chosen["overwrite"]}


def write(
    paths: dict[str, Any], content: dict[str, Any], named: Sequence[tuple[str, dict[str, Any]]], compared: str = ""
) -> None:
    if paths.get("json_path"):
        write_named(paths["json_path"], orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
    if paths.get("html_path") and named:
        gate = content.get("gate")
        write_named(paths["html_path"], report.page(named, compared, gate and gate["threshold"]).encode())
