"""NCCL's all-gather and broadcast, for GPUs that can't read each other's memory.

The library's own calls (NCCL user guide, "Collective Communication Functions" and "Aborting a communicator"), on the
current stream, in CUDA graphs too. torch's process group would do, but its watchdog ends the whole process when a peer
is gone (TORCH_NCCL_ASYNC_ERROR_HANDLING), and that is to be one error here.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from zerokl.errors import EngineError
from zerokl.parallel.host_group import PeerGone

BYTES = 0
"""ncclInt8: what is moved has no type."""
REMOTE_ERROR = 6
"""ncclRemoteError: a peer has ended, or the network to it."""
POLL_S = 0.01
CALL_S = 1.0
"""A call that takes longer waits for a peer."""


class Identity(ctypes.Structure):
    """ncclUniqueId: goes to the library by value."""

    _fields_ = (("internal", ctypes.c_byte * 128),)


@cache
def library() -> ctypes.CDLL:
    """The one that torch has loaded."""
    found = ctypes.CDLL("libnccl.so.2")
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    found.ncclGetUniqueId.argtypes = (ctypes.POINTER(Identity),)
    found.ncclCommInitRank.argtypes = ctypes.POINTER(pointer), number, Identity, number
    found.ncclAllGather.argtypes = pointer, pointer, size, number, pointer, pointer
    found.ncclBroadcast.argtypes = pointer, pointer, size, number, number, pointer, pointer
    found.ncclCommAbort.argtypes = (pointer,)
    found.ncclGetErrorString.argtypes = (number,)
    found.ncclGetErrorString.restype = ctypes.c_char_p
    return found


def call(name: str, *arguments: Any) -> None:
    """Raises PeerGone, EngineError."""
    status = getattr(library(), name)(*arguments)
    if status:
        text = library().ncclGetErrorString(status).decode()
        kind = PeerGone if status == REMOTE_ERROR else EngineError
        raise kind(f"{name}: {text} ({status}; NCCL_DEBUG=WARN says more)")


def new_identity() -> bytes:
    """By which the ranks of one communicator find each other. Raises EngineError."""
    identity = Identity()
    call("ncclGetUniqueId", ctypes.byref(identity))
    return bytes(identity)


class Communicator:
    """What the ranks of a group share; all make the same calls in the same order."""

    def __init__(self, identity: bytes, rank: int, size: int, is_rank_gone: Callable[[], bool]) -> None:
        """Returns once all are here, on this thread's GPU. Raises PeerGone, EngineError."""
        self._handle = ctypes.c_void_p()
        self._calling = threading.Lock()
        self._is_over = False
        device, failed = torch.cuda.current_device(), []

        def meet() -> None:
            torch.cuda.set_device(device)
            try:
                call("ncclCommInitRank", ctypes.byref(self._handle), size, Identity.from_buffer_copy(identity), rank)
            except EngineError as error:
                failed.append(error)

        meeting = threading.Thread(target=meet, name="nccl", daemon=True)
        meeting.start()
        while meeting.is_alive():
            meeting.join(POLL_S)
            if is_rank_gone():
                raise PeerGone("a rank is gone")  # NCCL itself would wait for it
        if failed:
            raise failed[0]

    def all_gather(self, own: Any, gathered: Any) -> None:
        """`gathered`, filled with every rank's `own`, in their order. Raises PeerGone, EngineError."""
        self._round("ncclAllGather", own.data_ptr(), gathered.data_ptr(), own.nbytes, BYTES)

    def broadcast(self, values: Any) -> None:
        """`values`, filled with rank 0's. Raises PeerGone, EngineError."""
        self._round("ncclBroadcast", values.data_ptr(), values.data_ptr(), values.nbytes, BYTES, 0)

    def _round(self, name: str, *arguments: Any) -> None:
        with self._calling:
            if self._is_over:
                raise PeerGone("a rank is gone")
            call(name, *arguments, self._handle, torch.cuda.current_stream().cuda_stream)

    def abort(self) -> None:
        """Whoever waits for a peer goes on, with numbers that nobody may use.

        Returns at once: NCCL gives its memory back only when no graph with its work is left.
        """
        self._is_over = True
        threading.Thread(target=self._end, name="nccl", daemon=True).start()

    def _end(self) -> None:
        if self._calling.acquire(timeout=CALL_S):  # a call that has begun ends first, unless it waits for a peer
            self._calling.release()
        library().ncclCommAbort(self._handle)
