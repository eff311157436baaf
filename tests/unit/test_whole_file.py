"""Files that the user names: whole or not at all, and nothing else is lost."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hwtune.domain.errors import ExternalFailureError
from hwtune.io.records import write_text
from hwtune.io.whole_file import replacing


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_pipe_is_written_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "text")
    reader.join()
    assert found == ["text"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("device", ["/dev/null", "/dev/stdout", "/proc/self/fd/1"])
def test_a_device_is_never_replaced(device: str) -> None:
    with replacing(Path(device)) as place:
        assert place == Path(device)


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "real").write_text("old")
    (tmp_path / "link").symlink_to("there/real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "real").read_text() == "new"
    assert names(tmp_path / "there") == ["real"]


def test_what_fails_in_between_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "x") as place:
        place.write_text("half")
        raise RuntimeError
    assert (tmp_path / "x").read_text() == "old"
    assert names(tmp_path) == ["x"]


def test_a_loop_of_links_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for place in (tmp_path / "loop", tmp_path / "loop" / "below"):
        with pytest.raises(ExternalFailureError, match="cannot write"):
            write_text(place, "text")


def test_a_directory_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(ExternalFailureError, match="Is a directory"):
        write_text(tmp_path / "x", "text")
    assert names(tmp_path) == ["x"]
