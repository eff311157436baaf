"""Tables as Parquet files, for those who have pyarrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hwtune.domain.errors import ExternalFailureError, MissingDependencyError
from hwtune.io.whole_file import replacing


def write_parquet(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes one row per record, whole or not at all.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        ExternalFailureError: the file cannot be written.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        message = "--parquet needs pyarrow: pip install 'hwtune[report]'"
        raise MissingDependencyError(message) from None
    try:
        # An open file: a name such as s3:/x would be an address to pyarrow.
        with replacing(path) as place, place.open("wb") as file:
            parquet.write_table(pa.Table.from_pylist(list(records)), file)
    except OSError as error:
        message = f"{path}: cannot be written: {error.strerror or error}"
        raise ExternalFailureError(message) from None
