"""Is an A/B between two servers fair?"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hwtune.adapters.vllm.surroundings import surroundings
from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.engine_config import engine_fields
from hwtune.domain.environment import ServerEnvironment, relevant_variables
from hwtune.domain.errors import InputError
from hwtune.domain.evidence import Evidence
from hwtune.domain.server_compare import PAGE_FACTS, compare_servers, flags_of
from hwtune.io.environment import read_environment, write_environment
from hwtune.io.marker_sets import load_markers
from hwtune.io.run_evidence import collect
from hwtune.report.server_compare import comparison_to_markdown, comparison_to_text

HEAD = "(EngineCore pid=2) INFO 11-30 06:51:37 [core.py:133] "
STARTED = "INFO:     Application startup complete."


def _server(
    *, page: int = 784, caching: bool = False, flags: str = "{'port': 1}", started: bool = True
) -> Evidence:
    lines = [
        f"{HEAD}non-default args: {flags}",
        (
            f"{HEAD}Initializing a V1 LLM engine (v0.25.1) with config: model='m', "
            f"enable_prefix_caching={caching}, x=1"
        ),
        (
            f"{HEAD}Setting attention block size to {page} tokens to ensure that attention page size "
            "is >= mamba page size."
        ),
        *([STARTED] if started else []),
    ]
    return _read(*lines)


def _read(*lines: str) -> Evidence:
    collector = EvidenceCollector(load_markers())
    collector.feed("x.log", enumerate(lines, start=1))
    return collector.evidence()


def test_only_the_page_differs_as_declared() -> None:
    found = compare_servers(_server(), _server(page=832), declared=PAGE_FACTS)
    assert found.fair
    assert [item.fact for item in found.differences] == ["attention_block_size"]
    assert found.summary.startswith("FAIR: only declared differences (attention_block_size)")
    assert found.unseen == ("variables and packages of A", "variables and packages of B")


def test_an_undeclared_difference_makes_it_unfair() -> None:
    found = compare_servers(_server(), _server(page=832, caching=True), declared=PAGE_FACTS)
    assert not found.fair
    assert found.summary == "NOT COMPARABLE: prefix_caching differs"
    assert "(NOT DECLARED)" in comparison_to_text(found)
    assert "| prefix_caching | off | on |" in comparison_to_markdown(found)


def test_a_flag_given_on_one_side_differs_from_the_default() -> None:
    other = _server(flags="{'port': 2, 'max_num_seqs': 8}")
    found = compare_servers(_server(flags="{'seed': 1}"), other, declared=["flag seed"])
    assert {item.fact: (item.a, item.b, item.decides) for item in found.differences} == {
        "flag max_num_seqs": ("default", "8", True),
        "flag seed": ("1", "default", False),
    }


def test_what_one_side_does_not_state_is_shown_and_does_not_decide() -> None:
    found = compare_servers(_server(), _server(flags="broken {"), declared=())
    assert found.fair


def test_a_server_that_did_not_start_is_not_comparable() -> None:
    found = compare_servers(_server(), _server(started=False), declared=())
    assert found.summary == "NOT COMPARABLE: B shows no completed start-up"


def _in(variables: dict[str, str], packages: dict[str, str] | None = None) -> Evidence:
    environment = ServerEnvironment(variables=variables, packages=packages or {"torch": "2.13.0"})
    return dataclasses.replace(_server(), environment=environment)


def test_a_switch_that_leaves_no_line_in_the_log_is_seen_in_the_environment() -> None:
    found = compare_servers(_in({"VLLM_FUSED": "1"}), _in({"VLLM_FUSED": "0"}), declared=())
    assert found.summary == "NOT COMPARABLE: env VLLM_FUSED differs"
    declared = compare_servers(_in({"X_KERNEL": "1"}), _in({}), declared=["env X_KERNEL"])
    assert [(item.fact, item.a, item.b) for item in declared.differences] == [
        ("env X_KERNEL", "1", "(none)")
    ]
    assert declared.summary == "FAIR: only declared differences (env X_KERNEL)"


def test_another_version_of_a_package_decides() -> None:
    other = _in({}, {"torch": "2.12.0", "aiter": "0.1"})
    found = compare_servers(_in({}), other, declared=())
    assert {item.fact for item in found.differences if item.decides} == {
        "package torch", "package aiter",
    }  # fmt: skip


def test_variables_that_count() -> None:
    variables = {
        "VLLM_USE_V1": "1", "XDB_FLASH_ATTN_PREFILL": "1", "VLLM_API_KEY": "s3cret", "HOME": "/r",
        "HWTUNE_PLAN": "/a", "VLLM_PORT": "5",
    }  # fmt: skip
    assert relevant_variables(variables) == {
        "VLLM_API_KEY": "(hidden)", "VLLM_USE_V1": "1", "XDB_FLASH_ATTN_PREFILL": "1",
    }  # fmt: skip


def test_fields_of_the_engines_config() -> None:
    text = (
        "model='m', seed=0, speculative_config=SpeculativeConfig(method='mtp', n=3), "
        "compilation_config={'mode': <Mode.X: 3>, 'cache_dir': '/a', 'pass_config': {'fuse': True}}"
    )
    assert engine_fields(text) == {
        "seed": "0",
        "speculative_config": "SpeculativeConfig(method='mtp', n=3)",
        "compilation_config.mode": "<Mode.X: 3>",
        "compilation_config.pass_config.fuse": "True",
    }


def test_what_the_engine_resolved_is_compared_field_by_field() -> None:
    config = f"{HEAD}Initializing a V1 LLM engine (v0.25.1) with config: model='m', seed={{}}"
    one, other = (_read(config.format(seed), STARTED) for seed in (0, 1))
    found = compare_servers(one, other, declared=())
    assert [item.fact for item in found.differences] == ["config seed"]


def test_the_environment_survives_its_file(tmp_path: Path) -> None:
    recorded = surroundings({"VLLM_X": "1", "HOME": "/r"})
    assert recorded.variables == {"VLLM_X": "1"}
    assert recorded.packages["pytest"] == pytest.__version__
    write_environment(recorded, tmp_path)
    assert read_environment(tmp_path) == recorded
    assert collect(tmp_path).environment == recorded


@pytest.mark.parametrize(
    "text", ["", "[]", '{"packages": {"a": 1}, "variables": {}, "machine": {}}']
)
def test_a_damaged_environment_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "environment.json").write_text(text)
    with pytest.raises(InputError, match=r"environment\.json"):
        read_environment(tmp_path)


def test_a_server_without_a_recorded_environment_has_none(tmp_path: Path) -> None:
    assert read_environment(tmp_path) is None


def test_flags_that_cannot_be_read_are_none() -> None:
    assert flags_of(_server(flags="{'a': <object at 0x1>}")) == {}
    assert flags_of(_server(flags="{'a': [1, None]}")) == {"a": "[1, None]"}
