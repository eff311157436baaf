"""Several starts in one log, and several files of one server."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwtune.domain.answers import remarks
from hwtune.domain.errors import InputError
from hwtune.domain.evidence import Evidence
from hwtune.io.run_evidence import collect

STARTED = "(APIServer pid={pid}) INFO:     Application startup complete."
ERROR = "(EngineCore pid=9) ERROR 11-30 06:{minute:02}:48 [core.py:2] "


def _start(minute: int, *, pid: int, page: int, end: list[str] | None = None) -> list[str]:
    def at(second: int, source: str) -> str:
        return f"INFO 11-30 06:{minute:02}:{second:02} [{source}] "

    return [
        f"{at(1, '__init__.py:241')}Automatically detected platform cuda.",
        f"(APIServer pid={pid}) {at(5, 'api_server.py:1896')}vLLM API server version 0.11.0",
        f"{at(9, '__init__.py:241')}Automatically detected platform cuda.",
        (
            f"(EngineCore pid={pid + 1}) {at(10, 'core.py:77')}Initializing a V1 LLM engine (v0.11.0) "
            "with config: model='m', x=1"
        ),
        (
            f"(EngineCore pid={pid + 1}) {at(20, 'config.py:9')}Setting attention block size to {page} "
            "tokens to ensure that attention page size is >= mamba page size."
        ),
        *([STARTED.format(pid=pid)] if end is None else end),
    ]


def _failed(text: str, minute: int = 0) -> list[str]:
    error = ERROR.format(minute=minute)
    return [
        f"{error}Traceback (most recent call last):",
        f"{error}ValueError: {text}",
        "(APIServer pid=1) Traceback (most recent call last):",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
    ]


def _read(tmp_path: Path, *files: list[str], start: int | None = None) -> Evidence:
    paths = [tmp_path / f"{index}.log" for index in range(len(files))]
    for path, lines in zip(paths, files, strict=True):
        path.write_text("\n".join(lines) + "\n")
    return collect(None, log_paths=paths, start=start)


def test_the_last_start_is_judged_by_itself(tmp_path: Path) -> None:
    first = _start(0, pid=1, page=784, end=_failed("No common block size for 784."))
    found = _read(tmp_path, [*first, *_start(5, pid=11, page=832)])
    assert (found.value("attention_block_size"), found.value("startup_complete")) == (832, True)
    assert (found.failures, found.facts["attention_block_size"].others) == ((), ())
    one, two = found.starts
    assert one.outcome.endswith("ValueError: No common block size for 784.")
    assert (two.number, two.outcome, found.judged_start) == (2, "start-up complete", 2)
    assert two.place is not None
    assert two.place.line == len(first) + 1
    assert any("2 starts of a server in this log; the last is judged" in t for t in remarks(found))


def test_another_start_can_be_asked_for(tmp_path: Path) -> None:
    log = [*_start(0, pid=1, page=784), *_start(5, pid=11, page=832), *_start(9, pid=21, page=896)]
    pages = [_read(tmp_path, log, start=n).value("attention_block_size") for n in (1, 2, 3)]
    assert pages == [784, 832, 896]
    with pytest.raises(InputError, match="shows 3 start"):
        _read(tmp_path, log, start=4)


def test_a_start_that_was_killed_without_a_word(tmp_path: Path) -> None:
    killed = _start(0, pid=1, page=784, end=[])
    found = _read(tmp_path, [*killed, *_start(5, pid=11, page=832)])
    assert [item.outcome for item in found.starts] == ["did not complete", "start-up complete"]


def test_a_restart_without_any_server_line(tmp_path: Path) -> None:
    """Programs that embed the engine never print the server's version."""
    first, second = _start(0, pid=1, page=784), _start(5, pid=11, page=832)
    found = _read(
        tmp_path, [line for line in (*first, *second) if "API server version" not in line]
    )
    assert (found.value("attention_block_size"), len(found.starts)) == (832, 2)


def test_one_start_has_many_platform_lines(tmp_path: Path) -> None:
    log = _start(0, pid=1, page=784)
    log[3:3] = ["INFO 11-30 06:00:11 [__init__.py:241] Automatically detected platform cuda."] * 4
    log.append("INFO 11-30 06:09:11 [__init__.py:241] Automatically detected platform cuda.")
    assert _read(tmp_path, log).starts == ()


def test_several_api_servers_are_one_start(tmp_path: Path) -> None:
    log = _start(0, pid=1, page=784)
    log[5:5] = [
        f"(ApiServer_{n} pid={n + 50}) INFO 11-30 06:00:40 [api_server.py:1896] vLLM API server version 0.11.0"
        for n in range(2)
    ]
    assert _read(tmp_path, log).starts == ()


def test_the_plans_nonce_says_which_start_is_meant(tmp_path: Path) -> None:
    mark = "(EngineCore pid=2) INFO 11-30 06:00:21 [plugin.py:40] hwtune[a1] observing backend=X"
    first = _start(0, pid=1, page=784)
    first.insert(5, mark)
    path = tmp_path / "x.log"
    path.write_text("\n".join([*first, *_start(5, pid=11, page=832)]))
    found = collect(None, log_paths=[path], nonce="a1")
    assert (found.judged_start, found.value("attention_block_size")) == (1, 784)


def test_files_of_one_server_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    """The engine died after the start, whichever file is named first."""
    server = [
        *_start(0, pid=1, page=784)[:2],
        "(APIServer pid=1) INFO 11-30 06:01:00 [a.py:1] ready",
    ]
    server += [STARTED.format(pid=1), "(APIServer pid=1) INFO 11-30 06:03:00 [a.py:1] x"]
    error = "(EngineCore pid=9) ERROR 11-30 06:02:48 [core.py:2] "
    engine = [
        *_start(0, pid=1, page=784)[3:5],
        f"{error}Traceback (most recent call last):",
        f"{error}torch.AcceleratorError: device-side assert triggered",
    ]
    for files in ((server, engine), (engine, server)):
        found = _read(tmp_path, *files)
        assert [(item.text, item.phase) for item in found.failures] == [
            ("torch.AcceleratorError: device-side assert triggered", "serving")
        ]
        assert found.value("startup_complete") is True
        assert found.last_line is not None
        assert found.last_line.time == "11-30 06:03:00"


def test_rotated_logs_may_be_named_in_any_order(tmp_path: Path) -> None:
    older = _start(0, pid=1, page=784, end=_failed("first"))
    newer = _start(5, pid=11, page=832)
    assert _read(tmp_path, newer, older).value("attention_block_size") == 832


def test_tracebacks_of_two_files_do_not_mix(tmp_path: Path) -> None:
    def trace(second: int, text: str) -> list[str]:
        return [
            f"INFO 11-30 06:00:{second:02} [x.py:1] hello",
            "Traceback (most recent call last):",
            '  File "a.py", line 1, in f',
            f"ValueError: {text}",
        ]

    found = _read(tmp_path, trace(1, "one"), trace(1, "two"))
    assert [item.text for item in found.failures] == ["ValueError: one", "ValueError: two"]


def test_a_traceback_may_go_on_in_the_next_file_of_a_rotated_log(tmp_path: Path) -> None:
    log = _start(0, pid=1, page=784, end=_failed("page", minute=1))
    cut = next(index for index, line in enumerate(log) if "Traceback" in line) + 1
    found = _read(tmp_path, log[:cut], log[cut:])
    assert found.value("first_error") == "ValueError: page"


def test_a_file_without_times_comes_whole(tmp_path: Path) -> None:
    bare = ["Traceback (most recent call last):", "ValueError: no clock here"]
    found = _read(tmp_path, _start(0, pid=1, page=784, end=[]), bare)
    assert found.value("first_error") == "ValueError: no clock here"
    assert found.value("attention_block_size") == 784
