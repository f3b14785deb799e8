"""Any sequence of calls with sliding kinds and states, against `kinds_model.py`, which predicts every hit exactly.

`device` holds, byte for byte, what the tokens of a step leave behind: it is written where a plan would say and read
back before the next step, so a window, a checkpoint or a live slot that isn't the sequence's own shows itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.cache.kinds_model import ModelCache, ModelLease
from zerokl.cache import Cache, Lease
from zerokl.cache.shelf import Shelf
from zerokl.cache.states import StateHold
from zerokl.cache.windows import WindowHold, WindowKind
from zerokl.types import ZERO_STATE, Pools, StatePool, WindowPool


@dataclass
class Held:
    """A lease, what the model knows of it, and the sequence that it belongs to."""

    lease: Lease
    model: ModelLease
    released: bool = False

    @property
    def story(self) -> tuple[str, tuple[int, ...]]:
        return self.model.salt or "", tuple(self.model.tokens)


@dataclass
class Device:
    """Where each kind's bytes would be: what was written last to a place."""

    full: dict[tuple[int, int], Any] = field(default_factory=dict)
    windows: dict[tuple[int, int, int], Any] = field(default_factory=dict)
    states: dict[int, Any] = field(default_factory=dict)


tokens_lists = st.lists(st.integers(0, 1), min_size=1, max_size=10)
salts = st.sampled_from(["", "", "", "salt"])


@st.composite
def pools(draw: st.DrawFn) -> Pools:
    page_size, num_pages = draw(st.integers(1, 3)), draw(st.sampled_from([2, 4, 7, 12, 200]))
    windows = []
    for window in draw(st.sampled_from([(), (1,), (2,), (3,), (4,), (6, 2)])):
        alone = min(-(-(window - 1) // page_size) + 1, num_pages)
        windows.append(WindowPool(window, alone + draw(st.sampled_from([0, 1, 3, 100]))))
    interval = page_size * draw(st.integers(1, 2))
    states = StatePool(interval, draw(st.integers(1, 5)), draw(st.sampled_from([0, 1, 2, 5, 100])))
    return Pools(num_pages, page_size, tuple(windows), states if draw(st.booleans()) else None)


class KindsMachine(RuleBasedStateMachine):
    leases = Bundle("leases")

    @initialize(pools=pools())
    def start(self, pools: Pools) -> None:
        self.cache = Cache(pools.num_pages, pools.page_size, windows=pools.windows, states=pools.states)
        self.model, self.device, self.held = ModelCache(pools), Device(), []

    @rule(
        target=leases, tokens=tokens_lists, cut=st.integers(0, 3), salt=salts, use_cache=st.sampled_from([1, 1, 1, 0])
    )
    def lease(self, tokens: list[int], cut: int, salt: str, use_cache: int) -> Held | None:
        states = self.model.pools.states
        if states and self.model.live == states.num_live:
            return None
        limit = len(tokens) - cut
        pages, stop = self.model.match(salt, tokens, limit) if use_cache else (0, "limit")
        lease = self.cache.lease(tokens, limit, salt, bool(use_cache))
        assert (lease.cached_tokens, lease.stopped_by) == (pages * self.model.size, stop)
        return self._hold(lease, self.model.give(salt if use_cache else None, tokens, pages))

    @rule(target=leases, tokens=tokens_lists, salt=salts)
    def lease_with_room(self, tokens: list[int], salt: str) -> Held | None:
        limit, needed = len(tokens) - 1, self.cache.pages_for(len(tokens))
        pages, stop = self.model.match(salt, tokens, limit)
        admitted = self.model.admits(salt, tokens, pages, needed)
        before = self.cache.stats
        lease = self.cache.lease_with_room(tokens, limit, salt, num_tokens=len(tokens))
        assert (lease is not None) == admitted
        if lease is None:
            assert self.cache.stats == before
            return None
        assert (lease.cached_tokens, lease.stopped_by) == (pages * self.model.size, stop)
        given = self.model.give(salt, tokens, pages)
        self.model.grow(given, needed, self.model.admission_ends(pages, needed))
        return self._hold(lease, given)

    @rule(held=leases, more=st.integers(1, 6), token=st.integers(0, 1))
    def run(self, held: Held | None, more: int, token: int) -> None:
        """One step: as many of the next tokens as there is room for, past the prompt too."""
        if held is None or held.released:
            return
        lease, model, size = held.lease, held.model, self.model.size
        start, wanted = model.computed, model.computed + more
        reach = min(
            [(model.pages + self.model.room) * size]
            + [(held_end + shelf.room) * size for held_end, shelf in zip(model.end, self.model.windows, strict=True)]
        )
        assert lease.reach == reach
        pages = self.cache.pages_for(wanted)
        ends = [pages] * len(self.model.windows)
        assert self.model.can_grow(model, pages, ends) == (wanted <= reach)
        assert lease.reserve(wanted) == (wanted <= reach)
        end = min(wanted, reach)
        if end <= start:
            return
        assert lease.reserve(end)
        pages = self.cache.pages_for(end)
        self.model.grow(model, pages, [pages] * len(self.model.windows))
        tokens = [*model.tokens, *[token] * (end - len(model.tokens))]
        model.tokens = tokens
        self._read_back(held, start)
        self._write(held, start, end)
        lease.computed(tokens, end)
        self.model.compute(model, tokens, end)

    @rule(tokens=tokens_lists, salt=salts)
    def touch(self, tokens: list[int], salt: str) -> None:
        """A hit that only renews: what comes between two evictions and decides the second."""
        self.release(self.lease(tokens, 0, salt, 1))

    @rule(tokens=tokens_lists, salt=salts, chunk=st.integers(1, 10))
    def fill(self, tokens: list[int], salt: str, chunk: int) -> None:
        """A whole request, in chunks."""
        held = self.lease_with_room(tokens, salt)
        while held and held.model.computed < len(tokens):
            before = held.model.computed
            self.run(held, min(chunk, len(tokens) - before), 0)
            if held.model.computed == before:
                break
        self.release(held)

    @rule(held=consumes(leases))
    def release(self, held: Held | None) -> None:
        if held is None or held.released:
            return
        held.released = True
        held.lease.release()
        self.held.remove(held)
        self.model.release(held.model)

    @rule()
    def flush(self) -> None:
        expected = not self.held
        assert self.cache.flush() == expected
        while expected and self.model.entries:
            self.model.evict()

    @invariant()
    def adds_up_as_the_model_says(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        stats, model = self.cache.stats, self.model
        assert (stats.free, stats.free + stats.cached) == (model.free, model.room)
        assert [(kind.free, kind.cached) for kind in stats.windows] == [
            (shelf.free, len(shelf.order)) for shelf in model.windows
        ]
        if stats.states:
            assert (stats.states.free, stats.states.cached) == (model.states.free, len(model.states.order))
            assert stats.states.live_leased == model.live

    @invariant()
    def every_lease_reads_its_own_past(self) -> None:
        for held in getattr(self, "held", ()):
            self._read_back(held, held.model.computed)

    def _hold(self, lease: Lease, model: ModelLease) -> Held:
        held = Held(lease, model)
        self.held.append(held)
        return held

    def _write(self, held: Held, start: int, end: int) -> None:
        """What the step's tokens leave behind, where the plan says."""
        salt, tokens = held.story
        use, windows, size = held.lease.state_use(start, end), held.lease.window_pages(), self.model.size
        if use:
            self._check_source(held, use.source, start)
            kept = self.model.checkpoints(held.model, start, end)
            assert [position for position, _ in use.checkpoints] == kept
            self.device.states.update({slot: (salt, tokens[:position]) for position, slot in use.checkpoints})
            self.device.states[use.live] = salt, tokens[:end]
        for position in range(start, end):
            page, offset = divmod(position, size)
            self.device.full[held.lease.pages[page], offset] = salt, tokens[: position + 1]
            for kind, pages in enumerate(windows):
                place = kind, pages.pages[page - pages.first], offset
                self.device.windows[place] = salt, tokens[: position + 1]

    def _check_source(self, held: Held, source: int, start: int) -> None:
        salt, tokens = held.story
        assert (source == ZERO_STATE) == (start == 0)
        assert source == ZERO_STATE or self.device.states[source] == (salt, tokens[:start])

    def _read_back(self, held: Held, end: int) -> None:
        """All keys before `end`, and the windows that a token at `end` sees."""
        (salt, tokens), size = held.story, self.model.size
        for position in range(end):
            page, offset = divmod(position, size)
            assert self.device.full[held.lease.pages[page], offset] == (salt, tokens[: position + 1])
        for kind, pages in enumerate(held.lease.window_pages()):
            for position in range(max(0, end - self.model.pools.windows[kind].window + 1), end):
                page, offset = divmod(position, size)
                assert page >= pages.first, "a page that the window still sees was let go"
                place = kind, pages.pages[page - pages.first], offset
                assert self.device.windows[place] == (salt, tokens[: position + 1])


SETTINGS = settings(max_examples=100, stateful_step_count=30, deadline=None, derandomize=True, database=None)
TestKindsMachine = KindsMachine.TestCase
TestKindsMachine.settings = SETTINGS


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_the_machine_at_length():
    run_state_machine_as_test(KindsMachine, settings=settings(max_examples=5000, stateful_step_count=60, deadline=None))


# Planted defects: the machine turns red without any help from cache.check()


def see_one_page_of_window_too_few(patch: pytest.MonkeyPatch) -> None:
    make = WindowKind.__init__

    def short(kind: WindowKind, pool: WindowPool, index: int, page_size: int) -> None:
        make(kind, pool, index, page_size)
        kind.span = max(0, kind.span - 1)

    patch.setattr(WindowKind, "__init__", short)


def let_go_one_token_early(patch: pytest.MonkeyPatch) -> None:
    first_seen = WindowKind.first_seen
    patch.setattr(WindowKind, "first_seen", lambda kind, position: first_seen(kind, position + 1))


def let_go_one_token_late(patch: pytest.MonkeyPatch) -> None:
    first_seen = WindowKind.first_seen
    patch.setattr(WindowKind, "first_seen", lambda kind, position: first_seen(kind, position - 1))


def forget_to_pin_the_source(patch: pytest.MonkeyPatch) -> None:
    make = StateHold.__init__

    def loose(hold: StateHold, kind, matched, start) -> None:
        make(hold, kind, matched, start)
        source = hold._source
        hold.unpin()
        hold._source = source

    patch.setattr(StateHold, "__init__", loose)
    patch.setattr(StateHold, "unpin", lambda hold: setattr(hold, "_source", None))


def forget_to_renew_what_is_written_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shelf, "touch", lambda shelf, node: None)


def evict_the_newest_first(patch: pytest.MonkeyPatch) -> None:
    evict = Shelf.evict_one

    def newest(shelf: Shelf) -> bool:
        if shelf._unlocked:
            shelf._unlocked.move_to_end(next(reversed(shelf._unlocked)), last=False)
        return evict(shelf)

    patch.setattr(Shelf, "evict_one", newest)


def keep_the_first_checkpoints_when_short(patch: pytest.MonkeyPatch) -> None:
    take = StateHold._take
    patch.setattr(
        StateHold, "_take", lambda hold, positions: take(hold, positions[: min(len(positions), hold._kind.shelf.room)])
    )


def lose_the_slots_of_a_leaving_node(patch: pytest.MonkeyPatch) -> None:
    detach = Shelf.detach

    def lose(shelf: Shelf, node) -> None:
        before = shelf.num_free
        detach(shelf, node)
        if shelf.num_free > before:
            shelf._free.pop()

    patch.setattr(Shelf, "detach", lose)


def free_pages_in_flight_of_a_private_window_twice(patch: pytest.MonkeyPatch) -> None:
    let_go = WindowHold._let_go

    def twice(hold: WindowHold, nodes, pages) -> None:
        let_go(hold, nodes, pages)
        if len(pages) > len(nodes):
            hold._kind.shelf.give_back(pages[-1:])

    patch.setattr(WindowHold, "_let_go", twice)


def publish_the_last_checkpoint_at_every_page(patch: pytest.MonkeyPatch) -> None:
    publish = StateHold.publish
    patch.setattr(
        StateHold, "publish", lambda hold, position, node: publish(hold, max(hold.written, default=position), node)
    )


def write_a_checkpoint_again_then_run_short() -> None:
    """Two checkpoints, the older one is written again by a request that doesn't match; others then need its room."""
    machine = KindsMachine()
    machine.start(Pools(12, 1, (), StatePool(1, 2, 3)))

    def serve(tokens: list[int], cut: int = 0) -> None:
        held = machine.lease(tokens, cut, "", 1)
        machine.run(held, 1, 0)
        machine.release(held)
        machine.adds_up_as_the_model_says()

    serve([0])
    serve([1])
    serve([0], cut=1)
    serve([2])
    serve([3])
    assert machine.cache.stats.states.evicted == 1
    serve([0, 0])
    machine.teardown()


def test_what_is_written_again_is_the_last_to_go():
    write_a_checkpoint_again_then_run_short()


def test_a_forgotten_renewal_is_seen(monkeypatch: pytest.MonkeyPatch):
    """The rarest defect has a trace of its own: whether Hypothesis draws it depends on which modules are loaded."""
    monkeypatch.setattr(Cache, "check", lambda cache: None)
    forget_to_renew_what_is_written_again(monkeypatch)
    with pytest.raises(AssertionError):
        write_a_checkpoint_again_then_run_short()


TRIES = 1500
"""Most defects show within a few hundred."""

DEFECTS = [
    see_one_page_of_window_too_few,
    let_go_one_token_early,
    let_go_one_token_late,
    forget_to_pin_the_source,
    evict_the_newest_first,
    keep_the_first_checkpoints_when_short,
    lose_the_slots_of_a_leaving_node,
    free_pages_in_flight_of_a_private_window_twice,
    publish_the_last_checkpoint_at_every_page,
]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_the_machine_turns_red_on(defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Cache, "check", lambda cache: None)
    defect(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(
            KindsMachine, settings=settings(SETTINGS, max_examples=TRIES, phases=[Phase.generate])
        )
