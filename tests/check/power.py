"""How good is the checker? Two hundred random trials, two hundred clean runs, and how rare a defect may be:

    python -m tests.check.power --jobs 2

The tables go to the docs. Each trial is a whole run of the checker, default size, against a simulated server with one
planted defect that spoils one in N of the rows that have its cause.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor

import click

from tests.check.defects import DEFECTS
from tests.check.trials import GRADED, Draw, Outcome, draws, judged, run_draw

STRENGTHS = (1, 8, 64, 512)
BUCKETS = (0, 1, 3, 6, 12, 50, 10**9)


@click.command()
@click.option("--trials", default=230, show_default=True, help="Random ones; those with too few events don't count.")
@click.option("--clean", default=200, show_default=True, help="Runs against a server without a defect.")
@click.option("--seeds", default=5, show_default=True, help="Runs of each defect at each strength.")
@click.option("--jobs", default=1, show_default=True, help="Processes.")
def main(trials: int, clean: int, seeds: int, jobs: int) -> None:
    def run(draws: Iterable[Draw]) -> list[Outcome]:
        return [told(outcome) for outcome in pool.map(run_draw, draws)]

    with ProcessPoolExecutor(jobs) as pool:
        curve = [
            Draw(defect, strength, 1000 + seed) for defect in GRADED for strength in STRENGTHS for seed in range(seeds)
        ]
        random = run(draws(trials))
        summary(random)
        alarms = sum(one.detected for one in run(Draw("", 1, seed) for seed in range(clean)))
        write(f"{alarms} alarms in {clean} clean runs")
        graded = run(curve)
        if graded:
            table(graded, seeds)
        by_events([*random, *graded])


def told(outcome: Outcome) -> Outcome:
    """Each one at once, for those who wait."""
    sys.stderr.write(f"{outcome}\n")
    return outcome


def summary(outcomes: Sequence[Outcome]) -> None:
    """The two hundred, and what was missed or misnamed among them."""
    counted = judged(outcomes)
    seen, named = sum(one.detected for one in counted), sum(one.detected and one.named for one in counted)
    write(f"{len(counted)} trials with at least 6 expected events: {seen} seen, {named} seen and named")
    for one in counted:
        if not (one.detected and one.named):
            kinds = ", ".join(kind.value for kind in one.kinds) or "nothing"
            write(f"  {one.defect}, one in {one.strength}, seed {one.seed}, {one.events} events: {kinds}")


def table(outcomes: Sequence[Outcome], seeds: int) -> None:
    write("")
    write(f"| defect | {' | '.join(f'1 in {strength}' for strength in STRENGTHS)} |")
    write("|---" * (1 + len(STRENGTHS)) + "|")
    for defect in GRADED:
        cells = [
            cell([one for one in outcomes if (one.defect, one.strength) == (defect, strength)])
            for strength in STRENGTHS
        ]
        write(f"| {DEFECTS[defect][0]} | {' | '.join(cells)} |")
    write(f"\n{seeds} runs each: seen, called by the right name (events in an average run)")


def cell(outcomes: Sequence[Outcome]) -> str:
    events = sum(one.events for one in outcomes) / len(outcomes)
    return f"{_seen(outcomes)}, {_named(outcomes)} ({events:.0f})"


def by_events(outcomes: Sequence[Outcome]) -> None:
    """The power curve: of all graded runs, by how many things were really spoiled."""
    write("")
    write("| things spoiled in the run | runs | seen | called by the right name |")
    write("|---|--:|--:|--:|")
    for low, high in itertools.pairwise(BUCKETS):
        found = [one for one in outcomes if low <= one.events < high]
        if found:
            words = f"{low} or more" if high == BUCKETS[-1] else f"{low}" if high == low + 1 else f"{low} to {high - 1}"
            write(f"| {words} | {len(found)} | {_percent(_seen(found), found)} | {_percent(_named(found), found)} |")


def _seen(outcomes: Iterable[Outcome]) -> int:
    return sum(one.detected for one in outcomes)


def _named(outcomes: Iterable[Outcome]) -> int:
    return sum(one.detected and one.named for one in outcomes)


def _percent(part: int, whole: Sequence[Outcome]) -> str:
    return f"{100 * part / len(whole):.0f} %"


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
