"""Two arms' buckets side by side: a ratio only where both profiled the same work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from hwtune.domain.buckets import Buckets, BucketTime, Clock, Work

SCOPE = "bucket"
"""One of three scopes of time that never meet: kernel, bucket, serving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmBuckets:
    """One arm: the ranks of one server, averaged."""

    name: str
    clock: Clock
    ranks: int
    rows: tuple[BucketTime, ...]
    """Times and calls are means over the ranks."""
    work: Work | None
    """Of one rank where all did the same (tensor parallel), else their sum (data parallel)."""
    work_by_phase: Mapping[str, Work] = field(default_factory=dict)

    @property
    def total_us(self) -> float:
        """Sum over all rows, in microseconds per rank."""
        return sum(row.time_us for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRow:
    """One bucket, in one phase or over all."""

    phase: str
    bucket: str
    baseline_ms: float
    baseline_share_pct: float
    """Of all time in buckets of that arm."""
    baseline_calls: int
    candidate_ms: float | None = None
    candidate_share_pct: float | None = None
    candidate_calls: int | None = None
    ratio: float | None = None
    """Candidate over baseline; None when not comparable or the baseline spent nothing. In a phase,
    also None when the arms did not do the same work in steps of that phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketComparison:
    """What the table shows."""

    arms: tuple[ArmBuckets, ...]
    """Baseline, and the candidate where there is one."""
    rows: tuple[BucketRow, ...]
    refusal: str | None
    """Why there are no ratios; None with one arm or when both did the same work."""
    other_work: tuple[str, ...] = ()
    """Phases in which the arms' work differs although it is the same in all: another page cuts the
    same prompts into other steps."""
    scope: str = SCOPE


def join_ranks(name: str, ranks: Sequence[Buckets]) -> ArmBuckets:
    """The mean over the traces of one server's ranks; ``ranks`` holds at least one."""
    times: dict[tuple[str, str], float] = defaultdict(float)
    calls: dict[tuple[str, str], int] = defaultdict(int)
    tops: dict[tuple[str, str], tuple[tuple[str, float], ...]] = {}
    for rank in ranks:
        for row in rank.rows:
            key = (row.bucket, row.phase)
            times[key] += row.time_us / len(ranks)
            calls[key] += row.calls
            tops.setdefault(key, row.top)
    rows = tuple(
        BucketTime(
            bucket=bucket,
            phase=phase,
            time_us=times[bucket, phase],
            calls=round(calls[bucket, phase] / len(ranks)),
            top=tops[bucket, phase],
        )
        for bucket, phase in sorted(times)
    )
    phases = sorted({phase for rank in ranks for phase in rank.work_by_phase})
    return ArmBuckets(
        name=name,
        clock=ranks[0].clock,
        ranks=len(ranks),
        rows=rows,
        work=_joined([rank.work for rank in ranks]),
        work_by_phase={
            phase: work
            for phase in phases
            if (work := _joined([rank.work_by_phase.get(phase) for rank in ranks])) is not None
        },
    )


def _joined(ranks: Sequence[Work | None]) -> Work | None:
    works = [work for work in ranks if work is not None]
    if not works or all(work == works[0] for work in works):
        return works[0] if works else None
    names = [item.name for item in fields(Work)]
    return Work(**{name: sum(getattr(work, name) for work in works) for name in names})


def compare_buckets(
    baseline: ArmBuckets, candidate: ArmBuckets | None = None, *, by_phase: bool = False
) -> BucketComparison:
    """The table's rows, costliest bucket of the baseline first."""
    refusal = None if candidate is None else _refusal(baseline, candidate)
    rows = _rows(baseline, candidate, refusal, by_phase=False)
    if by_phase and any(
        row.phase != "all" for arm in (baseline, candidate) if arm for row in arm.rows
    ):
        rows += _rows(baseline, candidate, refusal, by_phase=True)
    arms = (baseline,) if candidate is None else (baseline, candidate)
    return BucketComparison(
        arms=arms, rows=rows, refusal=refusal, other_work=_other_work(rows, *arms)
    )


def _other_work(rows: Sequence[BucketRow], *arms: ArmBuckets) -> tuple[str, ...]:
    if len(arms) == 1:
        return ()
    phases = sorted({row.phase for row in rows} - {"all"})
    return tuple(phase for phase in phases if not _same_work(phase, *arms))


def _refusal(baseline: ArmBuckets, candidate: ArmBuckets) -> str | None:
    if baseline.clock != candidate.clock:
        return f"the baseline's times are of the {baseline.clock}, the other's not"
    if baseline.ranks != candidate.ranks:
        return f"{baseline.ranks} ranks against {candidate.ranks}"
    if baseline.work is None or candidate.work is None:
        missing = baseline.name if baseline.work is None else candidate.name
        return f"{missing}: no step annotations of vLLM, so equal work cannot be shown"
    left, right = _amount(baseline.work), _amount(candidate.work)
    return None if left == right else f"different work: {left} against {right}"


def _amount(work: Work) -> str:
    """Tokens decide: another page may cut the same prompts into other chunks."""
    return f"{work.prefill_tokens} prefill and {work.decode_tokens} decode tokens"


def _same_work(phase: str, baseline: ArmBuckets, candidate: ArmBuckets) -> bool:
    left, right = (arm.work_by_phase.get(phase) for arm in (baseline, candidate))
    return left is not None and right is not None and _amount(left) == _amount(right)


def _rows(
    baseline: ArmBuckets, candidate: ArmBuckets | None, refusal: str | None, *, by_phase: bool
) -> tuple[BucketRow, ...]:
    left = _grouped(baseline, by_phase)
    right = {} if candidate is None else _grouped(candidate, by_phase)
    keys = sorted(
        left.keys() | right.keys(),
        key=lambda key: (key[0], -left.get(key, (0.0, 0))[0], -right.get(key, (0.0, 0))[0], key),
    )
    rows = []
    for key in keys:
        before, before_calls = left.get(key, (0.0, 0))
        shared = BucketRow(
            phase=key[0],
            bucket=key[1],
            baseline_ms=before / 1e3,
            baseline_share_pct=_share(before, baseline),
            baseline_calls=before_calls,
        )
        if candidate is None:
            rows.append(shared)
            continue
        comparable = refusal is None and (not by_phase or _same_work(key[0], baseline, candidate))
        after, after_calls = right.get(key, (0.0, 0))
        rows.append(
            replace(
                shared,
                candidate_ms=after / 1e3,
                candidate_share_pct=_share(after, candidate),
                candidate_calls=after_calls,
                ratio=after / before if before > 0 and comparable else None,
            )
        )
    return tuple(rows)


def _share(time_us: float, arm: ArmBuckets) -> float:
    return 100.0 * time_us / arm.total_us if arm.total_us > 0 else 0.0


def _grouped(arm: ArmBuckets, by_phase: bool) -> dict[tuple[str, str], tuple[float, int]]:
    times: dict[tuple[str, str], tuple[float, int]] = {}
    for row in arm.rows:
        key = (row.phase if by_phase else "all", row.bucket)
        time, calls = times.get(key, (0.0, 0))
        times[key] = (time + row.time_us, calls + row.calls)
    return times
