"""Fill a model's parameters from a checkpoint by a table: one row says where one parameter comes from.

    W("model.layers.{i}.self_attn.{q,k,v}_proj.weight", "layers.{i}.qkv", "{H,K,K}·D E")

reads: in every layer i, three tensors of shapes [H·D, E], [K·D, E] and [K·D, E], one under the other, become the
packed matrix `layers[i].qkv`. Letters are axes (V vocabulary, E embedding, H query heads, K key/value heads, D head
size, F hidden) whose sizes the model's config gives, so a tensor of another size is found before anything runs. Of an
axis that is cut among ranks each reads its part only; "F+F" is an axis of two parts that are cut alike, one above the
other, while "2F" has its pairs side by side.

Every tensor of the checkpoint is used once or named as dropped, and every parameter is filled once; otherwise one
CheckpointError lists all that is missing, unused or misshapen.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zerokl import ops
from zerokl.errors import CheckpointError
from zerokl.models.shapes import sizes, spread
from zerokl.models.split import VOCABULARY, Share
from zerokl.quant import Quantised, device_experts_of, device_leaves_of, device_matrix_of, matrix_of, taken


class Tensor(Protocol):
    """One stored tensor, as `zerokl.checkpoints` gives it."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    def array(self) -> np.ndarray: ...
    @property
    def forget(self) -> Callable[[], None]: ...


class Checkpoint(Protocol):
    """What a model reads of a checkpoint: Hugging Face's config keys and tensor names, whatever the files are."""

    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, Tensor]: ...


class Axes(Protocol):
    """What the loader reads of a model's config."""

    @property
    def axes(self) -> Mapping[str, int]: ...
    @property
    def num_layers(self) -> int: ...


class Parameters(SimpleNamespace):
    """Parameters by name, and `layers`, a list of the same: what a model's forward reads."""

    def matrices(self) -> Iterator[ops.AnyMatrix]:
        """Every packed matrix, in the table's order."""
        for value in vars(self).values():
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, Parameters):
                    yield from part.matrices()
                elif isinstance(part, ops.AnyMatrix):
                    yield part


class Place(Struct, frozen=True):
    """How matrices are kept (a type name, or "auto": as stored), and where everything is."""

    dtype: str = "auto"
    device: str = "cpu"
    integer: bool = False
    """Products of quantised matrices with int8 activations, where their format has them."""
    packs: bool = True
    """On the GPU: quantised matrices stay in their stored form, where there are kernels for it."""

    leaves: tuple[int, ...] = ()
    """Where the leaves of the cut axis end, in its rank's part."""
    wrap: Callable[[Any], ops.AnyMatrix] | None = None
    """Makes a shard of a packed part, where ranks meet over it."""
    sums: bool = False
    """The cut axis is what the matrix sums over."""

    def pack(self, parts: Sequence[np.ndarray]) -> ops.AnyMatrix:
        """One under the other, packed for `ops.linear`; the rank's part becomes a shard."""
        return self.wrapped(ops.pack(parts, self.dtype, self.device, self.leaves if self.sums else ()))

    def pack_quantised(self, parts: Sequence[Any]) -> ops.AnyMatrix:
        """The same of parts in a stored form, on a GPU."""
        if self.sums and len(self.leaves) > 1:
            return self.wrapped(device_leaves_of(parts, self.leaves, self.device))
        return self.wrapped(device_matrix_of(parts, self.device))

    def pack_experts(self, experts: Sequence[Sequence[Any]]) -> ops.AnyMatrix:
        """One matrix per expert, of parts in a stored form, on a GPU: gates and ups in two parts, or in one."""
        if len(self.leaves) < 2:
            return self.wrapped(device_experts_of(experts, self.device))
        pieces, axis = self.leaf_pieces(sum(len(part) for part in experts[0])), int(self.sums)
        cut = [
            [[part.cut(axis, own[:1] if len(parts) > 1 else own) for part in parts] for parts in experts]
            for own in pieces
        ]
        return self.wrapped(ops.LeafExperts(tuple(device_experts_of(one, self.device) for one in cut)))

    def leaf_pieces(self, rows: int) -> list[list[tuple[int, int]]]:
        """What each leaf has of an expert's matrix: of its columns, or of its gates and its ups."""
        bounds = pairwise((0, *self.leaves))
        return [
            [(start, stop)] if self.sums else [(start, stop), (rows // 2 + start, rows // 2 + stop)]
            for start, stop in bounds
        ]

    def wrapped(self, packed: Any) -> ops.AnyMatrix:
        return packed if self.wrap is None else self.wrap(packed)

    def keeps_packed(self, stored: Iterable[str]) -> bool:
        """Whether a matrix of parts that are stored as these types stays in its stored form."""
        if self.device == "cpu":
            return self.dtype == "auto"
        return self.packs and any(name in PACKED_ON_GPU for name in stored)


How = Callable[[Sequence[Any], Place], Any]
AnyHow = TypeVar("AnyHow", bound=How)

PACKED_ON_GPU = ("NVFP4", "FP8", "FP8_BLOCK")
"""Formats that the GPU keeps; others are dequantised for it."""
PACKED: set[How] = set()
"""Those that take quantised parts (`quant.Quantised`) too; for the others these are dequantised."""


def takes_packed(how: AnyHow) -> AnyHow:
    PACKED.add(how)
    return how


@takes_packed
def matrix(parts: Sequence[Any], place: Place) -> ops.AnyMatrix:
    """The parts one under the other, packed for `ops.linear`."""
    if any(isinstance(part, Quantised) for part in parts):
        return matrix_of(parts, place.integer) if place.device == "cpu" else place.pack_quantised(parts)
    return place.pack(parts)


def transposed(parts: Sequence[np.ndarray], place: Place) -> ops.AnyMatrix:
    """A matrix that is stored [inputs, outputs]."""
    return matrix([np.ascontiguousarray(part.T) for part in parts], place)


def vector(parts: Sequence[np.ndarray], place: Place) -> Any:
    """The parts one after the other in float32, exactly as stored: --dtype is for matrices, where the bytes are."""
    whole = np.ascontiguousarray(np.concatenate([exact_float32(part) for part in parts]))
    return ops.upload(whole, place.device)


def taps(parts: Sequence[np.ndarray], place: Place) -> Any:
    """A depthwise convolution's [C, 1, width] as [width, C], oldest tap first, in float32 as `vector`."""
    whole = exact_float32(np.concatenate(parts))
    return ops.upload(np.ascontiguousarray(whole[:, 0].T), place.device)


def one_more(parts: Sequence[np.ndarray], place: Place) -> Any:
    """As `vector`, for norms that store their weight less 1: the sum is rounded once, in float32."""
    return ops.upload(np.float32(1) + vector(parts, Place(place.dtype)), place.device)


def number(parts: Sequence[np.ndarray], place: Place) -> float:
    """One number, exactly as stored, for the host to hand on."""
    return float(exact_float32(parts[0]).reshape(()))


VECTORS = (vector, taps, one_more, number)
"""What makes float32; all else makes matrices."""


def each_expert(parts_per_expert: int) -> How:
    """One matrix per expert, made of that many neighbouring parts."""

    @takes_packed
    def experts(parts: Sequence[Any], place: Place) -> Sequence[ops.AnyMatrix] | ops.AnyMatrix:
        starts = range(0, len(parts), parts_per_expert)
        if place.device != "cpu":
            own = [parts[start : start + parts_per_expert] for start in starts]
            if isinstance(parts[0], Quantised):
                return place.pack_experts(own)
            return experts_on_gpu(np.stack([np.concatenate(one) for one in own]), place)
        return [matrix(parts[start : start + parts_per_expert], place) for start in starts]

    return experts


@takes_packed
def stacked(parts: Sequence[Any], place: Place) -> Sequence[ops.AnyMatrix] | ops.AnyMatrix:
    """One matrix per expert, from one tensor [X, N, K]."""
    if place.device != "cpu":
        if isinstance(parts[0], Quantised):
            return place.pack_experts([[parts[0][expert]] for expert in range(len(parts[0]))])
        return experts_on_gpu(parts[0], place)
    return [matrix([parts[0][expert]], place) for expert in range(len(parts[0]))]


def experts_on_gpu(stack: np.ndarray, place: Place) -> ops.AnyMatrix:
    """[X, N, K] side by side; the rank's columns become a shard."""
    if len(place.leaves) < 2:
        return place.wrapped(ops.pack_experts(stack, place.device))
    pieces, axis = place.leaf_pieces(stack.shape[1]), 1 + place.sums
    leaves = [ops.pack_experts(taken(stack, axis, own), place.device) for own in pieces]
    return place.wrapped(ops.LeafExperts(tuple(leaves)))


def always(config: Any) -> bool:
    """The condition of a row that every model of the architecture has."""
    return True


class W(Struct, frozen=True):
    """One row: tensors `name`, of `shape`, become `parameter` by `how`; where `when(config)` is false it is None.

    `{e}` in a name runs over the config's X experts. `on(config)` says which layers have the parameter (None: all); in
    the others it is None, or another row's.
    """

    name: str
    parameter: str
    shape: str
    how: How = matrix
    when: Callable[[Any], bool] = always
    on: Callable[[Any], Sequence[int]] | None = None

    def sources(self, config: Axes, layer: int) -> list[tuple[str, tuple[int, ...]]]:
        """(tensor name, its shape) of each part, in order."""
        experts = range(config.axes["X"]) if "{e}" in self.name else range(1)
        names = [n for e in experts for n in spread(self.name.replace("{i}", str(layer)).replace("{e}", str(e)))]
        shapes = spread(self.shape)
        shapes = shapes * (len(names) // len(shapes))
        return [(name, sizes(shape, config.axes)) for name, shape in zip(names, shapes, strict=True)]

    def layers(self, config: Axes) -> Sequence[int]:
        """The layers that have this parameter: one round for a parameter outside the layers."""
        if not self.when(config):
            return ()
        if self.on is not None:
            return self.on(config)
        return self.all_layers(config)

    def all_layers(self, config: Axes) -> range:
        return range(config.num_layers if "{i}" in self.name else 1)


READERS, CPU_READERS = 8, 2
"""Parameters read at a time. For a GPU the host only passes them on; on the CPU packing takes all threads already, but
the next one can be read or dequantised meanwhile (0.8 s instead of 0.9 for SmolLM2 on two cores)."""


def load(
    table: Sequence[W],
    dropped: Sequence[str],
    config: Axes,
    checkpoint: Checkpoint,
    place: Place = Place(),
    share: Share | None = None,
) -> Parameters:
    """What `loading` gives, when it is there."""
    with loading(table, dropped, config, checkpoint, place, share) as loaded:
        return loaded()


@contextmanager
def loading(
    table: Sequence[W],
    dropped: Sequence[str],
    config: Axes,
    checkpoint: Checkpoint,
    place: Place = Place(),
    share: Share | None = None,
) -> Iterator[Callable[[], Parameters]]:
    """The parameters of `table`, packed as `place` says, few at a time so that memory stays near theirs; of a `share`,
    the rank's parts. Inside `with` they are read; the call that it gives waits for them.

    `dropped` names tensors that may be there and that nothing needs, `name*` all that begin so. Raises CheckpointError.
    """
    check_names(table, dropped, config, checkpoint.tensors)
    wanted = [(row, layer) for row in table for layer in row.layers(config)]

    def value_of(which: tuple[W, int]) -> Any:
        row, layer = which
        return read(row, layer, config, checkpoint.tensors, place, share)

    with readers_of(place) as readers:
        values = readers.map(value_of, wanted)
        yield lambda: put_all(table, config, zip(wanted, values, strict=True))


@contextmanager
def readers_of(place: Place) -> Iterator[ThreadPoolExecutor]:
    """Threads that read; after an error they begin nothing more."""
    readers = ThreadPoolExecutor(CPU_READERS if place.device == "cpu" else READERS)
    with SWIFT:
        try:
            yield readers
        finally:
            readers.shutdown(cancel_futures=True)


class SwiftSwitches:
    """Inside, Python changes threads ten times as often; several threads may be inside.

    Readers hold the interpreter for microseconds between two calls of native code, and whoever else runs Python would
    give it to them 5 ms after they ask: 200 matrices would wait a second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before_s = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before_s = sys.getswitchinterval()
                sys.setswitchinterval(self._before_s / 10)
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(self._before_s)


SWIFT = SwiftSwitches()


def put_all(table: Sequence[W], config: Axes, values: Iterable[tuple[tuple[W, int], Any]]) -> Parameters:
    parameters = Parameters()
    for (row, layer), value in values:
        put(parameters, row.parameter.replace("{i}", str(layer)), value)
    for row in table:
        for layer in row.all_layers(config):
            put(parameters, row.parameter.replace("{i}", str(layer)), None)
    return parameters


def read(
    row: W,
    layer: int,
    config: Axes,
    tensors: Mapping[str, Tensor],
    place: Place = Place(),
    share: Share | None = None,
) -> Any:
    """One parameter. Parts stored as different types meet in float32, which holds each of them exactly.

    Quantised matrices stay packed; on the CPU only whole ones: there a rank's part, and leaves, are of their numbers.
    """
    sources = row.sources(config, layer)
    found = [tensors[name] for name, _ in sources]
    packed = [getattr(tensor, "packed", None) for tensor in found]
    keeps = row.how in PACKED and place.keeps_packed(tensor.dtype for tensor in found)
    if any(packed) and keeps and (share is None or place.device != "cpu"):
        parts = [read() if read else t.array() for read, t in zip(packed, found, strict=True)]
        value = row.how(own_parts(row, parts, config, share), shared_place(row, config, place, share))
    else:
        value = row.how(*plain_parts(row, [tensor.array() for tensor in found], config, place, share))
    for tensor in found:
        tensor.forget()
    return value


def plain_parts(
    row: W, parts: list[np.ndarray], config: Axes, place: Place, share: Share | None
) -> tuple[list[np.ndarray], Place]:
    """The rank's parts as one type, and where they go."""
    parts = own_parts(row, parts, config, share)
    if len({part.dtype for part in parts}) > 1:
        parts = [exact_float32(part) for part in parts]
    if place.dtype == "auto":
        place = replace(place, dtype=STORED_AS[parts[0].dtype.name])
    return parts, shared_place(row, config, place, share)


def own_parts(row: W, parts: list[Any], config: Axes, share: Share | None) -> list[Any]:
    if share is None:
        return parts
    shapes = spread(row.shape)
    shapes = shapes * (len(parts) // len(shapes))
    return [share.own(part, shape, config.axes) for part, shape in zip(parts, shapes, strict=True)]


def shared_place(row: W, config: Axes, place: Place, share: Share | None) -> Place:
    if share is None:
        return place
    dimensions = spread(row.shape)[0].split()
    return place_in(share, dimensions[::-1] if row.how is transposed else dimensions, config.axes, place)


def place_in(share: Share, dimensions: Sequence[str], axes: Mapping[str, int], place: Place) -> Place:
    """Where a row of this shape goes on this rank. A matrix whose last axis is cut sums over it."""
    group = share.team.group
    cuts = [share.cut_of(dimension) for dimension in dimensions]
    if cuts[0] == VOCABULARY and group is not None and len(dimensions) == 2:
        bounds = share.parts[VOCABULARY].bounds
        return replace(place, wrap=lambda packed: ops.VocabularyShard(packed, group, bounds))
    if cuts[-1] is None or len(dimensions) == 1:
        return replace(place, leaves=next((share.parts[letter].ends for letter in cuts if letter), ()))
    part, scale = share.parts[cuts[-1]], sizes(dimensions[-1], axes)[0] // axes[cuts[-1]]
    place = replace(place, leaves=tuple(end * scale for end in part.ends), sums=True)
    return place if group is None else replace(place, wrap=lambda packed: ops.InputShard(packed, group, part.count))


def kept_as(stored: Sequence[str], dtype: str) -> str:
    """What `read` keeps a matrix as whose parts are stored as these types."""
    if dtype != "auto":
        return dtype
    return FILE_TYPES.get(stored[0], "float32") if len(set(stored)) == 1 else "float32"


FILE_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""A checkpoint gives every other type as float32."""


STORED_AS = {"float32": "float32", "float16": "float16", "uint16": "bfloat16"}
"""numpy has no bfloat16: a checkpoint gives its bits as uint16."""


def exact_float32(stored: np.ndarray) -> np.ndarray:
    """The same numbers as float32."""
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)


def check_names(rows: Sequence[W], dropped: Sequence[str], config: Axes, tensors: Mapping[str, Tensor]) -> None:
    """Raise one CheckpointError that lists every missing, misshapen, twice used and unused tensor."""
    wanted: dict[str, tuple[int, ...]] = {}
    twice: list[str] = []
    for row in rows:
        for layer in row.layers(config):
            for name, shape in row.sources(config, layer):
                if name in wanted:
                    twice.append(name)
                wanted[name] = shape
    prefixes = tuple(name[:-1] for name in dropped if name.endswith("*"))
    skipped = {name.replace("{i}", str(layer)) for name in dropped for layer in range(config.num_layers)}
    complaints = {
        "missing": [f"{name} {list(shape)}" for name, shape in wanted.items() if name not in tensors],
        "of the wrong shape": [
            f"{name} {list(tensors[name].shape)}, not {list(shape)}"
            for name, shape in wanted.items()
            if name in tensors and tuple(tensors[name].shape) != shape
        ],
        "used twice": twice,
        "unused": [name for name in tensors if not (name in wanted or name in skipped or name.startswith(prefixes))],
    }
    if any(complaints.values()):
        lines = [f"{len(names)} tensors {what}: {', '.join(names)}" for what, names in complaints.items() if names]
        raise CheckpointError("the checkpoint's tensors don't fit its config.\n" + "\n".join(lines))


def put(root: Parameters, path: str, value: Any) -> None:
    """Set `root.layers[3].qkv` for the path 'layers.3.qkv', making what is on the way. None only fills a gap."""
    node: Any = root
    name = path.split(".")[-1]
    for step, following in pairwise(path.split(".")):
        if step.isdigit():
            while int(step) >= len(node):
                node.append(Parameters())
            node = node[int(step)]
        else:
            if not hasattr(node, step):
                setattr(node, step, [] if following.isdigit() else Parameters())
            node = getattr(node, step)
    if not hasattr(node, name):
        setattr(node, name, value)
    elif value is not None:
        raise CheckpointError(f"parameter {path} is filled twice")
