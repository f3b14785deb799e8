"""Which rows of a step need logits, and their answers: tokens drawn and logprobs of drawn and known tokens.

A prompt chunk wants no logits but its last row's, so a step's logits are computed for wanted rows only, in bounded
slices. The order of rows, the slices and the grouping move no bit, because each row of `ops.linear`, `ops.sample` and
`ops.score` depends on that row alone.

    rows     | of drawing segments, grouped by LogprobSpec | of scoring segments, grouped likewise |
    targets  | the tokens that are drawn                   | the known next tokens                 |
    runs     |   spec 1   |  (no logprobs)  |   spec 2     |       spec 1        |     spec 2      |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

import numpy as np
from msgspec import Struct, field

from zerokl import ops
from zerokl.errors import EngineError
from zerokl.types import Logprobs, LogprobSpec, Segment, SegmentResult

UNDRAWN = -1


class Run(Struct, frozen=True):
    """Consecutive wanted rows whose logprobs are wanted alike."""

    spec: LogprobSpec
    segments: list[int]
    bounds: list[int]
    """Segment i of the run has the wanted rows bounds[i] .. bounds[i + 1] - 1."""


class Wanted(Struct, frozen=True):
    """Wanted rows [R] of a step and the tokens they are about; the first `len(drawing)` rows draw theirs."""

    rows: np.ndarray
    targets: np.ndarray
    drawing: list[int]
    """The segment of each drawing row."""
    draws: list[ops.Draw]
    runs: list[Run]
    judges: list[ops.Draw] = field(default_factory=list)
    """How each row's token was drawn or would have been; empty: logprobs are of the raw logits."""
    in_order: bool = False
    """Wanted are all rows of the step, as they come: each segment is one token, and draws the next."""


def wanted_rows(segments: Sequence[Segment], row_starts: np.ndarray, processed: bool = False) -> Wanted:
    """What the segments ask for; `processed`: logprobs of the sampler's own distribution.

    Raises EngineError if targets reach beyond a segment's rows.
    """
    drawing = by_spec(segments, (i for i, segment in enumerate(segments) if segment.sample is not None))
    scoring = by_spec(segments, (i for i, segment in enumerate(segments) if len(segment.targets)))
    drawn = [i for group in drawing.values() for i in group]
    scored = [i for group in scoring.values() for i in group]
    starts = row_starts.tolist()  # few calls of numpy's: everything is cold here, and each takes 10 us
    rows = np.array([starts[i + 1] - 1 for i in drawn], np.int32)
    targets = np.array([UNDRAWN] * len(drawn), np.int32)
    if scored:
        rows = np.concatenate([rows, *(scored_rows(segments[i], starts[i]) for i in scored)])
        targets = np.concatenate([targets, *(np.asarray(segments[i].targets, np.int32) for i in scored)])
    draws = [draw_of(segments[i]) for i in drawn]
    return Wanted(
        rows,
        targets,
        drawn,
        draws,
        [
            *runs_of(drawing, [1] * len(drawn), 0),
            *runs_of(scoring, [len(segments[i].targets) for i in scored], len(drawn)),
        ],
        [*draws, *(judge for i in scored for judge in judges_of(segments[i]))] if processed else [],
        in_order=not scored and len(drawn) == starts[-1] and drawn == sorted(drawn),
    )


def answers(
    logits_of: Callable[..., np.ndarray],
    parts: Sequence[np.ndarray],
    wanted: Wanted,
    num_segments: int,
    slice_rows: int,
) -> list[SegmentResult]:
    """Each segment's result, from what the step's rows are made of; `slice_rows` rows of logits exist at a time.

    `logits_of`: the model's, for chosen rows of the parts.
    """
    targets, num_draws = wanted.targets.copy(), len(wanted.draws)
    found = [Logprobs() for _ in wanted.runs]
    for first in range(0, len(wanted.rows), slice_rows):
        last = min(first + slice_rows, len(wanted.rows))
        rows = slice(first, last) if wanted.in_order else wanted.rows[first:last]
        logits = logits_of(*(part[rows] for part in parts))
        if first < num_draws:
            stop = min(last, num_draws)
            targets[first:stop] = ops.sample(logits[: stop - first], wanted.draws[first:stop])
        if wanted.judges:
            logits = ops.process(logits, wanted.judges[first:last])
        for number, run in enumerate(wanted.runs):
            start, stop = max(first, run.bounds[0]), min(last, run.bounds[-1])
            if start < stop:
                part = ops.score(logits[start - first : stop - first], targets[start:stop], run.spec)
                found[number] = found[number].joined(part)
    return assembled(wanted, targets[:num_draws].tolist(), found, num_segments)


def assembled(wanted: Wanted, drawn: list[int], found: list[Logprobs], num_segments: int) -> list[SegmentResult]:
    """Hand each segment its token, its logprobs and its scores."""
    tokens = dict(zip(wanted.drawing, drawn, strict=True))
    logprobs: dict[int, Logprobs] = {}
    scores: dict[int, Logprobs] = {}
    for run, columns in zip(wanted.runs, found, strict=True):
        side = logprobs if run.bounds[0] < len(drawn) else scores
        for segment, (start, stop) in zip(run.segments, pairwise(run.bounds), strict=True):
            side[segment] = rows_of(columns, start - run.bounds[0], stop - run.bounds[0])
    return [SegmentResult(tokens.get(i), logprobs.get(i), scores.get(i)) for i in range(num_segments)]


def by_spec(segments: Sequence[Segment], wanted: Iterable[int]) -> dict[LogprobSpec | None, list[int]]:
    """The wanted segments' numbers, in groups that want the same logprobs."""
    groups: dict[LogprobSpec | None, list[int]] = {}
    for i in wanted:
        groups.setdefault(segments[i].logprobs, []).append(i)
    return groups


def runs_of(groups: dict[LogprobSpec | None, list[int]], counts: list[int], first: int) -> Iterable[Run]:
    """The groups' runs, over rows that begin with `first`; a group that wants no logprobs has none."""
    bounds = list(accumulate(counts, initial=first))
    start = 0
    for spec, group in groups.items():
        if spec is not None:
            yield Run(spec, group, bounds[start : start + len(group) + 1])
        start += len(group)


def scored_rows(segment: Segment, first_row: int) -> np.ndarray:
    """The step's rows whose next token is known and is to be scored."""
    stop = segment.score_start + len(segment.targets)
    if segment.logprobs is None or segment.score_start < 0 or stop > len(segment.tokens):
        raise EngineError(
            f"request {segment.request_id}: targets for rows {segment.score_start}..{stop - 1} of "
            f"{len(segment.tokens)}, logprobs {segment.logprobs}"
        )
    return np.arange(first_row + segment.score_start, first_row + stop, dtype=np.int32)


def rows_of(columns: Logprobs, start: int, stop: int) -> Logprobs:
    """Rows start .. stop - 1; every number has 4 bytes."""
    top, ids = 4 * columns.num_top, 4 * columns.num_ids
    return Logprobs(
        stop - start,
        columns.num_top,
        columns.num_ids,
        columns.chosen[4 * start : 4 * stop],
        columns.top_ids[top * start : top * stop],
        columns.top[top * start : top * stop],
        columns.ids[ids * start : ids * stop],
    )


def draw_of(segment: Segment) -> ops.Draw:
    """How the segment's next token, which comes at the position after its last row, is drawn."""
    assert segment.sample is not None
    return ops.Draw(segment.sample, segment.start + len(segment.tokens), segment.history, segment.mask)


def judges_of(segment: Segment) -> list[ops.Draw]:
    """How the segment's targets would have been drawn."""
    if segment.scored_as is None:
        raise EngineError(f"request {segment.request_id}: targets, but not how they would have been drawn")
    first = segment.start + segment.score_start + 1
    return [ops.Draw(segment.scored_as, first + place) for place in range(len(segment.targets))]
