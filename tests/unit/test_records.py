"""Records on disk: nothing finished is lost, nothing half-written is believed."""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing
from pathlib import Path

import pytest

from hwtune.domain.bench import RequestRecord
from hwtune.domain.errors import ExternalFailureError, InputError
from hwtune.domain.workload import Design, parse_tier
from hwtune.io.prompts import read_vocab_size
from hwtune.io.records import (
    RequestJournal,
    read_design,
    read_requests,
    write_design,
    write_text,
)

DESIGN = Design(
    model="m",
    profile="cpu",
    flags=("--max-model-len", "8192"),
    mode="restart per block",
    vocab_size=1000,
    tiers=(parse_tier("4-8K"), parse_tier("256-512")),
    pairs=6,
    prompts_per_tier=18,
    output_tokens=16,
    concurrency=1,
)


def _record(prompt: int) -> RequestRecord:
    return RequestRecord(
        arm="baseline",
        phase="measured",
        tier="4-8K",
        pair=0,
        prompt=prompt,
        prompt_id="p",
        started_unix_s=1.0,
        ended_unix_s=2.0,
        ttft_s=0.1,
        e2el_s=0.9,
        chunk_times_s=(0.1, 0.9),
        prompt_tokens=3,
        output_tokens=2,
        text="a\nb\u2028c",
    )


def _write(run_dir: Path, *prompts: int) -> None:
    with closing(RequestJournal(run_dir)) as journal:
        for prompt in prompts:
            journal.append(_record(prompt))


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    _write(tmp_path, 0, 1)
    assert read_requests(tmp_path) == (_record(0), _record(1))


def test_a_record_is_on_disk_before_the_journal_is_closed(tmp_path: Path) -> None:
    with closing(RequestJournal(tmp_path)) as journal:
        journal.append(_record(0))
        assert read_requests(tmp_path) == (_record(0),)


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_torn_last_line_is_left_out_and_spoils_nothing_after_it(tmp_path: Path, cut: int) -> None:
    _write(tmp_path, 0, 1)
    path = tmp_path / "requests.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    _write(tmp_path, 2)
    kept = [record.prompt for record in read_requests(tmp_path)]
    assert kept == ([0, 1, 2] if cut == 1 else [0, 2])


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text('{"arm": "baseline"}\n')
    with pytest.raises(InputError, match="line 1 is not a request record"):
        read_requests(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ttft_s": None}, "line 2 is not a request record .damaged: ttft_s is None"),
        ({"ttft_s": 0}, "damaged: ttft_s is 0"),
        ({"e2el_s": float("nan")}, "e2el_s: expected a finite number"),
        ({"e2el_s": 10**400}, "e2el_s: expected a finite number, not a huge number"),
        ({"chunk_times_s": [0.1, -1.0]}, "damaged: chunk_times_s"),
        ({"chunk_times_s": "0.1"}, "chunk_times_s: expected a list"),
        ({"pair": [1]}, "pair: expected a whole number, not list"),
        ({"arm": "third"}, "arm: expected one of"),
        ({"text": 7}, "text: expected str"),
        ({"more": 7}, "unknown key 'more'"),
    ],
)
def test_a_damaged_record_is_named_with_its_line(
    tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    good = dataclasses.asdict(_record(0))
    lines = [json.dumps(good), json.dumps({**good, **fields})]
    (tmp_path / "requests.jsonl").write_text("\n".join(lines))
    with pytest.raises(InputError, match=message):
        read_requests(tmp_path)


def test_nesting_without_end_is_one_line(tmp_path: Path) -> None:
    for name in ("requests.jsonl", "design.json"):
        (tmp_path / name).write_text("[" * 100_000)
    with pytest.raises(InputError, match="line 1"):
        read_requests(tmp_path)
    with pytest.raises(InputError, match="JSON"):
        read_design(tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        {"tiers": []},
        {"tiers": [7]},
        {"flags": "--x"},
        {"margin": float("nan")},
        {"confidence": 2},
        {"pairs": 0},
        {"pairs": True},
        {"seed": 10**400},
        {"mode": "other"},
    ],
)
def test_a_design_with_a_wrong_value_is_refused(tmp_path: Path, fields: dict[str, object]) -> None:
    data = {**dataclasses.asdict(DESIGN), **fields}
    (tmp_path / "design.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match="not a design"):
        read_design(tmp_path)


def test_no_file_means_no_records(tmp_path: Path) -> None:
    assert read_requests(tmp_path) == ()


def test_a_design_comes_back_as_it_was(tmp_path: Path) -> None:
    write_design(DESIGN, tmp_path / "run")
    assert read_design(tmp_path / "run") == DESIGN


def test_a_run_directory_is_not_used_twice(tmp_path: Path) -> None:
    write_design(DESIGN, tmp_path)
    with pytest.raises(InputError, match="--resume"):
        write_design(DESIGN, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSON"),
        ("[]", "schema_version None"),
        ('{"schema_version": 99}', "schema_version 99"),
        ('{"schema_version": 2}', "not a design"),
        ('{"schema_version": 2, "flags": [], "tiers": [{"name": 1}]}', "not a design"),
    ],
)
def test_a_damaged_design_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "design.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_design(tmp_path)


def test_a_directory_without_a_design_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run directory"):
        read_design(tmp_path)


def test_a_directory_that_cannot_be_made_is_an_outside_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExternalFailureError, match="cannot write"):
        write_design(DESIGN, tmp_path / "file" / "run")


@pytest.mark.parametrize("text", ['{"vocab_size": 1024}', '{"text_config": {"vocab_size": 1024}}'])
def test_the_vocabulary_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert read_vocab_size(str(tmp_path)) == 1024
    assert read_vocab_size(str(tmp_path / "config.json")) == 1024


@pytest.mark.parametrize("text", ["{}", "[]", '{"vocab_size": "many"}', '{"vocab_size": 0}', "x"])
def test_a_config_without_a_vocabulary_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        read_vocab_size(str(tmp_path))


def test_a_name_that_is_not_local_has_no_vocabulary_here() -> None:
    assert read_vocab_size("Qwen/Qwen3.5-27B") is None


def test_a_full_disk_is_one_line_with_the_file_in_it(tmp_path: Path) -> None:
    """/dev/full takes nothing: neither the record nor what close() would still write."""
    journal = RequestJournal(tmp_path)
    journal.close()
    (tmp_path / "requests.jsonl").unlink()
    (tmp_path / "requests.jsonl").symlink_to("/dev/full")
    journal = RequestJournal(tmp_path)
    with pytest.raises(ExternalFailureError, match=r"requests\.jsonl: No space left"):
        journal.append(_record(0))
    with pytest.raises(ExternalFailureError, match=r"requests\.jsonl: No space left"):
        journal.close()


def test_what_could_not_be_written_leaves_no_half(tmp_path: Path) -> None:
    (tmp_path / "design.json").mkdir()
    with pytest.raises(ExternalFailureError, match="cannot write"):
        write_text(tmp_path / "design.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["design.json"]


def test_two_runs_do_not_measure_into_one_directory(tmp_path: Path) -> None:
    with closing(RequestJournal(tmp_path)) as journal:
        journal.append(_record(0))
        with pytest.raises(InputError, match="another hwtune is measuring into it"):
            RequestJournal(tmp_path)
    with closing(RequestJournal(tmp_path)):
        assert len(read_requests(tmp_path)) == 1


def test_a_text_that_utf_8_cannot_hold_is_written_all_the_same(tmp_path: Path) -> None:
    write_text(tmp_path / "report.md", "said \ud800")
    assert (tmp_path / "report.md").read_text() == "said \\ud800"
