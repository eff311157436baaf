"""Counting machine code: small listings of both vendors, and what makes a row a fault."""

from __future__ import annotations

import dataclasses

import pytest
from hwtune_kernels.static.assembly import (
    amd_resources,
    hot_loop,
    nvidia_resources,
)

from hwtune.domain.kernel_static import StaticReport, StaticRow, StaticShape, faults, work_ratio

SASS = """\
Function:_kernel
--:-:-:-:1\tMOV R1, c[0x0][0x28];
LBB0:
--:-:2:-:1\tLDG.E R2, desc[UR4][R6.64];
LBB1:
--:-:-:-:1\tLDGSTS.E.BYPASS.128 [R9], desc[UR4][R4.64];
--:-:-:-:1\tHMMA.16816.F32.BF16 R8, R4, R6, R8;
--:-:-:Y:5\t@!P0 BRA LBB1;
--:-:-:-:b\tBRA LBB0;
LBB2:
--:-:-:-:1\tHMMA.16816.F32.BF16 R8, R4, R6, R8;
--:-:-:-:1\tIMAD.HI.U32 R7, R7, 0x4ec4ec4f, RZ;
--:-:-:-:1\tI2F.U32.RP R2, R3;
--:-:-:-:5\t@P0 BRA LBB2;
LBB3:
--:-:-:-:1\tBRA LBB3;
"""

AMD = """\
\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
kernel:                                 ; @kernel
\ts_load_dwordx2 s[0:1], s[4:5], 0x0     ; block table
.LBB0_1:                                ; =>This Inner Loop Header: Depth=1
\t.loc\t1 53 16                         ; triton.py:53:16
\tbuffer_load_dwordx4 v[4:7], v1, s[0:3], 0 offen
\tglobal_load_dword v8, v9, s[0:1]
.Ltmp3:
\tv_mul_hi_u32 v3, v3, s7
\tv_mfma_f32_16x16x16_bf16 v[0:3], v[4:5], v[6:7], v[0:3]
\ts_cbranch_scc1 .LBB0_1
\ts_endpgm
; Occupancy: 2
    .private_segment_fixed_size: 12
    .sgpr_count:     63
    .sgpr_spill_count: 1
    .vgpr_count:     200
    .vgpr_spill_count: 2
"""

PTXAS = """\
ptxas info    : Function properties for kernel
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 16 bytes cumulative stack size
"""


def test_the_nested_loop_counts_and_not_the_one_behind_it() -> None:
    loop = hot_loop(SASS)
    assert loop is not None
    assert (loop.instructions, loop.depth, loop.matrix) == (3, 1, 1)
    assert (loop.wide_loads, loop.narrow_loads, loop.divisions) == (1, 0, 0)


def test_divisions_and_narrow_loads_are_seen() -> None:
    flat = SASS.partition("LBB2:")
    loop = hot_loop(flat[1] + flat[2])
    assert loop is not None
    assert (loop.instructions, loop.divisions) == (4, 2)
    loop = hot_loop(AMD)
    assert loop is not None
    assert (loop.instructions, loop.wide_loads, loop.narrow_loads, loop.divisions) == (5, 1, 1, 1)


def test_a_listing_without_matrix_instructions_has_no_loop_that_counts() -> None:
    assert hot_loop(SASS.replace("HMMA", "FFMA")) is None


def test_resources_of_both_vendors() -> None:
    amd, nvidia = amd_resources(AMD), nvidia_resources(PTXAS)
    assert (amd.registers, amd.spill_bytes, amd.stack_bytes) == (200, 12, 12)
    assert (nvidia.registers, nvidia.spill_bytes, nvidia.stack_bytes) == (128, 20, 16)


def test_missing_numbers_are_an_error_and_never_zero() -> None:
    with pytest.raises(ValueError, match="printed no registers"):
        nvidia_resources("ptxas fatal   : Unsupported .version")
    with pytest.raises(ValueError, match=r"no \.vgpr_count"):
        amd_resources(AMD.replace(".vgpr_count", ".count"))


GENERIC = StaticRow(
    operation="decode",
    kernel="vLLM generic",
    ours=False,
    target="sm_90",
    rows=6,
    tile_tokens=16,
    num_warps=4,
    num_stages=3,
    registers=140,
    spill_bytes=0,
    shared_bytes=25216,
    loop_instructions=400,
    wide_loads=8,
    narrow_loads=2,
    divisions=5,
    matrix=24,
    per_16_tokens=400.0,
    warp_work=16000.0,
)
OURS = dataclasses.replace(
    GENERIC, kernel="page_decode", ours=True, narrow_loads=0, divisions=0, warp_work=8000.0
)


def report(*rows: StaticRow) -> StaticReport:
    shape = StaticShape(num_heads=24, num_kv_heads=4, head_size=256, page=832)
    return StaticReport(triton_version="3", vllm_version="0", shape=shape, rows=rows, notes=())


def test_a_good_kernel_has_no_fault_and_half_the_work() -> None:
    assert faults(report(GENERIC, OURS)) == ()
    assert work_ratio(OURS, (GENERIC, OURS)) == 0.5


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"spill_bytes": 8}, "spills 8 bytes"),
        ({"divisions": 2}, "2 instructions of integer division"),
        ({"narrow_loads": 3}, "3 narrow loads"),
        ({"warp_work": 20000.0}, "1.25 times the generic kernel's work"),
    ],
    ids=str,
)
def test_what_is_a_fault(change: dict[str, float], fault: str) -> None:
    bad = dataclasses.replace(OURS, **change)  # type: ignore[arg-type]
    (found,) = faults(report(GENERIC, bad))
    assert found.startswith("page_decode on sm_90: ")
    assert fault in found


def test_vllms_own_geometry_excuses_narrow_loads_where_vllm_has_them_too() -> None:
    narrow = dataclasses.replace(GENERIC, wide_loads=0, narrow_loads=4)
    same = dataclasses.replace(OURS, wide_loads=0, narrow_loads=2)
    assert faults(report(narrow, same)) == ()
    larger = dataclasses.replace(same, tile_tokens=32)
    assert "2 narrow loads" in faults(report(narrow, larger))[0]


def test_operations_and_targets_are_not_compared_with_each_other() -> None:
    other = dataclasses.replace(GENERIC, target="gfx942", warp_work=1.0)
    prefill = dataclasses.replace(GENERIC, operation="prefill", warp_work=1.0)
    assert work_ratio(OURS, (other, prefill, GENERIC, OURS)) == 0.5
