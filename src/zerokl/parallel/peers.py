"""Ranks on GPUs: the group of `--device cuda --tp N`.

    memory of a rank, which all can read    | half 0 of the slot | half 1 | ids that rank 0 drew | flags |
    a round                                 write your half ─▶ `ops/triton/exchange.py`: meet, read all

Halves take turns, as in `shared.py`: a rank writes to a half again two rounds later, and then every peer has come to
the round in between, which it does after it has read. A graph of launches has fixed addresses, so each run begins with
half 0, behind a meeting (`begin`).

`peer`: the exchange is one kernel over NVLink, which reads what the others wrote. `gather`: where GPUs can't read each
other's memory, as on several machines, NCCL's all-gather brings the parts and the same kernel adds them. Which of the
two moves no bit.
"""

from __future__ import annotations

import socket
import time
from itertools import pairwise
from typing import Any

import torch
import torch.distributed

from zerokl.errors import ConfigError, EngineError
from zerokl.ops.triton import exchange
from zerokl.ops.triton.exchange import MAX_PROGRAMS, MAX_RANKS, Meeting
from zerokl.parallel import nccl
from zerokl.parallel.peer_memory import PeerMemory, view

ALIGNED = 32
"""Numbers of four bytes that parts of the memory begin at multiples of."""
POLL_S = 0.002
"""Between two looks at the store, whose own wait can't be told that a rank is gone."""


def open_store(size: int, host: str = "127.0.0.1") -> Any:
    """Rank 0's side of the ranks' first meeting; `host` and its `port` are what the others need."""
    listener = socket.create_server(("127.0.0.1" if host == "127.0.0.1" else "", 0))
    port = listener.getsockname()[1]
    return torch.distributed.TCPStore(
        host, port, size, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


class PeerGroup:
    """The ranks of one model on GPUs. Every rank makes the same calls in the same order, on one stream."""

    def __init__(
        self,
        rank: int,
        size: int,
        store: Any,
        way: str = "",
        local_rank: int | None = None,
        local_size: int | None = None,
    ) -> None:
        """`store`: rank 0's, or its address. Takes GPU number `local_rank` of this machine, where `local_size` ranks
        are; default: all. Raises ConfigError."""
        local_rank, local_size = rank if local_rank is None else local_rank, local_size or size
        if size > MAX_RANKS:
            raise ConfigError(f"--tp {size}: on GPUs up to {MAX_RANKS}")
        if local_size > torch.cuda.device_count():
            raise ConfigError(
                f"--tp {size}: {local_size} ranks on this machine, and torch finds {torch.cuda.device_count()} GPUs"
            )
        self.rank, self.size = rank, size
        self.gpu = self.device = f"cuda:{local_rank}"
        torch.cuda.set_device(local_rank)
        self._store = store
        if isinstance(store, tuple):
            self._store = torch.distributed.TCPStore(*store, size, is_master=False)
        self.way = way or ("peer" if local_size == size and all_can_read_each_other(size) else "gather")
        self.is_broken = False
        self._failed = torch.zeros(1, dtype=torch.int32).pin_memory()
        """The host's, so that `abort` asks nothing of CUDA: a thread that loads a kernel holds CUDA's lock until the
        kernels have ended that wait for a peer."""
        self._half = 0
        self._shared: PeerMemory | None = None
        self._nccl: Any = None

    # ---- memory

    def allocate(self, slot_floats: int, num_ids: int) -> None:
        """Room for parts of so many numbers, and for the ids that rank 0 draws."""
        self._slot, ids, flags = (
            -(-count // ALIGNED) * ALIGNED for count in (slot_floats, num_ids, self.size * MAX_PROGRAMS)
        )
        self._memory, of_rank_0, bases = self._connect(2 * self._slot + ids + flags)
        self.ids = of_rank_0[2 * self._slot :][:num_ids].view(torch.int32)
        self._counters = torch.zeros(MAX_PROGRAMS, dtype=torch.int32, device=self.device)
        self._flags = self._addresses([base + 4 * (2 * self._slot + ids) for base in bases])
        halves = ([base + 4 * half * self._slot for base in bases] for half in (0, 1))
        self._meetings = [self._meeting(self._addresses(slots)) for slots in halves]
        self._gathered_slots: dict[int, Meeting] = {}

    def _connect(self, total: int) -> tuple[Any, Any, list[int]]:
        """(this rank's memory; rank 0's, or a copy that `begin` makes; where every rank's begins, from here)."""
        if self.way == "peer":
            own = self._shared = PeerMemory(total)
            handles = self._told("memory", own.handle)
            bases = [own.address if rank == self.rank else own.opened(told) for rank, told in enumerate(handles)]
            self._told("opened", b"yes")
            return own.floats, view(bases[0], total), bases
        identities = self._told("nccl", b"" if self.rank else nccl.new_identity())
        self._nccl = nccl.Communicator(identities[0], self.rank, self.size, lambda: self.is_broken)
        if self.is_broken:  # by a rank that has gone since they met
            self._nccl.abort()
        memory = torch.zeros(total, dtype=torch.float32, device=self.device)
        self._gathered = torch.empty(self.size * self._slot, dtype=torch.float32, device=self.device)
        return memory, memory, [memory.data_ptr()] * self.size

    def _meeting(self, slots: Any) -> Meeting:
        waits = self.way == "peer"
        return Meeting(slots, self._flags, self._counters, self._failed, self.rank, self.size, waits)

    def _addresses(self, addresses: list[int]) -> Any:
        return torch.tensor(addresses, dtype=torch.int64).to(self.device)

    def _told(self, what: str, own: bytes) -> list[bytes]:
        """What every rank says, in their order, once all have. Raises EngineError if one is gone meanwhile."""
        names = [f"zerokl/{what}/{rank}" for rank in range(self.size)]
        self._store.set(names[self.rank], own)
        while not self._store.check(names):
            if self.is_broken:
                raise EngineError("a rank is gone")
            time.sleep(POLL_S)
        return [self._store.get(name) for name in names]

    def all_have_met(self) -> None:
        """Every rank says that it is ready: nobody listens any longer for those who look for the others."""
        self._store = None

    # ---- rounds

    def begin(self) -> None:
        """First in every run of launches: from here on all read what rank 0 drew before, and the first half is free."""
        self._half = 0
        if self.way == "peer":
            exchange.only_meet(self._meetings[0])
        else:
            self._nccl.broadcast(self.ids)

    def place(self, shape: tuple[int, int]) -> Any:
        """Where this rank's part of the round goes: [T, N] f32."""
        size = shape[0] * shape[1]
        if size > self._slot:
            raise EngineError(f"a part of {shape[0]} by {shape[1]} is larger than a rank's slot")
        return self._memory[self._half * self._slot :][:size].view(shape)

    def fold(self, shape: tuple[int, int], count: int, bias: Any, y: Any, added: bool) -> Any:
        """y, filled with or added the tree over the parts [T, N] that the first `count` ranks placed."""
        return exchange.fold(self._turn(shape[0] * shape[1]), shape, count, bias, y, added)

    def joined(self, rows: int, bounds: tuple[int, ...]) -> Any:
        """[T, N] f32, the ranks' columns side by side: on rank 0, who draws and scores. The others get nothing new."""
        widest = max(last - first for first, last in pairwise(bounds))
        own = self.place((rows, bounds[self.rank + 1] - bounds[self.rank]))
        meeting = self._turn(rows * widest)
        if self.rank == 0:
            y = torch.empty((rows, bounds[-1]), dtype=torch.float32, device=self.device)
            return exchange.joined(meeting, y, bounds)
        if meeting.waits:
            exchange.only_meet(meeting, like=exchange.blocks_of(rows, bounds[-1]))
        return own

    def rows(self, weight: Any, ids: Any, bounds: tuple[int, ...]) -> Any:
        """[T, E] f32: rows of a weight of which rank r has bounds[r] .. bounds[r + 1] - 1."""
        shape = len(ids), weight.shape[1]
        exchange.place_rows(weight, ids, self.place(shape), bounds[self.rank], bounds[self.rank + 1])
        return exchange.taken(self._turn(shape[0] * shape[1]), ids, shape, bounds)

    def _turn(self, size: int) -> Meeting:
        """The meeting over the half that was written, `size` numbers at most; the other half is next."""
        half, self._half = self._half, 1 - self._half
        return self._meetings[half] if self.way == "peer" else self._all_gathered(half, size)

    def _all_gathered(self, half: int, size: int) -> Meeting:
        """Parts of equal size behind each other, at addresses that depend on the size."""
        padded = min(-(-size // ALIGNED) * ALIGNED, self._slot)
        own = self._memory[half * self._slot :][:padded]
        self._nccl.all_gather(own, self._gathered)
        if padded not in self._gathered_slots:
            base = self._gathered.data_ptr()
            slots = self._addresses([base + 4 * rank * padded for rank in range(self.size)])
            self._gathered_slots[padded] = self._meeting(slots)
        return self._gathered_slots[padded]

    # ---- end

    def abort(self) -> None:
        """A peer is gone: whoever waits for it, now or later, goes on, with numbers that nobody may use.

        Safe to call again.
        """
        if self.is_broken:
            return
        self.is_broken = True
        self._failed.fill_(1)
        if self._nccl is not None:
            self._nccl.abort()

    def close(self) -> None:
        """Nothing can be run any more. Safe to call again."""
        self.abort()  # a step that nobody asks for any more may be waiting
        if self._shared is None:
            return
        with torch.cuda.device(self.device):  # a caller may have chosen another one since
            self._shared.close()


def all_can_read_each_other(size: int) -> bool:
    return all(
        torch.cuda.can_device_access_peer(one, other) for one in range(size) for other in range(size) if one != other
    )
