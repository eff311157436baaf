"""One A/B run on disk: its directory, its arms, its result."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

from hwtune.adapters.load.arms import ArmServer, given_arm, served_arms
from hwtune.adapters.load.clock_watch import watching_clocks
from hwtune.adapters.load.disk_evidence import arms_side_by_side, plan_gates, proofs_on_disk, worse
from hwtune.adapters.load.runner import Progress, Runner
from hwtune.domain.bench import (
    ARMS,
    ArmProof,
    Comparison,
    Gate,
    RequestRecord,
)
from hwtune.domain.compare import Judged, compare
from hwtune.domain.device_clock import clock_gate
from hwtune.domain.errors import InputError
from hwtune.domain.launch import Arm
from hwtune.domain.pairing import next_attempts
from hwtune.domain.prefix_cache import cache_gates
from hwtune.domain.server_compare import ServerComparison
from hwtune.domain.so_far import BlockNews, block_line, standing
from hwtune.domain.validity import marker_gates
from hwtune.domain.workload import Block, Design
from hwtune.io.cache_readings import append_readings, read_readings
from hwtune.io.device_clock import read_clocks
from hwtune.io.records import (
    DESIGN_FILE,
    PAGE_FILE,
    REPORT_FILE,
    RequestJournal,
    read_requests,
    require_fresh,
    write_comparison,
    write_design,
    write_text,
)
from hwtune.io.stored_verdict import stored_red_gates


class Watcher(Protocol):
    """Is told what happens."""

    def line(self, text: str) -> None:
        """Something worth a line."""
        ...

    def block(self, news: BlockNews) -> None:
        """A block has ended."""
        ...


def new_run_dir(kind: str = "ab") -> Path:
    """``hwtune-runs/<kind>-<date>-<time>`` below the working directory."""
    return Path("hwtune-runs") / time.strftime(f"{kind}-%Y%m%d-%H%M%S")


class Session:
    """Binds a design to its run directory."""

    def __init__(self, design: Design, run_dir: Path, *, resumed: bool) -> None:
        self.design = design
        self.run_dir = run_dir
        self._gates: list[Gate] = []
        self._proofs: dict[Arm, ArmProof] = {}
        self._worst_lag_s = 0.0
        self._measures = False
        self._resumed = resumed
        if not resumed:
            require_fresh(run_dir)
        self._earlier = read_requests(run_dir)

    def run(self, ready_timeout_s: float, watcher: Watcher) -> None:
        """Measures what is missing. Whatever ends it, finished requests are on disk.

        Raises:
            HwtuneError: a server failed, or an input turned out unusable.
        """
        if not next_attempts(self.design, self._earlier):
            watcher.line("nothing is missing: judging what is there")
            return
        self._measures = True
        api_key = self._api_key()
        arms = self._arms(ready_timeout_s)
        if not self._resumed:
            write_design(self.design, self.run_dir)
        with closing(RequestJournal(self.run_dir)) as journal:
            runner = Runner(
                self.design,
                arms,
                journal,
                self._earlier,
                watcher.line,
                lambda block, progress: watcher.block(_news(self.design, block, progress)),
                api_key=api_key,
            )
            try:
                with watching_clocks(self.run_dir):
                    runner.run()
            finally:
                append_readings(self.run_dir, runner.progress.readings)
                self._proofs = runner.progress.proofs
                self._worst_lag_s = runner.progress.worst_lag_s

    def _api_key(self) -> str:
        """From the environment, so that it stands in no file and no list of processes."""
        name = self.design.api_key_variable
        if name is None:
            return ""
        if not os.environ.get(name):
            message = f"--api-key-env {name}: the environment has no such variable, or it is empty"
            raise InputError(message)
        key = os.environ[name]
        if not key.isprintable():
            message = f"--api-key-env {name}: its value holds a line end or a control character"
            raise InputError(message)
        return key

    def _arms(self, ready_timeout_s: float) -> dict[Arm, ArmServer]:
        design = self.design
        if design.mode == "given urls":
            given = {
                "baseline": (design.baseline_urls, design.baseline_run),
                "candidate": (design.candidate_urls, design.candidate_run),
            }
            return {arm: given_arm(arm, *given[arm]) for arm in ARMS}
        baseline, candidate, gate = served_arms(
            design.model,
            design.profile or "",
            design.flags,
            port=design.port,
            run_dir=self.run_dir,
            ready_timeout_s=ready_timeout_s,
        )
        self._gates.append(gate)
        return {"baseline": baseline, "candidate": candidate}

    @property
    def begun(self) -> bool:
        """Whether the run got as far as a directory that can be resumed."""
        return (self.run_dir / DESIGN_FILE).exists()

    def judge(self, *, keep_stored: bool = False, judged: Judged = ()) -> Comparison | None:
        """The comparison over everything on disk; None when nothing was measured.

        Args:
            keep_stored: a gate that ``comparison.json`` holds as failed stays failed. For a run
                that is judged again without new measurements.
            judged: (metric, quantile) pairs whose ratio is wanted too.

        Raises:
            InputError: the records or the stored comparison are damaged.
        """
        records = read_requests(self.run_dir)
        gates = self._run_gates(records)
        red = any(gate.state == "failed" for gate in gates)
        if not red and not _any_measured(records):
            return None
        comparison = self._compare(records, gates, judged)
        if not keep_stored and self._measures:
            return comparison
        kept = stored_red_gates(self.run_dir, comparison)
        names = {gate.name for gate in kept}
        rest = tuple(gate for gate in gates if gate.name not in names)
        return self._compare(records, (*rest, *kept), judged) if kept else comparison

    def _compare(
        self, records: Sequence[RequestRecord], gates: Sequence[Gate], judged: Judged
    ) -> Comparison:
        lag = f"client: event loop at most {self._worst_lag_s * 1e3:.1f} ms late"
        return compare(self.design, records, gates, [lag] if self._measures else [], judged)

    def _run_gates(self, records: Sequence[RequestRecord]) -> tuple[Gate, ...]:
        """Of the whole run: what its servers left on disk, and what was red while they ran."""
        live = [self._proofs.get(arm) or _unproved(arm) for arm in ARMS]
        if not _any_measured(records):
            return (*marker_gates(live), *self._gates)
        disk = proofs_on_disk(self.design, self.run_dir, records)
        # With restarts the last servers alone need not have hit every kernel.
        watched = {} if self.design.mode == "restart per block" else self._proofs
        red = [gate for gate in self._gates if gate.state == "failed"]
        plans = red or plan_gates(self.design, self.run_dir, records)
        declared = self.design.mode != "given urls"
        # A chat's template stands before every prompt.
        parts = any(arrived.parts for arrived in self.design.trace)
        shared = parts or self.design.endpoint == "chat"
        readings = read_readings(self.run_dir)
        cache = cache_gates(readings, records, declared=declared, shared=shared)
        clocks = clock_gate(read_clocks(self.run_dir), records)
        return (*marker_gates(worse(watched, disk)), *plans, *cache, clocks)

    def missing(self) -> str:
        """What a resume would still measure, or nothing."""
        pairs = next_attempts(self.design, read_requests(self.run_dir))
        counts = Counter((phase, tier) for phase, tier, _ in pairs)
        return ", ".join(
            f"{count} {'A/A ' * (phase == 'a/a')}block{'s' * (count > 1)} of tier {tier}"
            for (phase, tier), count in counts.items()
        )

    def write(self, comparison: Comparison, report: str, page: str) -> None:
        """``comparison.json``, ``report.md`` and ``report.html``."""
        write_comparison(comparison, self.run_dir)
        write_text(self.run_dir / REPORT_FILE, report)
        write_text(self.run_dir / PAGE_FILE, page)

    def arms_side_by_side(self, records: Sequence[RequestRecord]) -> ServerComparison | None:
        """What differs between the arms' servers; None when one left no evidence."""
        return arms_side_by_side(self.design, self.run_dir, records)


def _any_measured(records: Iterable[RequestRecord]) -> bool:
    return any(record.phase == "measured" for record in records)


def _unproved(arm: Arm) -> ArmProof:
    return ArmProof(arm=arm, passed=None, summary="the run ended before the markers were checked")


def _news(design: Design, block: Block, progress: Progress) -> BlockNews:
    tier = block.tier.name
    return BlockNews(
        done=progress.done,
        total=progress.total,
        tier=tier,
        tier_done=progress.tier_done[tier],
        tier_total=progress.tier_total[tier],
        line=block_line(block, progress.records),
        standing=standing(design, tier, block.phase, progress.records),
    )
