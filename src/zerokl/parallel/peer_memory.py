"""Memory of one GPU that the GPUs of other processes of this machine read and write.

    this process    cuMemAlloc ─▶ a handle of 64 bytes ─▶ told to the others
    another one     the handle ─▶ an address there, of the same memory, over NVLink or PCIe

The driver's own calls (CUDA driver API, "Unified Addressing" and "IPC memory handles"). torch's symmetric memory does
the same, but numbers what it asks its peers for the life of a process: a second group whose rank 0 is an old process
and whose others are new waits for ever (torch 2.11, `StoreExchange`).
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache
from typing import Any

import torch

from zerokl.errors import EngineError

PEERS_MAY_READ = 1
"""CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS."""


class Handle(ctypes.Structure):
    """CUipcMemHandle: goes to the driver by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


@cache
def driver() -> ctypes.CDLL:
    found = ctypes.CDLL("libcuda.so.1")
    address, place = ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)
    found.cuMemAlloc_v2.argtypes = place, ctypes.c_size_t
    found.cuMemFree_v2.argtypes = (address,)
    found.cuIpcGetMemHandle.argtypes = ctypes.POINTER(Handle), address
    found.cuIpcOpenMemHandle_v2.argtypes = place, Handle, ctypes.c_uint
    found.cuIpcCloseMemHandle.argtypes = (address,)
    found.cuGetErrorString.argtypes = ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)
    return found


def call(name: str, *arguments: Any) -> None:
    """Raises EngineError."""
    status = getattr(driver(), name)(*arguments)
    if status:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(status, ctypes.byref(text))
        raise EngineError(f"{name}: {(text.value or b'unknown error').decode()} ({status})")


class PeerMemory:
    """Zeros on the current GPU, and the same of its peers once their handles have come."""

    def __init__(self, num_floats: int) -> None:
        """Raises EngineError."""
        self._num_floats = num_floats
        self._own = ctypes.c_uint64()
        self._peers: list[ctypes.c_uint64] = []
        torch.cuda.current_stream().synchronize()  # the driver needs torch's context
        call("cuMemAlloc_v2", ctypes.byref(self._own), 4 * num_floats)
        self.floats.zero_()
        torch.cuda.synchronize()

    @property
    def address(self) -> int:
        return self._own.value or 0

    @property
    def floats(self) -> Any:
        """[num_floats] f32, this GPU's own."""
        return view(self.address, self._num_floats)

    @property
    def handle(self) -> bytes:
        handle = Handle()
        call("cuIpcGetMemHandle", ctypes.byref(handle), self._own)
        return bytes(handle)

    def opened(self, handle: bytes) -> int:
        """Where another process's memory lies for kernels of this GPU. Raises EngineError."""
        peer = ctypes.c_uint64()
        call("cuIpcOpenMemHandle_v2", ctypes.byref(peer), Handle.from_buffer_copy(handle), PEERS_MAY_READ)
        self._peers.append(peer)
        return peer.value or 0

    def close(self) -> None:
        """Nothing may run that reads it. Safe to call again; a GPU that has failed gives nothing back."""
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize()
        while self._peers:
            with contextlib.suppress(EngineError):
                call("cuIpcCloseMemHandle", self._peers.pop())
        if self._own:
            with contextlib.suppress(EngineError):
                call("cuMemFree_v2", self._own)
            self._own = ctypes.c_uint64()


def view(address: int, num_floats: int) -> Any:
    """[num_floats] f32 at an address, which must live on. A peer's counts for torch as on the peer's GPU."""
    return torch.as_tensor(Floats(address, num_floats))


class Floats:
    """What torch takes a tensor from without a copy: the CUDA array interface, version 3."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "<f4", "data": (address, False), "version": 3}
