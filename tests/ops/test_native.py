"""What every native function keeps: settings that move no bit, the float mode, the GIL."""

from __future__ import annotations

import ctypes
import mmap
import platform
import threading
import time

import numpy as np
import pytest

from tests.ops.cpus import cpu
from tests.ops.numbers import same, subnormal, wide
from zerokl import _native, ops


def test_the_best_instruction_set_is_the_default_and_scalar_is_always_there():
    assert _native.isas()[-1] == "scalar"
    assert _native.isa() == _native.isas()[0]
    assert _native.threads() >= 1


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="can't run 'mmx'; it can run"):
        _native.set_isa("mmx")
    with pytest.raises(ValueError, match="at least one thread"):
        _native.set_threads(0)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="writes the x86 float control word")
def test_another_librarys_flush_to_zero_changes_nothing_and_is_put_back():
    load, store = float_control()
    word = ctypes.c_uint32()
    store(ctypes.byref(word))
    usual = word.value
    x, matrix = subnormal(1, 20, 40), ops.pack(subnormal(2, 64, 40), "float32")
    expected = ops.linear(x, matrix)
    assert (np.abs(expected) < 2.0**-126).mean() > 0.9
    assert (expected != 0).mean() > 0.9
    try:
        load(ctypes.byref(ctypes.c_uint32(usual | 0x8040)))
        flushed = x[:1] * x[0, 0]
        got = [ops.linear(x, matrix) for _ in range(3)]
        store(ctypes.byref(word))
    finally:
        load(ctypes.byref(ctypes.c_uint32(usual)))
    assert not flushed.any(), "the planted mode flushes"
    assert word.value & 0x8040 == 0x8040, "and is still there afterwards"
    assert all(same(y, expected) for y in got)


def float_control():
    """(load, store) of MXCSR: `ldmxcsr [rdi]; ret` and `stmxcsr [rdi]; ret` in a page of our own."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\x0f\xae\x17\xc3\x0f\xae\x1f\xc3")
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    function = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
    pair = function(address), function(address + 4)
    for f in pair:
        f.page = code  # type: ignore[attr-defined]  # keeps the page mapped
    return pair


def test_python_runs_while_a_kernel_runs():
    x, matrix = wide(1, 256, 512), ops.pack(wide(2, 2048, 512), "float32")
    finished = threading.Event()
    ticks = 0

    def work() -> None:
        with cpu("scalar", 1):
            ops.linear(x[:16], matrix)
        finished.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not finished.is_set():
        ticks += 1
        time.sleep(0.0005)
    thread.join()
    assert ticks > 5
