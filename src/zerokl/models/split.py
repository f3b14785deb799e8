"""How a model is shared among ranks: which axes of its weights are cut, and which part of each a rank has.

    axis                 unit of a cut                      whoever reads it
    query heads          whole heads, a multiple of 16      sums over heads (attention's output): leaves
    key heads            those that the query heads need    neighbours may both have one
    hidden widths        16                                 sums over the width (an MLP's second matrix): leaves
    vocabulary           1,024 ids                          side by side, no sum

Cuts fall between leaves, so they are the same for every number of ranks; one rank with several leaves has all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import lcm
from typing import Any

from msgspec import Struct

from zerokl.errors import ConfigError, UnsupportedModel
from zerokl.models.shapes import term_size
from zerokl.ops.shards import STEP, cut, vocabulary_bounds
from zerokl.quant import Cuttable, taken

VOCABULARY = "V"

Sharing = tuple[int, int] | None
"""As in `ops.LayerKV`."""


class Team(Struct, frozen=True):
    """In how many leaves sums are cut, and which of how many ranks this is."""

    leaves: int = 1
    group: Any = None
    """An `ops.Group`, on GPUs a `parallel.peers.PeerGroup`; None: there is one rank."""

    @property
    def rank(self) -> int:
        return 0 if self.group is None else int(self.group.rank)

    @property
    def size(self) -> int:
        return 1 if self.group is None else int(self.group.size)

    @property
    def local_size(self) -> int:
        """Ranks on this machine, which share its memory."""
        return 1 if self.group is None else int(getattr(self.group, "local_size", self.size))

    @property
    def is_plain(self) -> bool:
        return self.leaves == self.size == 1

    def device(self, kind: str) -> str:
        """Where this rank's part is, on devices of that kind: each rank on GPUs has its own."""
        return str(getattr(self.group, "gpu", kind))


ALONE = Team()


class Heads(Struct, frozen=True):
    """Letters of the axes of query heads, of key heads and of a head's size."""

    heads: str = "H"
    kv_heads: str = "K"
    size: str = "D"


HEADS = Heads()


class Width(Struct, frozen=True):
    """The letter of a hidden width."""

    letter: str


Cut = Heads | Width


class Part(Struct, frozen=True):
    """What one rank has of one axis."""

    start: int
    stop: int
    ends: tuple[int, ...] = ()
    """Where its leaves end, from `start`; none of them is empty."""
    count: int = 0
    """How many ranks have any of the axis: the first ones."""
    bounds: tuple[int, ...] = ()
    """Of the vocabulary: where each rank's part begins, and the end."""
    group: int = 1
    """Of key heads: how many query heads share one in the whole model."""

    @property
    def length(self) -> int:
        return self.stop - self.start


class Share(Struct, frozen=True):
    """What a rank has of a model: a part of each axis that is cut, by letter. Other axes are whole."""

    team: Team
    parts: Mapping[str, Part]

    def cut_of(self, dimension: str) -> str | None:
        """The letter of a dimension such as 'H·D' that is cut."""
        return next((letter for letter in dimension if letter in self.parts), None)

    def own(self, whole: Any, shape: str, axes: Mapping[str, int]) -> Any:
        """The rank's part of a tensor, or of a quantised one: a view, but where an axis has several terms."""
        for number, dimension in enumerate(shape.split()):
            if self.cut_of(dimension) is not None:
                pieces = self.pieces(dimension, axes)
                whole = whole.cut(number, pieces) if isinstance(whole, Cuttable) else taken(whole, number, pieces)
        return whole

    def pieces(self, dimension: str, axes: Mapping[str, int]) -> list[tuple[int, int]]:
        """(start, stop) of what the rank has of each term of a dimension."""
        pieces, start = [], 0
        for term in dimension.split("+"):
            size, letter = term_size(term, axes), self.cut_of(term)
            first, last = 0, size
            if letter is not None:
                scale, part = size // axes[letter], self.parts[letter]
                first, last = part.start * scale, part.stop * scale
            pieces.append((start + first, start + last))
            start += size
        return pieces

    def heads(self, axes: Heads = HEADS) -> dict[str, Any]:
        """What changes in a config: the numbers of query and key heads that are here, and how they are shared."""
        if axes.heads not in self.parts:
            return {}
        query, keys = self.parts[axes.heads], self.parts[axes.kv_heads]
        return {"num_heads": query.length, "num_kv_heads": keys.length, "sharing": self.sharing(axes)}

    def sharing(self, axes: Heads = HEADS) -> Sharing:
        """As in `ops.LayerKV`; None if every key head here has equally many query heads here."""
        query, keys = self.parts[axes.heads], self.parts[axes.kv_heads]
        if keys.length <= 1:
            return None
        group = keys.group
        before = query.start - keys.start * group
        return None if not before and query.length == keys.length * group else (group, before)


def share_of(config: Any, team: Team, architecture: str) -> Share | None:
    """The rank's share of a model; None where there is nothing to cut.

    Raises UnsupportedModel for an architecture that doesn't say what may be cut, ConfigError for numbers that don't go.
    """
    if team.is_plain:
        return None
    check_sizes(team.size, team.leaves)
    cuts: Sequence[Cut] | None = getattr(config, "cuts", None)
    if cuts is None:
        raise UnsupportedModel(f"--tp and --tp-leaves are not there yet for {architecture}")
    axes, parts = config.axes, {}
    for one in cuts:
        if isinstance(one, Heads):
            heads, kv_heads, size = axes[one.heads], axes[one.kv_heads], axes[one.size]
            query = part_of(heads, lcm(STEP, size) // size, team)
            parts[one.heads], parts[one.kv_heads] = query, needed_keys(query, heads // kv_heads)
        else:
            parts[one.letter] = part_of(axes[one.letter], STEP, team)
    if team.size > 1:
        bounds = vocabulary_bounds(axes[VOCABULARY], team.size)
        parts[VOCABULARY] = Part(bounds[team.rank], bounds[team.rank + 1], bounds=bounds)
    return Share(team, parts)


def config_of_rank(config: Any, share: Share | None) -> Any:
    """With the numbers of the heads that the rank has."""
    return config if share is None else config.of_rank(share)


def check_sizes(ranks: int, leaves: int) -> None:
    """Raise ConfigError for numbers that don't go."""
    for name, number in (("--tp", ranks), ("--tp-leaves", leaves)):
        if number & (number - 1):
            raise ConfigError(f"{name} {number}: sums are folded by a binary tree, so it must be a power of two")
    if ranks > leaves:
        raise ConfigError(f"--tp {ranks} needs at least as many --tp-leaves, not {leaves}")


def part_of(length: int, unit: int, team: Team) -> Part:
    """The rank's neighbouring leaves."""
    bounds, each = cut(length, unit, team.leaves), team.leaves // team.size
    own = bounds[team.rank * each : (team.rank + 1) * each + 1]
    ends = tuple(end - own[0] for start, end in pairwise(own) if end > start)
    count = sum(bounds[rank * each] < bounds[(rank + 1) * each] for rank in range(team.size))
    return Part(own[0], own[-1], ends, count)


def needed_keys(query: Part, group: int) -> Part:
    """The key heads that some query heads read, `group` of which share one in the whole model."""
    if not query.length:
        return Part(0, 0, group=group)
    return Part(query.start // group, (query.stop - 1) // group + 1, group=group)
