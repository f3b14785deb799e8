"""`zerokl tune`: search schedules for a model's layers on this GPU, and write the winners where a start finds them."""

from __future__ import annotations

from pathlib import Path

import click

from zerokl.bench.tuned import ROWS, still_good
from zerokl.cli.bench import axes_of
from zerokl.errors import CallerError
from zerokl.ops import winners


@click.command()
@click.option("--model", default="", help="Take the layers of this model; else those of Qwen3-8B.")
@click.option(
    "--rows", multiple=True, type=click.IntRange(1, 64), help="Tokens of a step (repeatable); else five of them."
)
@click.option("--layers", multiple=True, help="Only these: qkv, out, gate_up, down, head.")
@click.option(
    "--most", default=40, show_default=True, type=click.IntRange(1), help="Ways to try per layer, rows and kind."
)
@click.option("--out", type=click.Path(path_type=Path), help="Write here, not where the package keeps them.")
def tune(model: str, rows: tuple[int, ...], layers: tuple[str, ...], most: int, out: Path | None) -> None:
    """Find faster kernels for a model on this GPU.

    Every candidate's bits are compared with the reference schedule's; what is written is compared again at every start.
    """
    try:
        from zerokl.bench import tune as search
        from zerokl.bench.kernels import layers_of
    except ImportError as error:
        raise CallerError("zerokl tune needs a GPU: pip install 'zerokl[cuda]'") from error
    if not search.is_possible():
        raise CallerError("zerokl tune: torch finds no GPU here")
    kinds = {name: kind for name, kind in layers_of(axes_of(model)).items() if not layers or name in layers}
    counts, place = rows or ROWS, out or winners.PATH
    earlier = winners.entries(place) if place.exists() else []
    for found in search.search(kinds, counts, most):
        click.echo(
            f"{found.layer:8s} {found.shape.rows:3d} rows: {found.us:8.2f} us by {list(found.schedule)}, "
            f"{found.before_us:8.2f} before; {found.tried} tried, {found.rejected} rejected"
            f"{', kept' if found.won else ''}"
        )
        earlier = still_good(earlier, found) + ([found.entry] if found.won else [])
        place.write_text(winners.written(search.measured_with(), earlier))  # at once: a search may be stopped
