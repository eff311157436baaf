"""The red gates of a stored ``comparison.json``: judging again may add some and lose none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hwtune.domain.bench import Comparison, Gate
from hwtune.domain.errors import InputError
from hwtune.domain.json_text import parse_json
from hwtune.io.records import COMPARISON_FILE

_STORED = " (as stored)"


def stored_red_gates(run_dir: Path, fresh: Comparison) -> tuple[Gate, ...]:
    """Gates stored as failed that a fresh judgement over the same records calls otherwise.

    A tier that has been measured further since is judged by its new records alone.

    Raises:
        InputError: the file is there and is not a comparison.
    """
    path = run_dir / COMPARISON_FILE
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
        stored = [*_run_gates(data), *_tier_gates(data, fresh)]
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{path}: cannot be read as a comparison ({error})"
        raise InputError(message) from None
    return tuple(gate for name, gate in stored if name not in _red(fresh))


def _run_gates(data: dict[str, Any]) -> Iterator[tuple[tuple[str, str], Gate]]:
    yield from _failed("", data["gates"])


def _tier_gates(data: dict[str, Any], fresh: Comparison) -> Iterator[tuple[tuple[str, str], Gate]]:
    done = {tier.tier: tier.pairs_done for tier in fresh.tiers}
    for tier in data["tiers"]:
        if tier["pairs_done"] >= done.get(tier["tier"], 0):
            yield from _failed(tier["tier"], tier["gates"])


def _failed(tier: str, gates: Iterable[dict[str, str]]) -> Iterator[tuple[tuple[str, str], Gate]]:
    for item in gates:
        if item["state"] == "failed":
            name = f"{tier}: {item['name']}" if tier else item["name"]
            evidence = f"{item['evidence'].removesuffix(_STORED)}{_STORED}"
            yield (tier, item["name"]), Gate(name=name, state="failed", evidence=evidence)


def _red(fresh: Comparison) -> set[tuple[str, str]]:
    tiers = {
        (tier.tier, gate.name)
        for tier in fresh.tiers
        for gate in tier.gates
        if gate.state == "failed"
    }
    return tiers | {("", gate.name) for gate in fresh.gates if gate.state == "failed"}
