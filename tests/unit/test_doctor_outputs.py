"""What commands print is read right, whole, cut short or damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwtune.domain.doctor import cpu, npu, nvidia, rocm
from hwtune.domain.doctor.records import MIB, CommandOutput
from tests.unit import doctor_outputs as outputs


def brief(devices: Any) -> list[tuple[Any, ...]]:
    return [(d.index, d.name, d.arch, d.memory_bytes, d.used_bytes) for d in devices]


def test_nvidia_gpus() -> None:
    assert brief(nvidia.parse_gpus(outputs.NVIDIA_H100)) == [
        ("0", "NVIDIA H100 80GB HBM3", "sm_90", 81559 * MIB, 4 * MIB),
        ("1", "NVIDIA H100 80GB HBM3", "sm_90", 81559 * MIB, 46867 * MIB),
    ]
    assert nvidia.parse_gpus(outputs.NVIDIA_H100)[1].evidence.line == 2


def test_a_gpu_that_shares_the_hosts_memory_states_none() -> None:
    assert brief(nvidia.parse_gpus(outputs.NVIDIA_GB10)) == [
        ("0", "NVIDIA GB10", "sm_121", None, None)
    ]


def test_an_old_driver_answers_without_the_compute_capability() -> None:
    assert nvidia.parse_gpus(outputs.NVIDIA_470) == ()
    old = outputs.said(nvidia.OLD_GPU_QUERY, "0, Tesla V100-PCIE-32GB, 32480, 0, 470.182.03\n")
    assert brief(nvidia.parse_gpus(old)) == [("0", "Tesla V100-PCIE-32GB", None, 32480 * MIB, 0)]


def test_nvidia_processes_and_the_drivers_cuda() -> None:
    first, second = nvidia.parse_processes(outputs.NVIDIA_PROCESSES)
    assert (first.pid, first.name, first.used_bytes) == (3518784, "python3", 452 * MIB)
    assert (second.pid, second.used_bytes) == (29153, None)
    found = nvidia.driver_cuda(outputs.NVIDIA_HEADER)
    assert found is not None
    assert found[0] == (13, 0)
    assert found[1].line == 2


def test_the_two_dialects_of_rocm_smi() -> None:
    assert brief(rocm.parse_smi(outputs.DCU_SMI)) == [
        ("0", "K100_AI", None, 65520 * MIB, 2 * MIB),
        ("1", "K100_AI", None, 65520 * MIB, 60000 * MIB),
    ]
    assert brief(rocm.parse_smi(outputs.ROCM_SMI)) == [
        ("0", "Radeon RX 7900 XT", "gfx1100", 21458059264, 27856896)
    ]
    assert brief(rocm.parse_smi(outputs.ROCM_SMI_APU)) == [("0", "Phoenix3", None, None, None)]


def test_a_warning_before_the_json_does_not_matter() -> None:
    noisy = outputs.said(outputs.ROCM_SMI.argv, "WARNING: AMD GPU device(s) is/are in a low-power "
                         "state.\n" + outputs.ROCM_SMI.stdout)  # fmt: skip
    assert brief(rocm.parse_smi(noisy)) == brief(rocm.parse_smi(outputs.ROCM_SMI))


def test_a_process_that_only_opened_kfd_holds_no_gpu() -> None:
    (process,) = rocm.parse_kfd_processes(outputs.KFD_PROCESSES)
    assert (process.pid, process.name) == (4242, "VLLM::EngineCor")
    assert process.used_bytes == 57_000_000_000


def test_rocminfo_lists_gpu_agents_only() -> None:
    assert [(d.index, d.name, d.arch) for d in rocm.parse_rocminfo(outputs.ROCMINFO_DCU)] == [
        ("0", "BW1000", "gfx936"),
        ("1", "BW1000", "gfx936"),
    ]


def test_amd_smi_states_the_architecture_or_not() -> None:
    assert [(d.index, d.name, d.arch) for d in rocm.parse_amd_smi(outputs.AMD_SMI)] == [
        ("0", "AMD Instinct MI350X", "gfx950"),
        ("1", "Phoenix3", None),
    ]


def test_atlas_a2() -> None:
    assert brief(npu.parse_npus(outputs.NPU_A2)) == [
        ("0/0", "910B2", "910B", 65536 * MIB, 59891 * MIB),
        ("1/0", "910B2", "910B", 65536 * MIB, 3395 * MIB),
    ]
    assert [device.healthy for device in npu.parse_npus(outputs.NPU_A2)] == [True, False]
    (process,) = npu.parse_processes(outputs.NPU_A2)
    assert (process.pid, process.name) == (669096, "VLLMWorker_TP")
    assert process.used_bytes == 55124 * MIB


def test_atlas_a3_has_two_chips_on_a_card() -> None:
    assert brief(npu.parse_npus(outputs.NPU_A3)) == [
        ("0/0", "Ascend910", "910C", 65536 * MIB, 3419 * MIB),
        ("0/1", "Ascend910", "910C", 65536 * MIB, 2874 * MIB),
    ]
    assert [process.pid for process in npu.parse_processes(outputs.NPU_A3)] == [632268]


def test_a_310p_has_no_hbm_and_states_its_memory() -> None:
    assert brief(npu.parse_npus(outputs.NPU_310P)) == [
        ("2/0", "310P3", "310P", 44216 * MIB, 1417 * MIB),
        ("2/1", "310P3", "310P", 43757 * MIB, 1516 * MIB),
    ]


def test_lscpu() -> None:
    device = cpu.parse_cpu(outputs.LSCPU)
    assert device is not None
    assert (device.kind, device.name, device.arch) == ("cpu", "AMD EPYC", "x86_64")
    assert "avx512_bf16" in cpu.flags(outputs.LSCPU)
    assert cpu.parse_cpu(outputs.said(("lscpu",), "lscpu: cannot open /sys")) is None


PARSERS: list[tuple[Callable[[CommandOutput], Any], CommandOutput]] = [
    (nvidia.parse_gpus, outputs.NVIDIA_H100),
    (nvidia.parse_processes, outputs.NVIDIA_PROCESSES),
    (nvidia.driver_cuda, outputs.NVIDIA_HEADER),
    (rocm.parse_smi, outputs.DCU_SMI),
    (rocm.parse_kfd_processes, outputs.KFD_PROCESSES),
    (rocm.parse_rocminfo, outputs.ROCMINFO_DCU),
    (rocm.parse_amd_smi, outputs.AMD_SMI),
    (npu.parse_npus, outputs.NPU_A2),
    (npu.parse_processes, outputs.NPU_A2),
    (cpu.parse_cpu, outputs.LSCPU),
]


@pytest.mark.parametrize(("parse", "output"), PARSERS)
@given(data=st.data())
def test_cut_or_damaged_output_is_read_as_far_as_it_goes(
    parse: Callable[[CommandOutput], Any], output: CommandOutput, data: st.DataObject
) -> None:
    """No parser raises, whatever a tool that dies half-way has printed."""
    text = output.stdout
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, len(text)))
    middle = data.draw(st.text(max_size=20))
    parse(outputs.said(output.argv, text[:start] + middle + text[stop:]))
