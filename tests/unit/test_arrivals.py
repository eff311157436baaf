"""Traces of real arrivals in their public forms."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from hwtune.domain.errors import InputError
from hwtune.io.arrivals import read_trace


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_azure(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "azure.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:04.0319600,396,109\n"
        "2023-11-16 18:17:03.9799600,4808,10\n",
    )
    trace = read_trace(path)
    assert [(i.id, i.prompt_tokens, i.output_tokens) for i in trace.items] == [
        ("r0", 4808, 10),
        ("r1", 396, 109),
    ]
    assert [round(i.arrival_ms, 1) for i in trace.items] == [0.0, 52.0]


def test_burstgpt_leaves_out_failed_requests(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "burst.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,Conversation log\n",
    )
    trace = read_trace(path)
    assert [i.arrival_ms for i in trace.items] == [0.0, 113_000.0]
    assert trace.skipped == 1


def lines(*records: dict[str, object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_mooncake_names_what_is_shared(tmp_path: Path) -> None:
    text = lines(
        {"timestamp": 100, "input_length": 1400, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 350, "input_length": 1400, "output_length": 6, "hash_ids": [1, 2, 4]},
        {"timestamp": 360, "input_length": 1400, "output_length": 6, "hash_ids": [9, 2, 3]},
    )
    first, second, third = read_trace(write(tmp_path, "mooncake.jsonl", text)).items
    assert second.arrival_ms == 250.0
    assert first.prefix_name_tokens == 512
    assert first.prefix_names[:2] == second.prefix_names[:2]
    assert first.prefix_names[2] != second.prefix_names[2]
    # The same id behind another beginning is another prefix.
    assert not set(first.prefix_names) & set(third.prefix_names)


def test_bailian_counts_seconds_and_small_blocks(tmp_path: Path) -> None:
    record = {"chat_id": 1, "timestamp": 1.5, "input_length": 40, "output_length": 5}
    text = lines({**record, "hash_ids": [7, 8, 9]}, {**record, "timestamp": 2.0})
    first, second = read_trace(write(tmp_path, "bailian.jsonl", text)).items
    assert (second.arrival_ms, first.prefix_name_tokens) == (500.0, 16)


def test_only_the_first_requests_are_read(tmp_path: Path) -> None:
    text = "arrival_ms,prompt_tokens,output_tokens\n0,5,1\n1,5,1\nbroken\n"
    assert len(read_trace(write(tmp_path, "own.csv", text), 2).items) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1 is neither"),
        ("a,b,c\n1,2,3\n", "line 1 is neither"),
        ("arrival_ms,prompt_tokens,output_tokens\n0,x,1\n", "line 2"),
        ("arrival_ms,prompt_tokens,output_tokens\n0,1\n", "line 2: has 2 columns, the header 3"),
        ("arrival_ms,prompt_tokens,output_tokens\n0,-5,1\n", "line 2: a length is negative"),
        ("arrival_ms,prompt_tokens,output_tokens\nnan,1,1\n", "line 2: the time"),
        ("arrival_ms,prompt_tokens,output_tokens\n0,1e12,1\n", "line 2: a length"),
        ("arrival_ms,prompt_tokens,output_tokens\n0,0,1\n", "holds no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "line 2"),
        ('{"timestamp": 1}\n', "line 1: lacks"),
        ('{"timestamp": 1\n', "line 1"),
        ('{"timestamp": "1", "input_length": 1, "output_length": 1}\n', "line 1: timestamp"),
        (
            '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [true]}\n',
            "line 1: hash_ids",
        ),
        ("[" * 100_000 + "\n", "line 1"),
        (
            '{"timestamp": 1, "input_length": 1, "output_length": 1}\n"x"\n',
            "line 2: expected a JSON",
        ),
    ],
)
def test_damage_names_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_trace(write(tmp_path, "bad.txt", text))


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")


OWN = "arrival_ms,prompt_tokens,output_tokens\n0,5,1\n7,6,2\n"


def test_a_gzipped_trace_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "own.csv.gz"
    path.write_bytes(gzip.compress(OWN.encode()))
    assert [item.prompt_tokens for item in read_trace(path).items] == [5, 6]
    path.write_bytes(gzip.compress(OWN.encode())[:-12])
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(path)


def test_a_trace_comes_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + OWN.replace("\n", "\r\n").encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert [item.arrival_ms for item in read_trace(Path("-")).items] == [0.0, 7.0]
