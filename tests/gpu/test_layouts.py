"""What a sum over a row relies on: how the compiler gives rows to warps. Read off its intermediate code."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from zerokl.ops.choices import ONE_ROW_TABLE, WARP_ROW_TABLE, Relay
from zerokl.ops.work import LONG_ROWS

code = importlib.import_module("zerokl.ops.triton.one_row_code")
rows = importlib.import_module("zerokl.ops.triton.one_row")
relays = importlib.import_module("zerokl.ops.triton.relay")
relay_code = importlib.import_module("zerokl.ops.triton.relay_code")
warp_rows = importlib.import_module("zerokl.ops.triton.warp_row")
warp_code = importlib.import_module("zerokl.ops.triton.warp_row_code")
kernels = importlib.import_module("zerokl.ops.triton.attention")

FLOATS = {"scale", "after", "v_scale"}
NARROW = {"q", "y"}
WIDE = {"table", "part_peak", "part_total", "part_out"}
POINTERS = {"page_table", "arrived", "items", "num_items"}


def type_of(name: str, size: int) -> str:
    if name.startswith("pool_"):
        return f"tensordesc<bf16[64, {size}]>"
    if name in NARROW | WIDE | POINTERS:
        return "*bf16" if name in NARROW else "*fp32" if name in WIDE else "*i32"
    return "fp32" if name in FLOATS else "i32"


def warps_of(kernel: Any, tile: Any, size: int, biased: bool) -> list[int]:
    """[rows, columns]: how many warps the first product's result is spread over."""
    chosen: dict[str, Any] = {"H": 4, "K": 2, "D": size, "ROWS": tile.rows, "CHUNK": 512, "BULK": True, "ITEM_SIZE": 8}
    chosen |= {"REGISTERS": tile.registers, "WINDOWED": True, "CAPPED": False, "BIASED": biased}
    if "WARPS" in kernel.arg_names:
        chosen["WARPS"] = tile.sharing
    if "PARTS" in kernel.arg_names:
        chosen["PARTS"] = LONG_ROWS // tile.rows
    names = kernel.arg_names
    signature = {name: "constexpr" if name in chosen else type_of(name, size) for name in names}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in chosen.items()}, {})
    options = {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": False}
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ttgir"]
    (found,) = {match[1] for match in re.finditer(r"nvidia_mma<\{[^}]*warpsPerCTA = \[(\d, \d)\]", code)}
    return [int(count) for count in found.split(", ")]


@pytest.mark.device
@pytest.mark.timeout(300)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("size", [16, 32, 64, 128, 256])
def test_rows_lie_in_warps_as_their_sums_rely_on(size, biased):
    for tile in (kernels.SHORT, kernels.MANY_SHORT):
        used = kernels.short_tile(tile, size)
        assert warps_of(kernels.short_tiles, used, size, biased) == [1, used.sharing]
    assert warps_of(kernels.long_tiles, kernels.LONG, size, biased) == [kernels.LONG.warps, 1]


@pytest.mark.device
def test_four_warps_do_not_share_rows_of_sixteen_columns():
    """Why there is one warp then: with four, each has rows of its own, and a row's sum would be another."""
    assert warps_of(kernels.short_tiles, kernels.SHORT, 16, False) == [4, 1]


@pytest.mark.device
@pytest.mark.timeout(300)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("form", list(ONE_ROW_TABLE))
def test_one_row_has_no_shared_memory_but_the_piece_that_its_assembly_names(form, gated):
    """Anything else of the compiler's could lie at the first byte."""
    nvfp4, depth = form == "nvfp4", 4096
    for way in ONE_ROW_TABLE[form][3:] if gated else ONE_ROW_TABLE[form][:3]:
        x_bytes, pool = rows.shared_bytes(depth, nvfp4, way)
        step = (code.turn_block if way.teams == 2 else code.step_block)(nvfp4, way.tiles, way.copies)
        texts = {"COPY_TEXT": code.copy_block(nvfp4, way.tiles), "STEP_TEXT": step}
        texts["GIVEN_TEXT"] = code.x_block(4 // way.teams, 128 * way.teams)
        chosen: dict[str, Any] = {"NVFP4": nvfp4, "SCALED": 1, "GATED": gated, "BIASED": True, "ADDED": not gated}
        chosen |= {"TEAMS": way.teams, "PANELS": way.panels, "T": way.tiles, "S": way.copies, "POOL": pool}
        chosen |= {"X_BYTES": x_bytes, "AT_ONCE": 4 // way.teams} | texts
        assert shared_of(rows.one_row, chosen, 4 * way.teams) == pool, way


def shared_of(kernel: Any, chosen: dict[str, Any], warps: int) -> int:
    """Bytes of shared memory that the compiler gives a kernel of one row."""
    names = kernel.arg_names
    types = {"x": "*bf16", "words": "*i32", "scales": "*i32", "factors": "*fp32", "bias": "*fp32", "y": "*fp32"}
    signature = {name: "constexpr" if name in chosen else types.get(name, "i32") for name in names}
    source = GluonASTSource(kernel, signature, {(names.index(name),): value for name, value in chosen.items()})
    options = {"num_warps": warps, "enable_fp_fusion": False}
    return int(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).metadata.shared)


@pytest.mark.device
@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", list(ONE_ROW_TABLE))
@pytest.mark.parametrize("way", [Relay(2, 1), Relay(3, 2)])
def test_a_relay_has_no_other_shared_memory_either(form, way):
    nvfp4, depth, warps = form == "nvfp4", 4096, 8 * way.groups
    pool, text = relays.pool_bytes(depth, way), relay_code.roles(nvfp4, depth, way.panels, way.groups)
    chosen = {"SCALED": 1, "ADDED": True, "NVFP4": nvfp4, "WARPS": warps, "PANELS": way.panels, "POOL": pool}
    assert shared_of(relays.relay, chosen | {"ROLES_TEXT": text}, warps) == pool


@pytest.mark.device
@pytest.mark.timeout(300)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("form", list(WARP_ROW_TABLE))
def test_warps_of_one_row_have_none_either(form, gated):
    nvfp4, depth, sides = form == "nvfp4", 4096, 2 if gated else 8
    for way in WARP_ROW_TABLE[form][2:] if gated else WARP_ROW_TABLE[form][:2]:
        sums, pool = warp_rows.shared_bytes(depth, sides, nvfp4, way, 128)
        chosen: dict[str, Any] = {"NVFP4": nvfp4, "SCALED": 1, "GATED": gated, "BIASED": True, "ADDED": not gated}
        chosen |= {"LEAVES": 1 if gated else sides, "PANELS": way.panels, "SUMS": sums, "POOL": pool}
        threads = 32 * way.panels * sides
        chosen["CHAIN_TEXT"] = warp_code.chain(nvfp4, depth, chosen["LEAVES"], way.tiles, way.copies, threads)
        chosen["MEET_TEXT"] = warp_code.meet(sides, gated)
        assert shared_of(warp_rows.warp_row, chosen, threads // 32) == pool, way
