"""`zerokl check URL`: does this server give the same bits for the same request, whatever else it does?"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console

from zerokl.check.cases import CASES
from zerokl.check.checking import Options, run_check
from zerokl.check.outcome import CouldNotRun
from zerokl.check.report import as_json
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
@click.option("--api-key", default="", envvar="ZEROKL_API_KEY", help="Sent as a bearer token.")
@click.option("--seed", default=0, show_default=True, help="All prompts, seeds and orders follow from it.")
@click.option("--max-new-tokens", type=click.IntRange(8), help="Upper limit of generated tokens per request.")
@click.option("--concurrency", default=64, show_default=True, type=click.IntRange(2), help="Connections at a time.")
@click.option("--budget", type=float, metavar="SECONDS", help="Fit the run into this time; the rest could not run.")
@click.option("--max-requests", type=int, help="Stop after this many HTTP requests.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds to wait for one answer.")
@click.option("--corpus", type=TEXT, help="Own text for the natural prompts.")
@click.option("--diagnose/--no-diagnose", default=True, help="Name the kind of a difference, by controlled re-runs.")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=list_cases, help="List the cases.")
def check(url: str, json_path: Path | None, corpus: Path | None, against: str, **chosen: Any) -> None:
    """Compare the bits of a server's answers over circumstances that must not matter.

    URL is the server's base, such as http://127.0.0.1:30000. Exit status: 0 equal, 1 different, 2 could not run.
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
        text=corpus.read_text("utf-8") if corpus else "",
    )
    console = Console(stderr=str(json_path) == "-")
    try:
        report = asyncio.run(run_check(options, console))
    except CouldNotRun as error:
        console.print(f"could not run: {error}", style="yellow", highlight=False, markup=False)
        sys.exit(2)
    show(console, report)
    if json_path is not None:
        write(json_path, orjson.dumps(as_json(report), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
    sys.exit(report.exit_code)


def with_scheme(url: str) -> str:
    return url if "//" in url else f"http://{url}"


def write(path: Path, content: bytes) -> None:
    if str(path) == "-":
        sys.stdout.buffer.write(content + b"\n")
    else:
        path.write_bytes(content + b"\n")
