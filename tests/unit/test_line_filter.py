"""Passing over dull lines must not change what is found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.evidence import Evidence
from hwtune.domain.line_filter import AFTER, BEFORE, HEADER_END, LineFilter
from hwtune.domain.literals import any_of
from hwtune.domain.log_lines import split_progress
from hwtune.domain.marker_set import literal_prefix
from hwtune.io.marker_sets import load_markers

MARKERS = load_markers()
HEAD = "(EngineCore pid=9) DEBUG 11-30 06:51:58 [v1/core/sched/scheduler.py:402] "
DULL = [
    f"{HEAD}scheduled step 1",
    f"{HEAD}scheduled step 2 kv lcm block sizes 8",
    "(APIServer pid=7) INFO 11-30 06:52:47 [logger.py:40] Received request: 'hwtune[a1] first hit'",
    "Loading:  10%|#| 1/9 [00:00<00:01, 3.1it/s]\rLoading: 100%|##| 9/9 [00:01<00:00, 9it/s]",
    "    at frame x",
    "ValueError: outside of any traceback",
    "(Worker pid=3) ERROR 11-30 06:49:30 [multiproc_executor.py:953] Traceback (most recent call last):",
    "(Worker pid=3) ERROR 11-30 06:49:30 [multiproc_executor.py:953] ValueError: inside",
    "",
]
LINES = st.sampled_from(
    [
        *DULL,
        *(
            text
            for marker in MARKERS.markers
            for text in (*marker.examples, *marker.counter_examples)
        ),
    ]
)


def _all_lines(text: str) -> Evidence:
    collector = EvidenceCollector(MARKERS)
    pieces = [
        (number, piece)
        for number, line in enumerate(text.split("\n"), start=1)
        for piece in split_progress(line)
    ]
    collector.feed("x", pieces)
    return collector.evidence()


def _filtered(text: str) -> Evidence:
    collector = EvidenceCollector(MARKERS)
    collector.feed_files([("x", iter([(1, text.encode())]))])
    return collector.evidence()


@given(
    st.lists(LINES, max_size=30),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "pod-a | x "]),
)
def test_nothing_is_lost(lines: list[str], end: str, prefix: str) -> None:
    text = end.join(prefix + line for line in [DULL[0], *lines])
    assert _filtered(text) == _all_lines(text)


def _key(raw: bytes) -> bytes:
    end = raw.find(HEADER_END)
    return raw[end - BEFORE : end + AFTER]


def test_a_dull_kind_is_learnt_once() -> None:
    lines = LineFilter(MARKERS.markers)
    raw = f"{HEAD}scheduled step 1".encode()
    assert not lines.matters(raw, _key(raw))
    assert _key(f"{HEAD}scheduled step 2".encode()) in lines.dull


def test_a_kind_that_may_matter_is_never_learnt() -> None:
    lines = LineFilter(MARKERS.markers)
    raw = f"{HEAD}kv lcm blo".encode()
    lines.matters(raw, _key(raw))
    assert lines.dull == set()


def test_literal_prefixes() -> None:
    assert literal_prefix(r"kv lcm (?P<value>\d+)") == "kv lcm "
    assert literal_prefix(r"\[XPU\]Setting x*") == "[XPU]Setting "
    assert literal_prefix(r"colou?r") == "colo"
    assert literal_prefix(r"(?:a|b)") == ""
    assert literal_prefix(r"\d+") == ""


@given(
    st.lists(st.text("ab(.[", min_size=1, max_size=4), max_size=8),
    st.text("ab(.[x", max_size=12),
)
def test_a_tree_of_texts_finds_what_each_of_them_finds(texts: list[str], line: str) -> None:
    found = any_of(text.encode() for text in texts).search(line.encode()) is not None
    assert found is any(text in line for text in texts)


def test_a_marker_behind_a_collectors_own_header_is_found() -> None:
    page = "Setting attention block size to 832 tokens to ensure that attention page size is >= mamba page size."
    head = "INFO 11-30 06:51:47 [interface.py:890] "
    lines = [f"[relay.py:3] {head}other text {n}" for n in range(9)] + [
        f"[relay.py:3] {head}{page}"
    ]
    assert _filtered("\n".join(lines)).value("attention_block_size") == 832


def test_a_prefix_with_brackets_hides_no_header() -> None:
    prefix, head = "[pod/vllm-{}/server] ", "INFO 11-30 06:51:47 [interface.py:890] "
    page = "Setting attention block size to 832 tokens to ensure that attention page size is >= mamba page size."
    lines = [f"{prefix.format(n)}{head}other text {n}" for n in range(9)]
    for last in (f"{prefix.format(1)}{head}{page}", f"{head}{page}"):
        found = _filtered("\n".join([*lines, last]))
        assert found.value("attention_block_size") == 832


def test_access_lines_count_once_and_only_when_answered() -> None:
    line = '(APIServer pid=7) INFO:     127.0.0.1:5 - "{} HTTP/1.1" {}'
    health = [line.format("GET /health", "200 OK")] * 3
    refused = [*health, line.format("POST /v1/completions", "400 Bad Request")]
    assert _filtered("\n".join(refused)).value("served") is None
    answered = [*refused, line.format("POST /v1/completions", "200 OK"), *refused]
    found = _filtered("\n".join(answered))
    assert found.value("served") is True
    assert [place.line for place in found.places("served")] == [5]
