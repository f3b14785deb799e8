"""How rare may a defect be and still be seen? The table for the docs: `python -m tests.check.power --seeds 10`.

Each cell is so many whole runs of the checker, default size, against a simulated server with one planted defect that
spoils one in N of the rows that have its cause.
"""

from __future__ import annotations

import sys

import click

from tests.check.defects import DEFECTS
from tests.check.trials import GRADED, Outcome, trial

STRENGTHS = (1, 8, 64, 512)


@click.command()
@click.option("--seeds", default=10, show_default=True)
@click.option("--first-seed", default=1000, show_default=True)
def main(seeds: int, first_seed: int) -> None:
    names = " | ".join(f"1 in {strength}" for strength in STRENGTHS)
    write(f"| defect | {names} |")
    write("|---" * (1 + len(STRENGTHS)) + "|")
    for defect in GRADED:
        cells = [
            cell([trial(defect, strength, first_seed + number) for number in range(seeds)]) for strength in STRENGTHS
        ]
        write(f"| {DEFECTS[defect][0]} | {' | '.join(cells)} |")


def cell(outcomes: list[Outcome]) -> str:
    """Seen, called by the right name, and the spoiled rows of an average run."""
    seen, named = sum(one.detected for one in outcomes), sum(one.detected and one.named for one in outcomes)
    events = sum(one.events for one in outcomes) / len(outcomes)
    return f"{seen} seen, {named} named ({events:.0f} rows)"


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
