"""Run directory or plain logs -> evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.errors import InputError
from hwtune.domain.evidence import Evidence, KernelCount, Place, RunStatus, Sighting
from hwtune.domain.json_text import parse_json
from hwtune.domain.launch import LaunchPlan
from hwtune.domain.metrics import metric_sightings
from hwtune.io.check_slots import read_checks
from hwtune.io.counters import COUNTERS_DIRECTORY, read_counters
from hwtune.io.environment import read_environment
from hwtune.io.logs import read_log
from hwtune.io.marker_sets import load_markers
from hwtune.io.plans import PLAN_FILE, read_plan
from hwtune.io.run_dir import LOG_FILE, METRICS_FILE, STATUS_FILE

_RUNNING = ("starting", "ready")
"""States of a server that its launcher still holds."""


def collect(
    run_dir: Path | None,
    *,
    log_paths: Iterable[str | Path] = (),
    metrics_text: str | None = None,
    metrics_source: str = "/metrics",
    nonce: str | None = None,
    sightings: Iterable[Sighting] = (),
    start: int | None = None,
    plan: LaunchPlan | None = None,
) -> Evidence:
    """Reads everything known of one server.

    Args:
        run_dir: directory that the launcher wrote, or None when there are only logs.
        log_paths: logs to read; empty means the run directory's own. ``-`` is standard input.
        metrics_text: Prometheus text just scraped; else the run directory's ``metrics.txt``.
        metrics_source: what to call ``metrics_text`` in the evidence.
        nonce: nonce of the plan, when there is no plan file.
        sightings: facts learnt elsewhere, e.g. from ``/version``.
        start: number of the start to judge, where a log holds several.
        plan: the plan, from who made it; else the run directory's own.

    Raises:
        InputError: something named is missing or cannot be read.
    """
    collector = new_collector(run_dir, nonce=nonce, start=start, plan=plan)
    collector.feed_files([(str(path), read_log(str(path))) for path in _logs(run_dir, log_paths)])
    if start is not None and start > collector.number_of_starts:
        message = f"--start {start}: the log shows {collector.number_of_starts} start(s)"
        raise InputError(message)
    for sighting in (*_metrics(run_dir, metrics_text, metrics_source), *sightings):
        collector.add(sighting)
    return evidence_of(collector, run_dir, answers=metrics_text is not None, plan=plan)


def new_collector(
    run_dir: Path | None,
    *,
    nonce: str | None = None,
    start: int | None = None,
    plan: LaunchPlan | None = None,
) -> EvidenceCollector:
    """A collector for one server, which knows the plan's nonce where there is a plan.

    Raises:
        InputError: the run directory is missing or its plan is damaged.
    """
    plan = _plan_of(run_dir, plan)
    return EvidenceCollector(load_markers(), nonce=plan.nonce if plan else nonce, start=start)


def evidence_of(
    collector: EvidenceCollector,
    run_dir: Path | None,
    *,
    answers: bool = False,
    notes: Iterable[str] = (),
    plan: LaunchPlan | None = None,
) -> Evidence:
    """What the lines taken so far and the run directory amount to.

    Args:
        collector: took the lines.
        run_dir: directory that the launcher wrote, or None.
        answers: whether the server just answered, so that it surely runs.
        notes: remarks about the reading itself.
        plan: the plan, from who made it; else the run directory's own.

    Raises:
        InputError: the run directory holds damaged evidence.
    """
    said = list(notes)
    counts, has_counters = _counts(run_dir, said)
    evidence = collector.evidence(
        counts=counts,
        kernel_checks=() if run_dir is None else read_checks(run_dir),
        has_counters=has_counters,
        plan=_plan_of(run_dir, plan),
        status=_status(run_dir, answers=answers),
        notes=tuple(said),
    )
    environment = None if run_dir is None else read_environment(run_dir)
    lost = _plan_damage(run_dir / PLAN_FILE, plan) if run_dir is not None and plan else ()
    return dataclasses.replace(evidence, environment=environment, lost=lost)


def _plan_of(run_dir: Path | None, plan: LaunchPlan | None) -> LaunchPlan | None:
    return plan if plan is not None or run_dir is None else read_run_plan(run_dir)


def _plan_damage(path: Path, plan: LaunchPlan) -> tuple[str, ...]:
    """What became of the plan file since its launcher wrote it; empty when nothing did."""
    try:
        same = read_plan(path) == plan
    except InputError as error:
        return (str(error),)
    return () if same else (f"{path}: is not the plan that this server was started with",)


def read_run_plan(run_dir: Path) -> LaunchPlan | None:
    """The plan of a run directory, or None when it has none.

    Raises:
        InputError: the directory is missing or its plan is damaged.
    """
    if not run_dir.is_dir():
        message = f"{run_dir}: no such run directory"
        raise InputError(message)
    path = run_dir / PLAN_FILE
    return read_plan(path) if path.exists() else None


def has_begun(run_dir: Path) -> bool:
    """Whether the launcher has written the plan, or the server a line of a log without one.

    Something else at that place counts as well, for reading it to complain.
    """
    if not run_dir.is_dir():
        return run_dir.exists()
    log = run_dir / LOG_FILE
    return (run_dir / PLAN_FILE).exists() or (log.exists() and log.stat().st_size > 0)


def _logs(run_dir: Path | None, log_paths: Iterable[str | Path]) -> list[str | Path]:
    given = list(log_paths)
    if given or run_dir is None:
        return given
    log = run_dir / LOG_FILE
    # A server that died before its first line leaves an empty log; its status tells.
    return [log] if log.exists() and log.stat().st_size else []


def _metrics(run_dir: Path | None, text: str | None, source: str) -> list[Sighting]:
    if text is not None:
        return list(metric_sightings(text, source))
    if run_dir is None:
        return []
    path = run_dir / METRICS_FILE
    try:
        return list(metric_sightings(path.read_text("utf-8", errors="replace"), str(path)))
    except FileNotFoundError:
        return []
    except OSError as error:
        message = f"{path}: cannot read the metrics: {error.strerror}"
        raise InputError(message) from None


def _counts(run_dir: Path | None, notes: list[str]) -> tuple[tuple[KernelCount, ...], bool]:
    if run_dir is None:
        return (), False
    if not (run_dir / COUNTERS_DIRECTORY).is_dir():
        notes.append(f"{run_dir}: no {COUNTERS_DIRECTORY}/; no kernel counters were written")
        return (), False
    return read_counters(run_dir), True


def _status(run_dir: Path | None, *, answers: bool) -> RunStatus | None:
    """A server that answers runs, wherever its launcher is (another container's processes)."""
    status = None if run_dir is None else read_status(run_dir / STATUS_FILE)
    return dataclasses.replace(status, owner_gone=None) if status and answers else status


def read_status(path: Path) -> RunStatus | None:
    """What the launcher wrote about the process, or None when there is no such file.

    Raises:
        InputError: the file is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path}: cannot read the status: {error}"
        raise InputError(message) from None
    try:
        data = parse_json(text)
        state, exit_code, reason = data["state"], data.get("exit_code"), data.get("reason")
        owner, trouble = data.get("owner_pid"), data.get("trouble")
        lost = tuple(data.get("evidence_lost") or ())
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"{path}: not a status file (needs a JSON object with `state`)"
        raise InputError(message) from None
    return RunStatus(
        state=str(state),
        exit_code=exit_code if isinstance(exit_code, int) else None,
        reason=None if reason is None else str(reason),
        trouble=None if trouble is None else str(trouble),
        evidence_lost=tuple(str(item) for item in lost),
        place=Place(file=str(path), line=None, process=None, time=None, text=f"state={state}"),
        owner_gone=owner if state in _RUNNING and _is_gone(owner) else None,
    )


def _is_gone(pid: object) -> bool:
    """Whether there is surely no such process: it ended, or waits only to be buried."""
    processes = Path("/proc")
    if not isinstance(pid, int) or pid <= 0 or not (processes / "self").exists():
        return False
    try:
        text = (processes / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] == ["Z"]
