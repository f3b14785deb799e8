"""A progress bar for long lists of prompts, on a terminal's standard error."""

from __future__ import annotations

from types import TracebackType

from zerokl.wire.records import Record


class Bar:
    """Counts prompts and tokens; shows nothing unless it is wanted."""

    def __init__(self, num_prompts: int, wanted: bool) -> None:
        self._tokens = 0
        if not wanted:
            self._bar = None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("prompts"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[tokens]} tokens"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("", total=num_prompts, tokens=0)

    def finished(self, record: Record) -> None:
        """One more prompt is done."""
        self._tokens += len(record.tokens)
        if self._bar is not None:
            self._bar.update(self._task, advance=1, tokens=self._tokens)

    def __enter__(self) -> Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
