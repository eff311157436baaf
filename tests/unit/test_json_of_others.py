"""Files of a run directory that something else wrote: one line, never a bug's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hwtune.adapters.load.stream import _message
from hwtune.domain.errors import HwtuneError, InputError
from hwtune.domain.json_text import parse_json
from hwtune.domain.planning_ascend import _mode_in
from hwtune.io.check_slots import read_checks
from hwtune.io.counters import read_counters
from hwtune.io.plans import read_plan
from hwtune.io.prompts import read_vocab_size
from hwtune.io.run_evidence import read_status

DEEP = '{"a":' + "[" * 100_000


@pytest.mark.parametrize(
    "read",
    [read_plan, read_status, lambda path: read_vocab_size(str(path)), lambda _: _mode_in(DEEP)],
    ids=["plan", "status", "config", "flag"],
)
def test_nesting_without_end_is_one_line(read: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(DEEP)
    with pytest.raises(HwtuneError) as error:
        read(tmp_path / "x.json")
    assert "\n" not in str(error.value)


def test_a_servers_endless_nesting_is_shown_as_it_came() -> None:
    assert _message(DEEP.encode()).startswith('{"a":[[')
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(DEEP)


@pytest.mark.parametrize(
    ("name", "read"), [("counters", read_counters), ("checks", read_checks)], ids=str
)
@pytest.mark.parametrize("line", ["5", "[]", '{"slot": 0, "row": 0, "nonce": 1, "kernel": []}'])
def test_a_key_of_the_wrong_shape_is_damage(
    name: str, read: Callable[[Path], Any], line: str, tmp_path: Path
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "7-host.jsonl").write_text(f"{line}\n")
    (tmp_path / name / "7-host.bin").write_bytes(bytes(64))
    with pytest.raises(InputError, match="damaged kernel counters"):
        read(tmp_path)


@pytest.mark.parametrize("size", ["true", "0", "1.5", "null"])
def test_a_vocabulary_is_a_whole_number(size: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(f'{{"vocab_size": {size}}}')
    with pytest.raises(InputError, match="give --vocab-size"):
        read_vocab_size(str(tmp_path))
