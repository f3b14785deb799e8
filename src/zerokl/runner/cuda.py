"""The GPU runner: a plan as one buffer of integers, a graph for the model, a graph for the logits, results later.

    host      pack n+1 ──▶ copy ─▶ launch ──▶ (scheduler commits n) ...
    device    ... step n ............│ copy n+1 │ model n+1 │ rows, logits, draw n+1 │ results n+1 ─▶ pinned memory
                        drawn ids ───┴────────────▲ a token that is pending in plan n+1 is read here

Everything but copies runs on one stream in the order of submission, so a step sees what earlier ones wrote and nothing
waits for the host. Copies have streams of their own, so that they are beside the model: what goes to the device waits
until the step before has read its last, what comes from there keeps the next one from being written. The host's buffers
take turns, each guarded by the event of its last copy.

Draws with a temperature alone happen on the device. Other draws (penalties, biases, masks, top-k, top-p, min-p) are
made by the CPU's operation on the copied float32 rows: the same function of the logits, so the same bits, but that
step's tokens are waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count, pairwise
from typing import Any

import torch
from msgspec import Struct, field

from zerokl import ops
from zerokl.errors import EngineError, UnsupportedModel
from zerokl.models import Model
from zerokl.ops.choices import Verdict
from zerokl.ops.triton import sample
from zerokl.ops.triton.admit import admit, admit_experts
from zerokl.ops.triton.embedding import gather, resolve
from zerokl.ops.triton.experts import MIXTURES
from zerokl.ops.triton.numbers import NARROW
from zerokl.ops.triton.ways import CHOICES, forbid_split_k
from zerokl.ops.work import CHUNK, LONG_ROWS
from zerokl.runner.buckets import (
    MAX_ROWS,
    PAGE_SIZE,
    ROW_BUCKETS,
    TOKEN_BUCKETS,
    Capacity,
    Layout,
    bucket_of,
    buckets_up_to,
)
from zerokl.runner.columns import Columns, logprobs_of, score_runs, to_host
from zerokl.runner.cuda_layers import LayerPools, heads_of, kinds_of
from zerokl.runner.draws import HEAD_COLUMNS, head_rows, is_plain
from zerokl.runner.graphs import Graphs, Outputs
from zerokl.runner.packing import Packed, pack_step, rehearsal, views_of
from zerokl.runner.wanted import Wanted, assembled, wanted_rows
from zerokl.types import (
    Logprobs,
    RequestId,
    Segment,
    SegmentResult,
    StatePool,
    StepPlan,
    StepResult,
    WindowPool,
)

BUFFERS = 3
"""Of the host: one being written, one being copied, one to spare."""


class Options(Struct, frozen=True):
    """What the operator may choose; none of it moves a bit."""

    max_tokens: int = 8192
    max_segments: int = 256
    decode_graphs: bool = True
    prefill_graphs: bool = True
    graph_tokens: tuple[int, ...] = TOKEN_BUCKETS
    """Buckets to capture."""


class PendingStep(Struct):
    """A step on the device. `result` waits for it."""

    step: int
    num_segments: int
    wanted: Wanted | None = None
    drawn: Any = None
    columns: list[Columns] = field(default_factory=list)
    done: Any = None

    def result(self) -> StepResult:
        """Raises EngineError if a row had no next token or no logprob."""
        if self.wanted is None:
            return StepResult(self.step, (SegmentResult(),) * self.num_segments)
        self.done.synchronize()
        tokens = self.drawn.tolist() if self.drawn is not None else []
        found = [Logprobs() for _ in self.wanted.runs]
        for columns in self.columns:
            found[columns.run] = found[columns.run].joined(logprobs_of(columns))
        if min(tokens, default=0) < 0:
            raise EngineError(f"step {self.step}: logits hold a NaN, a +inf or nothing but -inf")
        return StepResult(self.step, tuple(assembled(self.wanted, tokens, found, self.num_segments)))


class CudaRunner:
    """Runs plans on one GPU, and owns the KV pools. A `types.StepRunner`."""

    lag = 1
    device = "cuda"

    def __init__(
        self,
        model: Model,
        num_pages: int,
        options: Options,
        *,
        windows: Sequence[WindowPool] = (),
        states: StatePool | None = None,
        fill: float | None = None,
    ) -> None:
        """`windows`, `states`: as in `types.Pools`; `fill`: what unwritten slots hold (tests: NaN).

        Raises EngineError if no admitted kernel, or a captured graph, gives the reference bits.
        """
        forbid_split_k()
        self.model, self.num_pages, self.page_size, self.options = model, num_pages, PAGE_SIZE, options
        self.dtype = NARROW
        self.group = model.team.group
        """The other GPUs, or None."""
        self.stream = torch.cuda.Stream()
        self.window_pools, self.state_pool = tuple(windows), states
        if min(heads_of(model, layer) for layer in range(model.num_layers)) < 1:
            raise UnsupportedModel(f"{model.architecture}: a rank without heads isn't there on the GPU")
        self.capacity = Capacity(
            max_tokens=options.max_tokens,
            max_segments=min(options.max_segments, states.num_live if states else options.max_segments),
            table_width=-(-model.context_length // PAGE_SIZE),
            kinds=kinds_of(model)[0],
            chunk=CHUNK,
            tile_rows=LONG_ROWS,
            interval=states.interval if states else 0,
        )
        self.buckets = buckets_up_to(options.max_tokens, TOKEN_BUCKETS)
        self.stream.wait_stream(torch.cuda.current_stream())  # the weights come from there
        with torch.cuda.stream(self.stream):
            self._allocate(fill)
            self.verdicts = self._admit()
        self.graphs = Graphs(self.stream, is_shared=self.group is not None)
        self._capture()

    def submit(self, plan: StepPlan) -> PendingStep:
        """Queue the plan's work; returns at once unless a draw needs the host."""
        if not plan.segments:
            return PendingStep(plan.step, 0)
        with torch.cuda.stream(self.stream):
            parts, packed = self._run_model(plan.segments)
            wanted = wanted_rows(plan.segments, packed.row_starts)
            self.places.clear()
            self.places.update((plan.segments[i].request_id, place) for place, i in enumerate(wanted.drawing))
            pending = PendingStep(plan.step, len(plan.segments))
            if len(wanted.rows):
                self._answer(parts, wanted, pending)
            return pending

    def follow(self, plan: StepPlan) -> None:
        """Another rank's part of the same step; rank 0 draws."""
        if not plan.segments:
            return
        with torch.cuda.stream(self.stream):
            parts, packed = self._run_model(plan.segments)
            wanted = wanted_rows(plan.segments, packed.row_starts)
            self.places.clear()
            self.places.update((plan.segments[i].request_id, place) for place, i in enumerate(wanted.drawing))
            for table, rows in self._tables(wanted):
                self._head(parts, table, rows)
                self.table_read.record(self.stream)

    def memory_in_use(self) -> int:
        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    # ---- the model

    def _run_model(self, segments: Sequence[Segment]) -> tuple[Outputs, Packed]:
        host = self._next_buffer()
        packed = pack_step(segments, self.places, self.capacity, host.numpy())
        self._send(host[: packed.used])
        parts = self.graphs.run((packed.layout, "model"), lambda: self._model(packed.layout))
        self.inputs_read.record(self.stream)
        return parts, packed

    def _model(self, layout: Layout) -> Outputs:
        """What the rows of the step that lies in the input buffer are made of."""
        views = views_of(layout, self.inputs)
        ragged, layers = self.layers.views(layout, views)
        if self.group is not None:
            self.group.begin()
        return self.model.rows(resolve(views["tokens"], self.drawn), ragged, layers)

    # ---- logits, draws, logprobs

    def _tables(self, wanted: Wanted) -> Iterator[tuple[Any, int]]:
        """Slices of the step's rows: (what the device needs to know of them, padded to a bucket; how many count)."""
        total = len(wanted.rows)
        padded = total // MAX_ROWS * MAX_ROWS + (bucket_of(total % MAX_ROWS, ROW_BUCKETS) if total % MAX_ROWS else 0)
        if not total:
            return
        table = torch.from_numpy(head_rows(wanted, padded)).pin_memory()
        for first in range(0, total, MAX_ROWS):
            yield table[first : min(first + MAX_ROWS, padded)], min(first + MAX_ROWS, total) - first

    def _answer(self, parts: Outputs, wanted: Wanted, pending: PendingStep) -> None:
        num_draws, first = len(wanted.draws), 0
        for table, rows in self._tables(wanted):
            logits, drawn = self._head(parts, table, rows)
            last = first + rows
            stop = max(first, min(last, num_draws))
            if first < stop:
                self._place_draws(logits, drawn, wanted.draws[first:stop], first)
            if wanted.runs:
                given = self.head_table[stop - first : last - first, 1]
                targets = torch.cat((self.drawn[first:stop], given)) if first < stop else given
                pending.columns += score_runs(wanted, first, last, logits, targets)
            self.table_read.record(self.stream)
            first = last
        pending.wanted = wanted
        self.leaving.wait_stream(self.stream)
        with torch.cuda.stream(self.leaving):
            pending.drawn = to_host(self.drawn[:num_draws]) if num_draws else None
            self.drawn_read.record(self.leaving)
            pending.done = torch.cuda.Event()
            pending.done.record(self.leaving)

    def _head(self, parts: Outputs, table: Any, count: int) -> tuple[Any, Any]:
        """(logits, drawn ids) of the first `count` of a bucket of rows; padding rows compute row 0 again."""
        bucket = len(table)
        rows = self.head_table[:bucket]
        self._bring(rows, table, self.table_read, self.table_there)
        for part, chosen in zip(parts, self.head_parts, strict=True):
            gather(rows, part, chosen)
        logits, drawn = self.graphs.run((bucket, "head"), lambda: self._head_of(bucket))
        return logits[:count], drawn[:count]

    def _head_of(self, bucket: int) -> Outputs:
        if self.group is not None:
            self.group.begin()
        logits = self.model.logits_of(*(part[:bucket] for part in self.head_parts))
        if self.group is not None and self.group.rank:
            return logits, logits  # rank 0 draws
        rows = self.head_table[:bucket]
        return logits, sample.sample(logits, rows[:, 2].view(torch.float32), rows[:, 3:])

    def _place_draws(self, logits: Any, drawn: Any, draws: Sequence[ops.Draw], first: int) -> None:
        """Leave the drawn ids where results and the next step look for them."""
        self.stream.wait_event(self.drawn_read)
        self.drawn[first : first + len(draws)].copy_(drawn[: len(draws)])
        on_host = [place for place, draw in enumerate(draws) if not is_plain(draw)]
        if on_host:
            places = torch.tensor(on_host, device=self.device)
            ids = ops.sample(logits[places].cpu().numpy(), [draws[place] for place in on_host])
            self.drawn[first + places] = torch.from_numpy(ids).to(self.device)

    # ---- buffers

    def _allocate(self, fill: float | None) -> None:
        largest = self.capacity.layout(self.buckets[-1], False)
        self.layers = LayerPools(
            self.model, self.num_pages, self.window_pools, self.state_pool, self.dtype, self.device, fill
        )
        short = self.capacity.layout(bucket_of(self.capacity.max_segments, TOKEN_BUCKETS), True)
        size = max(largest.size, short.size)
        self.inputs = torch.zeros(size, dtype=torch.int32, device=self.device)
        self.hosts = [torch.zeros(size, dtype=torch.int32).pin_memory() for _ in range(BUFFERS)]
        self.copied = [torch.cuda.Event() for _ in range(BUFFERS)]
        self.arriving, self.leaving = torch.cuda.Stream(), torch.cuda.Stream()
        """Of copies to the device, and from it."""
        self.inputs_read, self.table_there, self.table_read, self.drawn_read = (torch.cuda.Event() for _ in range(4))
        self.turns = count()
        self.turn = 0
        self.head_table = torch.zeros((MAX_ROWS, HEAD_COLUMNS), dtype=torch.int32, device=self.device)
        num_ids = self.capacity.max_segments + MAX_ROWS
        if self.group is None:
            self.drawn = torch.zeros(num_ids, dtype=torch.int32, device=self.device)
        else:
            self.group.allocate(self._largest_part(), num_ids)
            self.drawn = self.group.ids
        self.places: dict[RequestId, int] = {}
        """Where `drawn` has the token of each request that the last step drew for."""

    def _largest_part(self) -> int:
        """Numbers that ranks exchange at once, the same on all: rows of the residual stream, or logits."""
        matrices = list(self.model.weights.matrices())
        bounds = (pairwise(m.bounds) for m in matrices if isinstance(m, ops.VocabularyShard))
        widest = max((last - first for one in bounds for first, last in one), default=1)
        hidden = max((m.shape[0] for m in matrices if isinstance(m, ops.InputShard)), default=1)
        return max(self.buckets[-1] * max(hidden, self.model.config.axes["E"]), MAX_ROWS * widest)

    def _next_buffer(self) -> Any:
        """A host buffer that no copy is reading."""
        self.turn = next(self.turns) % BUFFERS
        self.copied[self.turn].synchronize()
        return self.hosts[self.turn]

    def _send(self, host: Any) -> None:
        """Copy a step's integers to the device, behind the steps that still read the ones before."""
        self._bring(self.inputs[: len(host)], host, self.inputs_read, self.copied[self.turn])

    def _bring(self, place: Any, host: Any, is_free: Any, is_there: Any) -> None:
        """Copy to a place once it is free; the stream waits until it is there."""
        self.arriving.wait_event(is_free)
        with torch.cuda.stream(self.arriving):
            place.copy_(host, non_blocking=True)
            is_there.record(self.arriving)
        self.stream.wait_event(is_there)

    # ---- start

    def _admit(self) -> list[Verdict]:
        """Compare every kernel choice of this model, at every bucket, with the reference schedule."""
        CHOICES.admitted.clear()
        CHOICES.seen.clear()
        MIXTURES.seen.clear()
        self._rehearse(1, True)
        parts = self._model(self.capacity.layout(1, True))
        body = {shape._replace(rows=0) for shape in CHOICES.seen}
        CHOICES.seen.clear()
        self.head_parts = [
            torch.zeros((MAX_ROWS, part.shape[1]), dtype=part.dtype, device=self.device) for part in parts
        ]
        self._head_of(1)
        head = {shape._replace(rows=0) for shape in CHOICES.seen}
        verdicts = admit_experts(self.device, self.dtype)
        verdicts += admit(CHOICES, body, self.buckets, self.device, self.dtype)
        return verdicts + admit(CHOICES, head - body, ROW_BUCKETS, self.device, self.dtype)

    def _rehearse(self, tokens: int, is_short: bool) -> Packed | None:
        """Put a made-up step of the bucket into the input buffer; None if no step can be so large."""
        num_pages = min([self.num_pages, *(pool.num_pages for pool in self.window_pools)])
        segments = rehearsal(tokens, self.capacity, num_pages, self.model.context_length, is_short)
        if segments is None:
            return None
        host = self._next_buffer()
        packed = pack_step(segments, {}, self.capacity, host.numpy())
        self.inputs_read.record(self.stream)
        self._send(host[: packed.used])
        return packed

    def _rehearse_head(self) -> None:
        """Rows for the logits' graphs, the same at each call: a graph may overwrite them."""
        generator = torch.Generator(device=self.device).manual_seed(0)
        for part in self.head_parts:
            part.normal_(generator=generator)

    def _capture(self) -> None:
        """Graphs of every bucket that was asked for, the largest first, so that the others fit into its memory."""
        options, wanted = self.options, set(self.options.graph_tokens)
        short = buckets_up_to(options.max_segments, TOKEN_BUCKETS)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        with torch.cuda.stream(self.stream):
            for is_short, buckets in ((False, self.buckets), (True, short)):
                if options.decode_graphs if is_short else options.prefill_graphs:
                    for tokens in reversed(buckets):
                        packed = self._rehearse(tokens, is_short) if tokens in wanted else None
                        if packed is not None:
                            run, rows = partial(self._model, packed.layout), int(packed.row_starts[-1])
                            self.graphs.capture((packed.layout, "model"), run, rows=rows)
            if options.decode_graphs or options.prefill_graphs:
                for bucket in reversed(ROW_BUCKETS):
                    self.graphs.capture((bucket, "head"), partial(self._head_of, bucket), self._rehearse_head)
        torch.cuda.empty_cache()
        self.graphs.bytes = torch.cuda.memory_reserved() - before
