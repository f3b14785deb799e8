"""`zerokl check URL`: does this server give the same bits for the same request, whatever else it does?"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console

from zerokl.check.baseline import new_divergences
from zerokl.check.cases import CASES
from zerokl.check.checking import Options, run_check, with_scheme
from zerokl.check.commands import shell
from zerokl.check.files import write_named
from zerokl.check.formats import junit, markdown
from zerokl.check.html import page
from zerokl.check.outcome import CouldNotRun, Status
from zerokl.check.report import as_json
from zerokl.check.run import Report
from zerokl.check.targets.detect import MAKERS
from zerokl.check.terminal import show


def names(_: click.Context, __: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    """Case names, comma-separated or repeated; an unknown one is an error that lists them all."""
    chosen = tuple(name.strip() for value in values for name in value.split(",") if name.strip())
    known = [case.name for case in CASES]
    for name in chosen:
        if name not in known:
            raise click.BadParameter(f"no case {name!r}; there are: {', '.join(known)}")
    return chosen


def seconds(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """90, 90s or 15m."""
    if value is None:
        return None
    number, factor = (value[:-1], 60) if value.endswith("m") else (value.removesuffix("s"), 1)
    try:
        found = float(number) * factor
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise click.BadParameter(f"{value!r} is no time; 90, 90s and 15m are")
    return found


def list_cases(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        for case in CASES:
            click.echo(f"{case.name:15} {case.title}")
        context.exit()


FILE = click.Path(path_type=Path, dir_okay=False)
TEXT = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command()
@click.argument("url")
@click.option("--target", type=click.Choice(["auto", *MAKERS]), default="auto", help="What kind of server it is.")
@click.option("--model", default="", help="Model name to send, where a route wants one.")
@click.option("--against", default="", metavar="URL", help="Compare with a second server, request by request.")
@click.option("--quick", is_flag=True, help="A useful verdict within a minute.")
@click.option("--cases", multiple=True, callback=names, help="Only these, by name, comma-separated (repeatable).")
@click.option("--json", "json_path", type=FILE, help="Write everything to this file (- for standard output).")
@click.option("--html", "html_path", type=FILE, help="Write a page for people.")
@click.option("--markdown", "markdown_path", type=FILE, help="Write a summary for a pull request.")
@click.option("--junit", "junit_path", type=FILE, help="Write test results for CI.")
@click.option("--baseline", type=TEXT, help="An earlier --json report: only what is new in this one is a difference.")
@click.option(
    "--fail-on",
    type=click.Choice(["any", "different", "never"]),
    default="any",
    help="When the exit status isn't 0: any (1 different, 2 could not run), different only, or never.",
)
@click.option("--api-key", default="", envvar="ZEROKL_API_KEY", help="Sent as a bearer token.")
@click.option("--seed", default=0, show_default=True, help="All prompts, seeds and orders follow from it.")
@click.option("--max-new-tokens", type=click.IntRange(8), help="Upper limit of generated tokens per request.")
@click.option("--concurrency", default=64, show_default=True, type=click.IntRange(2), help="Connections at a time.")
@click.option("--budget", metavar="TIME", callback=seconds, help="Fit the run into 90s or 15m; the rest could not run.")
@click.option("--max-requests", type=int, help="Stop after this many HTTP requests.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds to wait for one answer.")
@click.option("--log", type=TEXT, help="The server's log file (SGLang, vLLM): what it says of batches is evidence.")
@click.option("--restart-command", metavar="COMMAND", help="Shell command that restarts the server, and returns.")
@click.option("--other-weights", default="", metavar="FOLDER", help="Weights to load in between, and to leave again.")
@click.option("--corpus", type=TEXT, help="Own text for the natural prompts.")
@click.option("--diagnose/--no-diagnose", default=True, help="Name the kind of a difference, by controlled re-runs.")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=list_cases, help="List the cases.")
def check(url: str, corpus: Path | None, against: str, baseline: Path | None, fail_on: str, **chosen: Any) -> None:
    """Compare the bits of a server's answers over circumstances that must not matter.

    URL is the server's base, such as http://127.0.0.1:30000; or hf:FOLDER for a Hugging Face model in this process
    (hf:FOLDER?dtype=float32 computes in another dtype). Exit status: 0 equal, 1 different, 2 could not run.
    """
    options = Options(
        url=with_scheme(url),
        against=with_scheme(against) if against else "",
        target=chosen["target"],
        model=chosen["model"],
        quick=chosen["quick"],
        cases=chosen["cases"],
        api_key=chosen["api_key"],
        seed=chosen["seed"],
        max_new_tokens=chosen["max_new_tokens"],
        concurrency=chosen["concurrency"],
        budget_s=chosen["budget"],
        max_requests=chosen["max_requests"],
        timeout_s=chosen["timeout"],
        diagnose=chosen["diagnose"],
        restart=shell(chosen["restart_command"]) if chosen["restart_command"] else None,
        log=chosen["log"],
        other_weights=chosen["other_weights"],
        text=corpus.read_text("utf-8") if corpus else "",
    )
    console = Console(stderr=any(str(chosen[name]) == "-" for name in WRITERS))
    report = run_or_exit(run_check(options, console), console)
    show(console, report)
    sys.exit(exit_status(finish(report, console, chosen, baseline), fail_on))


def run_or_exit(run: Coroutine[Any, Any, Report], console: Console) -> Report:
    """Exit status 2 and one line where not even the server's nature can be found out."""
    try:
        return asyncio.run(run)
    except CouldNotRun as error:
        console.print(f"could not run: {error}", style="yellow", highlight=False, markup=False)
        sys.exit(2)


def finish(report: Report, console: Console, paths: dict[str, Any], baseline: Path | None) -> int:
    """Writes the files that were asked for; the exit status after the baseline has had its say."""
    content = as_json(report)
    if baseline is not None and report.status is Status.DIFFERENT:
        content["new_divergences"] = len(new_divergences(content, orjson.loads(baseline.read_bytes())))
        content["exit_code"] = 1 if content["new_divergences"] else 0
        console.print(f"{content['new_divergences']} of {len(content['divergences'])} answers differ in a new way")
    for name, writer in WRITERS.items():
        if paths.get(name) is not None:
            write(paths[name], writer(content))
    return int(content["exit_code"])


def exit_status(code: int, fail_on: str) -> int:
    return {"any": code, "different": code if code == 1 else 0, "never": 0}[fail_on]


WRITERS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "json_path": lambda content: orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS),
    "html_path": lambda content: page(content).encode(),
    "markdown_path": lambda content: markdown(content).encode(),
    "junit_path": junit,
}


def write(path: Path, content: bytes) -> None:
    if str(path) == "-":
        sys.stdout.buffer.write(content + b"\n")
    else:
        write_named(path, content + b"\n")
