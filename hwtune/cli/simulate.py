"""hwtune simulate: which steps the scheduler will make, before anything runs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from hwtune.domain.errors import UsageError

Batch = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Scenarios, one JSON object per line (- for standard input)."
    ),
]
Oracle = Annotated[
    bool, typer.Option("--oracle", help="Let the installed vLLM's own scheduler play them.")
]
OraclePython = Annotated[
    str | None,
    typer.Option(metavar="PYTHON", help="The Python whose vLLM plays; implies --oracle."),
]
Version = Annotated[
    str | None, typer.Option(help="vLLM release to play, where a scenario names none.")
]


def simulate(
    batch: Batch = None,
    vllm_version: Version = None,
    oracle: Oracle = False,
    oracle_python: OraclePython = None,
) -> None:
    """Play vLLM's scheduler step by step."""
    if batch is None:
        message = "give --batch FILE with scenarios"
        raise UsageError(message)
    _print_batch(batch, vllm_version, oracle or oracle_python is not None, oracle_python)


def _print_batch(reference: str, version: str | None, oracle: bool, python: str | None) -> None:
    from hwtune.cli.simulate_batch import batch_records

    for record in batch_records(reference, version, oracle=oracle, python=python):
        typer.echo(json.dumps(record, allow_nan=False, separators=(",", ":")))
