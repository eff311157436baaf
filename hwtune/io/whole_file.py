"""Files that are written whole or not at all, wherever the user puts them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_KERNELS_OWN = (Path("/dev"), Path("/proc"), Path("/sys"))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what is to be at ``path``: beside it, to replace it when all is written.

    What is no regular file (a device, a pipe, ``/dev/stdout``) is written itself, for replacing it
    would destroy it. A link stays, and what it leads to is replaced. Missing folders are made.

    Raises:
        OSError: as writing does.
    """
    real = Path(os.path.realpath(path))
    # What is a link even so leads to itself, and opening it says so.
    if not _replaceable(path) or real.is_symlink():
        yield path
        return
    real.parent.mkdir(parents=True, exist_ok=True)
    partial = real.with_name(f"{real.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(real)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _replaceable(path: Path) -> bool:
    if any(folder in path.absolute().parents for folder in _KERNELS_OWN):
        return False
    return path.is_file() or not path.exists()
