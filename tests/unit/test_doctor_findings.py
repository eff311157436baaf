"""What the doctor concludes about devices, profiles, leftovers and limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hwtune.domain.doctor.leftovers import without_secrets
from hwtune.domain.doctor.records import (
    GIB,
    MIB,
    CommandOutput,
    Limit,
    ProcessFacts,
    SharedFile,
    Space,
)
from tests.unit import doctor_outputs as outputs
from tests.unit.doctor_facts import (
    CPU_PYTHON,
    examine,
    facts,
    finding,
    installed,
    machine,
    python,
    statuses,
    torch_file,
)

DCU = {"hy-smi": outputs.DCU_SMI, "rocminfo": outputs.ROCMINFO_DCU}
DCU_PYTHON = python(
    installed("vllm", "0.18.1+das.dtk2604", "vllm"),
    installed("torch", "2.9.0+das", "torch"),
    installed("triton", "3.2.0+das", "triton"),
    files=(torch_file(hip="'6.3.42134'"),),
)


def test_a_healthy_cpu_machine_has_nothing_to_complain_about() -> None:
    report = examine(facts())
    assert set(statuses(report).values()) == {"ok"}
    assert (report.healthy, report.profile) == (True, "cpu")
    assert report.summary.startswith("no problem found")


def test_memory_of_the_smi_and_architecture_of_rocminfo_make_one_device() -> None:
    report = examine(facts(DCU, DCU_PYTHON))
    first = report.devices[0]
    assert (first.name, first.arch, first.memory_bytes) == ("K100_AI", "gfx936", 65520 * MIB)
    assert report.profile == "gfx936"
    assert finding(report, "profile").status == "ok"
    assert "Hygon DAS fork" in finding(report, "vllm").text


def test_another_architecture_than_the_named_profile_is_a_problem() -> None:
    report = examine(facts(DCU, DCU_PYTHON), "gfx942")
    found = finding(report, "profile")
    assert found.status == "problem"
    assert "gfx936" in found.text
    assert found.advice == "use --profile gfx936"


def test_an_architecture_that_nothing_states_leaves_the_profile_unknown() -> None:
    """The SMI of the DTK does not state it; rocminfo is not installed here."""
    report = examine(facts({"hy-smi": outputs.DCU_SMI}, DCU_PYTHON), "gfx936")
    assert finding(report, "profile").status == "unknown"


def test_a_device_without_a_profile() -> None:
    report = examine(facts({"amd-smi": outputs.AMD_SMI}, DCU_PYTHON))
    found = finding(report, "profile")
    assert (found.status, report.profile) == ("warning", None)
    assert "gfx950" in found.text
    assert "gfx942" in found.text


def test_a_profile_of_a_device_that_is_not_there() -> None:
    report = examine(facts(), "sm_90")
    assert finding(report, "profile").advice == "use --profile cpu"
    assert not report.healthy


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (outputs.NVIDIA_MISMATCH, "reboot"),
        (
            CommandOutput(argv=("nvidia-smi",), failure="no answer within 10 s", timed_out=True),
            "by hand",
        ),
    ],
)
def test_a_command_that_fails_or_hangs_leaves_the_device_unknown(
    output: CommandOutput, reason: str
) -> None:
    found = finding(examine(facts({"nvidia-gpus": output})), "silent-nvidia-gpus")
    assert found.status == "unknown"
    assert str(output.failure) in found.text
    assert reason in found.advice


def test_an_npu_that_another_container_has() -> None:
    found = finding(examine(facts({"npu": outputs.NPU_REFUSED})), "silent-npu")
    assert found.status == "unknown"
    assert "another container" in found.advice


def test_output_that_means_nothing_is_not_taken_for_no_device() -> None:
    odd = outputs.said(("npu-smi", "info"), "Usage: npu-smi info [options]\n")
    assert finding(examine(facts({"npu": odd})), "silent-npu").status == "unknown"


def test_a_device_file_without_its_command() -> None:
    report = examine(facts(machine=machine(device_files=("/dev/davinci3",))))
    assert finding(report, "no-command-npu").status == "unknown"


def test_an_unhealthy_npu() -> None:
    found = finding(examine(facts({"npu": outputs.NPU_A2})), "health-npu")
    assert found.status == "problem"
    assert "910B2 1/0" in found.text


def test_devices_of_two_architectures() -> None:
    mixed = outputs.ROCMINFO_DCU.stdout.replace("gfx936", "gfx928", 1)
    commands = {"rocminfo": outputs.said(outputs.ROCMINFO_DCU.argv, mixed)}
    found = finding(examine(facts(commands, DCU_PYTHON)), "mixed-devices")
    assert found.text == "devices of 2 architectures are visible: gfx928, gfx936"


def test_every_profile_that_was_not_chosen_says_why() -> None:
    lines = finding(examine(facts(DCU, DCU_PYTHON)), "profile").evidence
    reasons = {line.source: line.text for line in lines if line.source.startswith("profile ")}
    assert reasons["profile cpu"] == "it is for cpu, the device is rocm"
    assert "the device is gfx936" in reasons["profile gfx942"]
    assert "profile gfx936" not in reasons


def test_a_device_file_that_this_user_may_not_open() -> None:
    closed = machine(device_files=("/dev/kfd",), forbidden_files=("/dev/kfd",))
    found = finding(examine(facts(DCU, DCU_PYTHON, machine=closed)), "forbidden-rocm")
    assert found.status == "problem"
    assert "video, render" in found.advice


def process(**changes: Any) -> ProcessFacts:
    values: dict[str, Any] = {
        "pid": 500,
        "parent": 1,
        "parent_name": "systemd",
        "name": "VLLM::EngineCor",
        "command": "VLLM::EngineCore",
        "state": "S",
        "age_s": 7200.0,
        "serves": True,
        "devices": ("/dev/kfd",),
        "ports": (),
    }
    return ProcessFacts(**values | changes)


SERVER = process(
    pid=499, name="python3", command="python3 -m vllm.entrypoints.openai.api_server", devices=(),
    ports=(8000,),
)  # fmt: skip


def test_an_engine_whose_server_is_gone_is_shown_with_its_id() -> None:
    found = finding(examine(facts(machine=machine(processes=(process(),)))), "orphans")
    assert found.status == "problem"
    assert found.advice.endswith("kill 500")
    assert "holds /dev/kfd" in found.evidence[0].text


@pytest.mark.parametrize("parent", ["python3.11", "pt_main_thread", "ray::RayWorker"])
def test_an_engine_of_somebodys_script_is_no_orphan(parent: str) -> None:
    """vllm.LLM in a script: the parent lives, and its command line names no server."""
    engine = process(parent=77, parent_name=parent)
    found = statuses(examine(facts(machine=machine(processes=(engine,)))))
    assert "orphans" not in found
    assert found["servers"] == "warning"


def test_an_engine_that_a_shell_collected_is_an_orphan() -> None:
    engine = process(parent=77, parent_name="bash")
    assert "orphans" in statuses(examine(facts(machine=machine(processes=(engine,)))))


def test_stuck_processes_are_told_apart_from_running_ones() -> None:
    stuck = process(parent=499, state="D")
    report = examine(facts(machine=machine(processes=(SERVER, stuck))))
    assert finding(report, "stuck").status == "warning"


def test_an_engine_with_its_server_is_no_orphan() -> None:
    both = (SERVER, process(parent=499))
    report = examine(facts(machine=machine(processes=both, listening=(8000,))))
    assert "orphans" not in statuses(report)
    assert finding(report, "servers").status == "warning"
    assert finding(report, "port").text == "port 8000 is taken by process 499"


def test_a_server_that_is_the_containers_first_process_is_no_orphan() -> None:
    both = (replace(SERVER, pid=1, parent=0), process(parent=1))
    assert "orphans" not in statuses(examine(facts(machine=machine(processes=both))))


def test_a_port_taken_by_an_invisible_process() -> None:
    found = finding(examine(facts(machine=machine(listening=(8000,)))), "port")
    assert found.status == "warning"
    assert "not visible" in found.text
    free = examine(facts(machine=machine(listening=(8000,)), port=8001))
    assert finding(free, "port").status == "ok"


def test_device_memory_that_somebody_holds() -> None:
    commands = {"nvidia-gpus": outputs.NVIDIA_H100, "nvidia-processes": outputs.NVIDIA_PROCESSES}
    report = examine(facts(commands, replace(CPU_PYTHON, distributions=())))
    found = finding(report, "device-memory")
    assert found.status == "warning"
    assert "2 of 2 processes are not visible from here" in found.text
    del commands["nvidia-processes"]
    assert "no command names who" in finding(examine(facts(commands)), "device-memory").text


def shared(size: int, mapped: bool | None, age_s: float = 3600.0) -> SharedFile:
    return SharedFile(path="/dev/shm/psm_1", size_bytes=size, age_s=age_s, mapped=mapped)


@pytest.mark.parametrize(
    ("file", "status"),
    [
        (shared(2 * GIB, False), "warning"),
        (shared(2 * MIB, False), "ok"),
        (shared(2 * GIB, None), "unknown"),
        (shared(2 * GIB, True), None),
        (shared(2 * GIB, False, age_s=5.0), None),
    ],
)
def test_shared_memory_that_no_process_has(file: SharedFile, status: str | None) -> None:
    report = examine(facts(machine=machine(shared_files=(file,))))
    assert statuses(report).get("shared-memory") == status


def test_dockers_shared_memory_is_too_small_for_workers() -> None:
    small = Space(
        purpose="shared memory",
        path="/dev/shm",
        total_bytes=64 * MIB,
        free_bytes=64 * MIB,
        writable=True,
    )
    found = finding(
        examine(facts(machine=machine(spaces=(small,), container="docker"))), "space-shared-memory"
    )
    assert found.status == "problem"
    assert "--shm-size" in found.advice


def test_a_read_only_or_full_place() -> None:
    full = Space(
        purpose="run directory", path="/work", total_bytes=GIB, free_bytes=0, writable=True
    )
    sealed = replace(full, purpose="compile cache", writable=False)
    report = examine(facts(machine=machine(spaces=(full, sealed))))
    assert finding(report, "space-run-directory").status == "warning"
    assert finding(report, "space-compile-cache").status == "problem"


def test_limits_that_are_too_low() -> None:
    limits = (
        Limit(name="open files", soft=1024),
        Limit(name="address space", soft=8 * GIB),
        Limit(name="processes", soft=None),
        Limit(name="locked memory", soft=65536),
    )
    found = statuses(examine(facts(machine=machine(limits=limits, cgroup_cpus=1.0))))
    assert found["limit-open-files"] == "warning"
    assert found["limit-address-space"] == "warning"
    assert found["limit-processes"] == "ok"
    assert "limit-locked-memory" not in found
    assert found["cpus"] == "warning"


def test_the_control_groups_memory_counts_where_it_is_less() -> None:
    report = examine(
        facts(machine=machine(cgroup_memory_bytes=8 * GIB, cgroup_memory_used_bytes=6 * GIB))
    )
    found = finding(report, "memory")
    assert (found.status, found.text) == ("warning", "memory: 2.0 of 8.0 GiB free (control group)")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("vllm serve m --api-key sk-1 --port 1", "vllm serve m --api-key … --port 1"),
        ("vllm serve m --api-key sk-1 sk-2 --port 1", "vllm serve m --api-key … --port 1"),
        ("x --hf-token=hf_abc y", "x --hf-token=… y"),
        ("env OPENAI_API_KEY=sk-2 x", "env OPENAI_API_KEY=… x"),
        ("x --max-num-batched-tokens 4096", "x --max-num-batched-tokens 4096"),
        ("x --tokenizer /m", "x --tokenizer /m"),
    ],
)
def test_secrets_never_leave_a_command_line(command: str, shown: str) -> None:
    assert without_secrets(command) == shown
