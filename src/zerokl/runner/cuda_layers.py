"""What the layers of a model remember on the GPU: pools of keys, values and states, and each step's view of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zerokl import ops
from zerokl.errors import UnsupportedModel
from zerokl.models import Model
from zerokl.models.memory import Conv, Keys, StateSpec
from zerokl.ops.work import SHORT_ROWS, Work
from zerokl.runner.buckets import MAX_PARTS, PAGE_SIZE, Kind, Layout, named
from zerokl.types import StatePool, WindowPool


def kinds_of(model: Model) -> tuple[tuple[Kind, ...], list[int | None]]:
    """(the kinds of layers with keys, each layer's among them or None)."""
    found = [
        Kind(layer.keys.window, group_of(model, number, layer.keys)) if layer.keys else None
        for number, layer in enumerate(model.memory)
    ]
    kinds = tuple(dict.fromkeys(kind for kind in found if kind is not None))
    return kinds, [None if kind is None else kinds.index(kind) for kind in found]


def group_of(model: Model, layer: int, keys: Keys) -> int:
    """Query heads per key head, in the whole model."""
    return keys.sharing[0] if keys.sharing else heads_of(model, layer) // keys.num_kv_heads


def heads_of(model: Model, layer: int) -> int:
    """Query heads, which some architectures have another number of in each kind of layer."""
    by_layer = getattr(model.config, "heads", None)
    return int(by_layer(layer).num_heads if by_layer else model.config.num_heads)  # type: ignore[attr-defined]


class LayerPools:
    """Keys, values and states of every layer."""

    def __init__(
        self,
        model: Model,
        num_pages: int,
        windows: Sequence[WindowPool],
        states: StatePool | None,
        dtype: Any,
        device: str,
        fill: float | None,
    ) -> None:
        """`fill`: what unwritten slots hold (tests: NaN; narrow keys hold only that)."""
        self.kinds, self.kind_of_layer = kinds_of(model)
        self.is_plain, self.memory = not model.declares_memory, model.memory
        pages: dict[int | None, int] = {None: num_pages, **{pool.window: pool.num_pages for pool in windows}}
        specs = self.specs = [layer.keys for layer in model.memory if layer.keys]
        shapes = [(pages[spec.window], spec.num_kv_heads, PAGE_SIZE, spec.head_size) for spec in specs]
        kinds = [torch.float8_e4m3fn if spec.dtype == "fp8_e4m3" else dtype for spec in specs]
        self.keys = [torch.empty(shape, dtype=own, device=device) for shape, own in zip(shapes, kinds, strict=True)]
        self.values = [torch.empty_like(keys) for keys in self.keys]
        self.states = [
            [pool_of(spec, states, dtype, device) for spec in layer.states] if states else [] for layer in model.memory
        ]
        if fill is not None:
            self.fill(fill)
        self.parts = scratch([(spec.num_kv_heads, spec.head_size) for spec in specs], device)

    def fill(self, value: float) -> None:
        for tensor in (*self.keys, *self.values, *(pool for layer in self.states for pool in layer)):
            if tensor.dtype == torch.float8_e4m3fn:
                tensor.view(torch.uint8).fill_(0x7F)
            else:
                tensor.fill_(value)

    def views(self, layout: Layout, arrays: Mapping[str, Any]) -> tuple[ops.Ragged, Sequence[Any]]:
        """(the step's shape, what each layer is given) of the step that lies in these arrays."""
        shapes = [self._shape(number, layout, arrays) for number in range(len(self.kinds))]
        whole = shapes[0] if shapes else ops.Ragged(arrays["positions"], None, None, None, PAGE_SIZE)  # type: ignore[arg-type]
        pools = zip(self.keys, self.values, self.specs, strict=True)
        keys = [None if kind is None else kept(*next(pools), shapes[kind]) for kind in self.kind_of_layer]
        if self.is_plain:
            return whole, keys
        names = ("segment_of_row", "row_starts", "source", "live", "write_starts", "writes")
        step = ops.DeviceStates(*(arrays[name] for name in names)) if layout.checkpoints else None
        return whole, [
            ops.LayerCache(
                own, tuple(state_of(spec, pool, step) for spec, pool in zip(layer.states, pools, strict=True))
            )
            for own, layer, pools in zip(keys, self.memory, self.states, strict=True)
        ]

    def _shape(self, kind: int, layout: Layout, arrays: Mapping[str, Any]) -> ops.Ragged:
        work = Work(
            counts=arrays[named("counts", kind)],
            long=arrays[named("long", kind)],
            short=arrays[named("short", kind)],
            parts=self.parts,
            long_grid=layout.items[kind].long,
            short_grid=layout.short_programs(kind),
            segments=layout.segments,
            is_single=layout.is_short,
        )
        first = kind * layout.table_width
        table = arrays["page_table"][:, first : first + layout.table_width]
        return ops.Ragged(arrays["positions"], arrays[named("slots", kind)], None, table, PAGE_SIZE, work)  # type: ignore[arg-type]


def kept(k: Any, v: Any, spec: Keys, shape: ops.Ragged) -> ops.LayerKV:
    return ops.LayerKV(k, v, shape, sharing=spec.sharing, scales=spec.scales)


def pool_of(spec: StateSpec, states: StatePool, dtype: Any, device: str) -> Any:
    """A convolution's inputs are kept as they are rounded for it; recurrent states in float32."""
    if isinstance(spec, Conv):
        return torch.empty((states.num_slots, spec.width - 1, spec.channels), dtype=dtype, device=device)
    if spec.chunk != 1 or spec.inputs:
        raise UnsupportedModel("on the GPU a recurrent state is one of every token")
    return torch.empty((states.num_slots, *spec.shape), dtype=torch.float32, device=device)


def state_of(spec: StateSpec, pool: Any, step: Any) -> ops.ConvState | ops.RecurrentState:
    if isinstance(spec, Conv):
        return ops.ConvState(pool, step)
    return ops.RecurrentState(pool, pool[:0], step)


def scratch(sizes: Sequence[tuple[int, int]], device: str) -> tuple[Any, Any, Any, Any]:
    """As in `Work.parts`, for the largest of some (key heads, head size)."""
    most_heads = max((heads for heads, _ in sizes), default=1)
    rows = MAX_PARTS * most_heads * SHORT_ROWS
    numbers = MAX_PARTS * SHORT_ROWS * max((heads * size for heads, size in sizes), default=1)
    peaks, totals, outs = (torch.empty(count, dtype=torch.float32, device=device) for count in (rows, rows, numbers))
    return peaks, totals, outs, torch.zeros(MAX_PARTS * most_heads, dtype=torch.int32, device=device)
