"""`zerokl`: the commands by name, each imported only when it is asked for."""

from __future__ import annotations

import importlib

import click

import zerokl
from zerokl.cli.complaints import in_one_line

COMMANDS = {
    "serve": ("zerokl.cli.serve", "serve", "Serve a model over HTTP."),
    "generate": ("zerokl.cli.generate", "generate", "Generate text, token by token."),
    "inspect": ("zerokl.cli.inspect", "inspect", "Say what a model is and whether it will run."),
    "check": ("zerokl.check.cli", "check", "Prove that a server's bits don't move."),
    "record": ("zerokl.check.recording", "record_command", "Keep a server's answers with all their bits."),
    "replay": ("zerokl.check.recording", "replay_command", "Compare kept answers with a server of today."),
    "bench": ("zerokl.cli.bench", "bench", "Measure the speed of a server, an engine, kernels."),
    "tune": ("zerokl.cli.tune", "tune", "Find faster kernels for a model on this GPU."),
    "eval": ("zerokl.evals.cli", "evaluate", "Evaluate a server's answers, with honest error bars."),
    "suite": ("zerokl.suites.cli", "suite", "Run tests by stage, one process per file."),
}


class LazyGroup(click.Group):
    """Knows its commands' names and one-line helps without importing them."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in COMMANDS.items()])

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if arguments and arguments[0] not in COMMANDS and not arguments[0].startswith("-"):
            import difflib  # 5 ms of every start

            near = difflib.get_close_matches(arguments[0], COMMANDS, n=1, cutoff=0)[0]
            context.fail(f"No command {arguments[0]!r}; the nearest is {near!r}.")
        return super().resolve_command(context, arguments)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(zerokl.__version__, prog_name="zerokl")
def commands() -> None:
    """An LLM server whose bits don't move, and the checker that proves it."""


def main() -> None:
    """The console script. What the caller got wrong is one line, without a traceback."""
    raise SystemExit(in_one_line(commands))
