"""Which way a chain is computed, by shape and token bucket: nothing else may decide. No torch.

Rows above `LIBRARY_FROM` go to cuBLAS, which is called with split-K forbidden and only at bucket sizes, each of which
`triton/admit.py` has compared with the reference schedule; the rest, and whatever was not admitted, to a schedule of
our own. Up to 64 rows stream their weights (`triton/streamed.py` eight, `triton/streamed_rows.py` more). The tables
are measured (docs/log.md); for other shapes the rules below pick by the same pattern, unless `zerokl tune` has found
better (`winners.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd
from typing import NamedTuple

from zerokl.errors import EngineError
from zerokl.ops.winners import winner

PERSISTENT_FROM, GATED_GROUPS_FROM = 1024, 5120
"""Rows from which a gated chain's tiles keep every processor busy, with packed weights and without: for up to 4,096
rows the library and the gate after it are faster."""
PACKED_UP_TO = 64
"""Rows of a packed weight that its codes are read for; for more of them it is unpacked."""
LIBRARY_FROM = 24
GATED_LIBRARY_FROM = 16
"""More rows than this are the library's: below, it is far too slow without split-K (276 us against 28 at 16 rows of a
depth of 12,288). A gated chain of ours has two tiles of weights per program and falls behind earlier."""


class Schedule(NamedTuple):
    """How a chain is cut into programs. Nothing in it can move a bit."""

    rows: int
    columns: int
    depth: int
    """Of one step of the loop over k."""
    swapped: bool
    """Weights are the left operand: few rows of x then fill the matrix unit's narrow side."""
    warps: int
    stages: int


class Persistent(NamedTuple):
    """How a gated chain is cut into tiles that a fixed number of programs work through."""

    rows: int
    columns: int
    depth: int
    band: int
    """Rows of tiles that are worked through column by column."""
    warps: int
    stages: int


class GatedGroups(NamedTuple):
    """The same where two groups of four warps multiply what another warp loads."""

    stages: int
    """Places for what is loaded."""
    band: int


class LeafTiles(NamedTuple):
    """The same for a sum in leaves, one after the other in a program's registers."""

    rows: int
    columns: int
    depth: int
    band: int
    warps: int
    stages: int


class LeafGroups(NamedTuple):
    """The same where two groups of four warps multiply what another warp loads."""

    stages: int
    """Places for what is loaded."""
    band: int


class BlockGroups(NamedTuple):
    """How a sum that is scaled every 128 k is cut into tiles, for many rows."""

    passes: int
    """Of 128 columns over each block: two groups of 64 rows make two, three groups one."""
    depth: int
    stages: int
    """Places for what is loaded, of so many k."""
    band: int


class Packed(NamedTuple):
    """How few rows meet a packed weight whose codes become numbers in registers."""

    rows: int
    panels: int
    """Of 16 outputs, per program: its warps."""
    tiles: int
    """Of 64 k, per copy."""
    copies: int
    """Places for copies: all but one are on their way."""


class Streamed(NamedTuple):
    """How few rows meet weights that bulk copies bring while the kernel ahead still runs."""

    columns: int
    """Of a tile, 16 for each warp."""
    depth: int
    """Of one copy."""
    stages: int
    """Copies on their way."""
    programs: int
    """At most."""
    soon: bool
    """The next kernel may come when all programs have begun, not when they are at their last tile's end."""


class StreamedRows(NamedTuple):
    """The same for up to 64 rows: one warp loads, four multiply."""

    columns: int
    """Of a tile: a multiple of 16, up to 256 (gated: 128)."""
    stages: int
    """Steps of 64 k on their way."""
    programs: int
    """At most."""
    soon: bool
    """As of `Streamed`."""


class OneRow(NamedTuple):
    """How one row meets a packed weight: by the warpgroup's matrix instruction, 64 outputs at a time."""

    panels: int
    """Of 16 outputs, that a program really does; 4 if gated."""
    tiles: int
    """Of 64 k, per copy; three at least if one team is alone."""
    copies: int
    """Places for copies: all but one are on their way."""
    teams: int = 1
    """Two take turns: one unpacks while the other multiplies."""


class Relay(NamedTuple):
    """How one row meets a packed weight where its chain is long: some of a program's warps unpack for the others."""

    panels: int
    """Of 16 outputs, per program."""
    groups: int
    """Of four warps that unpack: one, or two that take turns."""


class WarpRow(NamedTuple):
    """How one row meets a packed weight that is wide or cut in leaves: a warp for 16 outputs of each leaf, or of gate
    and of up.
    """

    panels: int
    """Of 16 outputs, per program."""
    tiles: int
    """Of 64 k, per copy."""
    copies: int
    """Places for copies: all but one are on their way."""


REFERENCE = Schedule(16, 64, 64, False, 4, 3)
"""What every other way to compute a chain is compared with."""

LIBRARY = "library"
LIBRARY_LEAVES = "library leaves"
"""Equal leaves as one batch of products, then the tree."""
REFERENCE_LEAVES = "reference leaves"
"""The reference schedule for each leaf, and plain additions."""

EACH_LEAF = "each leaf"
"""Leaves of a packed weight by themselves, each by the way that its own shape has, then the tree."""

BLOCKS = "fp8_block"
"""The form whose sums are scaled every 128 k, so that no library can make them."""

Way = (
    Schedule | Persistent | GatedGroups | LeafTiles | LeafGroups | BlockGroups | Packed | Streamed | StreamedRows
    | OneRow | Relay | WarpRow | str
)  # fmt: skip


class Shape(NamedTuple):
    """One way that a weight is called. `rows` is a bucket."""

    rows: int
    columns: int
    depth: int
    gated: bool = False
    biased: bool = False
    added: bool = False
    wide: bool = False
    """The result stays float32."""
    ends: tuple[int, ...] = ()
    """Of a sum that ranks could share: where the leaves end that are summed here."""
    form: str = ""
    """Of a packed weight: its kind, and what its factor does. "": bfloat16."""
    normed: bool = False
    """x is one row that the product itself normalises."""


@dataclass(slots=True)
class Choices:
    """What was admitted on this machine, for the shapes of one model."""

    admitted: dict[Shape, Way] = field(default_factory=dict)
    seen: set[Shape] = field(default_factory=set)
    """Every shape that was asked for: what a model's weights are called with, as `admit` needs to know."""

    def of(self, shape: Shape) -> Way:
        """The admitted way; for a shape that nobody admitted, a schedule of ours."""
        way = self.admitted.get(shape)
        if way is None:
            self.seen.add(shape)
            return fallback(shape) if len(shape.ends) < 2 else EACH_LEAF if shape.form else leaf_fallback(shape)
        return way


@dataclass(frozen=True, slots=True)
class Verdict:
    """One candidate of one shape."""

    shape: Shape
    way: Way
    differing: int
    of: int


Compare = Callable[[Way, int], tuple[int, int]]
"""(way, rows) -> (outputs with other bits than the reference schedule's, outputs)."""


def settle(
    choices: Choices, kinds: Iterable[Shape], buckets: Iterable[int], comparing: Callable[[Shape, int], Compare]
) -> list[Verdict]:
    """Admit, for every kind (a Shape of any number of rows) at every bucket, the first candidate with equal bits.

    `comparing(kind, most rows)` makes the comparison for a kind. Raises EngineError if a shape is left with nothing.
    """
    verdicts, asked = [], {shape._replace(rows=0) for shape in kinds}
    # Only a single row is normed by its product: of more, the norm is a kernel of its own.
    for kind in sorted(asked | {kind._replace(normed=False) for kind in asked}):
        sizes = [rows for rows in sorted(buckets) if rows == 1 or not kind.normed]
        if not sizes:
            continue
        compare = comparing(kind, sizes[-1])
        for rows in sizes:
            shape = kind._replace(rows=rows)
            for way in candidates(shape):
                verdicts.append(Verdict(shape, way, *compare(way, rows)))
                if not verdicts[-1].differing:
                    choices.admitted[shape] = way
                    break
            else:
                raise EngineError(f"no way to compute {shape} gives the reference schedule's bits")
    return verdicts


def candidates(shape: Shape) -> list[Way]:
    """Ways to try, the best first; the reference schedule itself is the last resort.

    A packed weight's numbers are unpacked first, but for `Packed` and `OneRow`. Of a normed shape the ways that can't
    normalise have the norm's own kernel ahead.
    """
    if shape.normed:
        return [*normed(shape), *candidates(shape._replace(normed=False))]
    if len(shape.ends) > 1:
        return leaf_candidates(shape)
    if shape.form == BLOCKS:
        return [*packed(shape), *block_groups(shape), by_blocks(LARGE), by_blocks(REFERENCE)]
    first = GATED_LIBRARY_FROM if shape.gated else LIBRARY_FROM
    library = [LIBRARY] if shape.rows > first and not shape.biased else []
    whole = shape.gated and not shape.biased and shape.columns % TILES.columns == shape.depth % TILES.depth == 0
    persistent: list[Way] = [TILES] if whole and shape.form and shape.rows >= PERSISTENT_FROM else []
    if whole and not shape.form and shape.rows >= GATED_GROUPS_FROM:
        persistent = [GATED_GROUPS, TILES]
    few = [*tuned(shape), *streamed_rows(shape), *persistent]
    return [*packed(shape), *few, *library, *streamed(shape), fallback(shape), REFERENCE]


def normed(shape: Shape) -> list[Way]:
    """A way that normalises its one row of x itself while its first weights come."""
    plain = not (shape.form or shape.biased or shape.added or shape.wide or shape.ends)
    fits = shape.rows == 1 and shape.depth in NORMED_DEPTHS
    chosen = NORMED_GATED if shape.gated else NORMED if shape.columns > 4096 else NORMED._replace(columns=32)
    return [chosen] if plain and fits else []


def tuned(shape: Shape) -> list[Way]:
    """What `zerokl tune` found for a layer of this size and these rows, if it did."""
    if shape.form:
        return []
    found = winner(shape.rows, shape.columns, shape.depth, shape.gated, MOST_TUNED_ROWS)
    if found is None:
        return []
    kinds: dict[int, type[Schedule | Streamed | StreamedRows]] = {
        len(kind._fields): kind for kind in (Schedule, Streamed, StreamedRows)
    }
    way = kinds[len(found)](*found)
    possible = isinstance(way, Schedule) or (fits(way, shape) if isinstance(way, Streamed) else streamed_rows(shape))
    return [way] if possible else []


def streamed(shape: Shape) -> list[Way]:
    """For few rows of a weight that isn't packed."""
    narrow, usual, broad, gated = STREAMED
    chosen = gated if shape.gated else narrow if shape.columns <= 4096 else broad if shape.columns >= 16384 else usual
    way = chosen._replace(depth=dividing(chosen.depth, shape.depth))
    return [way] if shape.rows <= STREAMED_UP_TO and fits(way, shape) else []


def streamed_rows(shape: Shape) -> list[Way]:
    """For up to 64 rows, more than `streamed` takes, or leaves: each processor gets as many outputs as every other."""
    lengths = [stop - start for start, stop in pairwise((0, *(shape.ends or (shape.depth,))))]
    is_even = len(set(lengths)) == 1 and len(lengths) in (1, 2, 4, 8) and lengths[0] % 64 == 0
    fewer = STREAMED_UP_TO if len(lengths) == 1 else 0
    if not fewer < shape.rows <= STREAMED_ROWS_UP_TO or shape.form or shape.biased or not is_even:
        return []
    most = 48 if shape.gated else 192
    turns = -(-shape.columns // (PROCESSORS * most))
    columns = max(LEAST_STREAMED, -(-shape.columns // (PROCESSORS * turns * 16)) * 16)
    return [StreamedRows(columns, most_steps(columns, shape.gated), PROCESSORS, True)]


def most_steps(columns: int, gated: bool) -> int:
    """That a processor has room for."""
    room = 1 << (columns - 1).bit_length()
    return min(16, STREAMED_BYTES // ((64 + room * (2 if gated else 1)) * 128))


def fits(way: Streamed, shape: Shape) -> bool:
    """Copies are whole, and nothing is done with a sum but adding a residual or the gate."""
    return not (shape.form or shape.biased or shape.depth % way.depth)


def reference_of(shape: Shape) -> Way:
    """What others are compared with: a packed weight's, on its unpacked numbers."""
    if len(shape.ends) > 1:
        return REFERENCE_LEAVES
    return by_blocks(REFERENCE) if shape.form == BLOCKS else REFERENCE


def packed(shape: Shape) -> list[Way]:
    """How few rows of a packed weight are computed without storing its numbers."""
    if not shape.form or shape.rows > PACKED_UP_TO:
        return []
    rows = min(32, max(8, 1 << (shape.rows - 1).bit_length()))
    narrow, broad, gated = PACKED_TABLE[shape.form.rstrip("/"), rows]
    few: Way = gated if shape.gated else narrow if shape.columns <= 4096 else broad
    return [*relay(shape), *warp_row(shape), *one_row(shape), few]


def one_row(shape: Shape) -> list[Way]:
    """A way for one row alone, if the shape fits it."""
    if shape.rows > 1 or shape.form == BLOCKS:
        return []
    deep, narrow, broad, gated = ONE_ROW_TABLE[shape.form.rstrip("/")]
    if shape.gated:
        one = gated
    else:
        one = deep if shape.depth > shape.columns else narrow if shape.columns <= 4096 else broad
    return [one] if shape.depth % (64 * one.tiles * one.teams) == shape.columns % 16 == 0 else []


def relay(shape: Shape) -> list[Way]:
    """For one row of NVFP4, if programs of few panels cover the outputs with one for each processor."""
    plain = shape.form.startswith("nvfp4") and not (shape.gated or shape.biased or shape.columns % 16)
    if shape.rows > 1 or not plain or shape.depth % (RELAY_STEP * RELAY_GROUPS):
        return []
    panels = shape.columns // 16
    fitting = (count for count in (1, 2, 3) if panels % count == 0 and panels // count <= PROCESSORS)
    ways: list[Way] = [Relay(count, RELAY_GROUPS) for count in fitting]
    return ways[:1]


def block_groups(shape: Shape) -> list[Way]:
    """For many rows of whole tiles without bias."""
    one, two = BLOCK_GROUPS
    ways = [one, two] if shape.gated and shape.rows >= GATED_IN_ONE_PASS_FROM else [two, one]
    if shape.biased or shape.rows < BLOCK_GROUPS_FROM or shape.depth % 128:
        return []
    return [way for way in ways if shape.columns % ((64 if shape.gated else 128) * way.passes) == 0]


def by_blocks(schedule: Schedule) -> Schedule:
    """For sums that end every 128 k."""
    return schedule._replace(depth=128)


def leaf_candidates(shape: Shape) -> list[Way]:
    """The same for a sum in leaves: side by side for few rows, one batch of the library's for many if all are equal."""
    lengths = [stop - start for start, stop in pairwise((0, *shape.ends))]
    if shape.form:
        return [*warp_row(shape), EACH_LEAF, REFERENCE_LEAVES]
    fits = not shape.biased and shape.columns % LEAF_TILES.columns == 0
    fits = fits and all(length % LEAF_TILES.depth == 0 for length in lengths)
    large = fits and shape.rows >= LEAF_TILES_FROM
    tiles = [LEAF_TILES] if large else []
    is_even = len(set(lengths)) == 1
    groups = [LEAF_GROUPS] if large and is_even and in_groups(shape, lengths[0]) else []
    library = [LIBRARY_LEAVES] if shape.rows > LIBRARY_FROM and is_even else []
    return [*streamed_rows(shape), *groups, *library, *tiles, leaf_fallback(shape), REFERENCE_LEAVES]


def warp_row(shape: Shape) -> list[Way]:
    """For one row of equal leaves of whole copies, or of gate and up."""
    lengths = [stop - start for start, stop in pairwise((0, *(shape.ends or (shape.depth,))))]
    if shape.rows > min(1, PACKED_UP_TO) or shape.form == BLOCKS or len(set(lengths)) > 1:
        return []
    if len(lengths) not in ((1,) if shape.gated else (2, 4, 8)):
        return []
    deep, other, gated = WARP_ROW_TABLE[shape.form.rstrip("/")]
    way = gated if shape.gated else deep if shape.depth > shape.columns else other
    return [way] if lengths[0] % (64 * way.tiles) == shape.columns % (16 * way.panels) == 0 else []


def in_groups(shape: Shape, length: int) -> bool:
    """Leaves have two steps at least. If two are rounded to bf16, the compiler makes one product wait for the other."""
    leaves = len(shape.ends)
    return length >= 2 * LEAF_TILES.depth and (leaves in (4, 8) or (leaves == 2 and (shape.added or shape.wide)))


def leaf_fallback(shape: Shape) -> Schedule:
    """For leaves side by side: as for one of them alone, in shorter pipelines, so that more programs fit beside."""
    depth = gcd(*(stop - start for start, stop in pairwise((0, *shape.ends))))
    if shape.rows <= 8 and depth <= SHORT_LEAF:
        return SHORT_LEAVES
    chosen = fallback(shape._replace(depth=depth, ends=()))
    return chosen._replace(stages=max(2, min(chosen.stages, 3)))


def fallback(shape: Shape) -> Schedule:
    """A schedule of ours: few rows stream the weights, many fill the matrix unit."""
    if shape.form == BLOCKS:
        return by_blocks(REFERENCE)
    columns, depth = shape.columns * (2 if shape.gated else 1), shape.depth
    if shape.gated and 8 < shape.rows <= 16:
        return GATED._replace(depth=dividing(GATED.depth, depth))
    for most_rows, narrow, usual, broad in TABLE:
        if shape.rows <= most_rows:
            chosen = narrow if columns <= 4096 else broad if columns >= 16384 else usual
            return chosen._replace(depth=dividing(chosen.depth, depth))
    return LARGE._replace(depth=dividing(LARGE.depth, depth))


def dividing(most: int, depth: int) -> int:
    """The largest power of two up to `most` that divides the depth, but no less than 64: the tail is masked then."""
    step = most
    while step > 64 and depth % step:
        step //= 2
    return step


# rows up to   columns <= 4,096                        between                               >= 16,384
TABLE: tuple[tuple[int, Schedule, Schedule, Schedule], ...] = (
    (8, Schedule(8, 32, 256, True, 4, 6), Schedule(8, 64, 128, True, 2, 5), Schedule(8, 64, 128, True, 2, 5)),
    (16, Schedule(16, 32, 256, False, 2, 4), Schedule(16, 64, 128, True, 4, 5), Schedule(16, 64, 128, True, 4, 5)),
    (32, Schedule(32, 64, 128, True, 4, 5), Schedule(32, 64, 128, True, 4, 5), Schedule(32, 64, 128, True, 4, 5)),
    (64, Schedule(64, 32, 128, False, 4, 5), Schedule(64, 64, 128, True, 4, 4), Schedule(64, 128, 64, False, 4, 4)),
)
MOST_TUNED_ROWS = 64
STREAMED_UP_TO = 8
"""Rows. More of them take their own time in the matrix unit, and the plain chain is as fast."""
STREAMED_ROWS_UP_TO, PROCESSORS, LEAST_STREAMED, STREAMED_BYTES = 64, 132, 32, 205_000
# columns <= 4,096                       between                             >= 16,384                           gated
STREAMED = (
    Streamed(16, 256, 8, 264, True), Streamed(64, 256, 6, 132, True), Streamed(64, 128, 3, 396, False),
    Streamed(16, 256, 3, 396, True),
)  # fmt: skip
GATED = Schedule(16, 64, 64, True, 2, 6)
# kind, rows of a program  columns <= 4,096       more                    gated
PACKED_TABLE: dict[tuple[str, int], tuple[Packed, Packed, Packed]] = {
    ("nvfp4", 8): (Packed(8, 4, 8, 4), Packed(8, 4, 4, 6), Packed(8, 4, 8, 2)),
    ("nvfp4", 16): (Packed(16, 1, 4, 6), Packed(16, 1, 4, 6), Packed(16, 2, 4, 2)),
    ("nvfp4", 32): (Packed(32, 4, 4, 3), Packed(32, 4, 4, 3), Packed(32, 4, 4, 2)),
    ("fp8", 8): (Packed(8, 2, 4, 4), Packed(8, 4, 8, 4), Packed(8, 2, 4, 3)),
    ("fp8", 16): (Packed(16, 4, 4, 4), Packed(16, 1, 4, 6), Packed(16, 4, 4, 2)),
    ("fp8", 32): (Packed(32, 4, 4, 3), Packed(32, 4, 4, 3), Packed(32, 4, 4, 2)),
    (BLOCKS, 8): (Packed(8, 2, 2, 8), Packed(8, 2, 2, 8), Packed(8, 2, 2, 6)),
    (BLOCKS, 16): (Packed(16, 2, 2, 6), Packed(16, 2, 2, 6), Packed(16, 2, 2, 4)),
    (BLOCKS, 32): (Packed(32, 4, 2, 4), Packed(32, 4, 2, 4), Packed(32, 4, 2, 3)),
}
"""Measured, but for blocks, whose tiles are two."""
# deeper than broad            columns <= 4,096       more                   gated
ONE_ROW_TABLE: dict[str, tuple[OneRow, OneRow, OneRow, OneRow]] = {
    "nvfp4": (OneRow(4, 8, 2, 2), OneRow(4, 8, 2, 2), OneRow(4, 8, 2, 2), OneRow(4, 8, 3)),
    "fp8": (OneRow(2, 8, 3), OneRow(4, 4, 4), OneRow(4, 4, 7), OneRow(4, 4, 3)),
}
"""Measured, but for FP8's seven copies: with four of them two programs go to one processor where the kernel ahead left
some free, and take 13 us instead of 7.5 (docs/log.md)."""
# deeper than broad   less deep          gated; measured in whole steps
WARP_ROW_TABLE: dict[str, tuple[WarpRow, WarpRow, WarpRow]] = {
    "nvfp4": (WarpRow(2, 2, 4), WarpRow(1, 2, 3), WarpRow(2, 4, 3)),
    "fp8": (WarpRow(2, 2, 4), WarpRow(2, 2, 3), WarpRow(2, 2, 4)),
}
RELAY_STEP, RELAY_GROUPS, PROCESSORS = 1024, 2, 132
"""Depths are whole steps for each group."""
BLOCK_GROUPS = BlockGroups(1, 64, 5, 8), BlockGroups(2, 64, 4, 8)
BLOCK_GROUPS_FROM, GATED_IN_ONE_PASS_FROM = 512, 4096
NORMED, NORMED_GATED = Streamed(64, 128, 8, 132, True), Streamed(32, 128, 4, 396, True)
NORMED_DEPTHS = 1024, 2048, 4096
"""That both the norm's threads and the product's divide into whole eights."""
LARGE = Schedule(128, 128, 64, False, 8, 3)
TILES = Persistent(128, 128, 64, 16, 8, 3)
GATED_GROUPS = GatedGroups(4, 16)
LEAF_TILES = LeafTiles(128, 128, 64, 16, 8, 3)
LEAF_GROUPS = LeafGroups(5, 8)
LEAF_TILES_FROM = 512
SHORT_LEAVES, SHORT_LEAF = Schedule(8, 64, 128, True, 4, 3), 512
