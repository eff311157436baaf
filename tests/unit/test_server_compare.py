"""Is an A/B between two servers fair?"""

from __future__ import annotations

from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.evidence import Evidence
from hwtune.domain.server_compare import PAGE_FACTS, compare_servers, flags_of
from hwtune.io.marker_sets import load_markers
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
    collector = EvidenceCollector(load_markers())
    collector.feed("x.log", enumerate(lines, start=1))
    return collector.evidence()


def test_only_the_page_differs_as_declared() -> None:
    found = compare_servers(_server(), _server(page=832), declared=PAGE_FACTS)
    assert found.fair
    assert [item.fact for item in found.differences] == ["attention_block_size"]
    assert found.summary == "FAIR: only declared differences (attention_block_size)"


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


def test_flags_that_cannot_be_read_are_none() -> None:
    assert flags_of(_server(flags="{'a': <object at 0x1>}")) == {}
    assert flags_of(_server(flags="{'a': [1, None]}")) == {"a": "[1, None]"}
