"""Runs a design: servers up, warm-up, blocks in their order, records kept as they come."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from hwtune.adapters.load.arms import ArmServer
from hwtune.adapters.load.ask import metrics_text, served_model
from hwtune.adapters.load.client import LoadReport, run_load
from hwtune.adapters.load.exchange import Endpoint, parse_endpoint
from hwtune.adapters.load.prompting import PromptMaker
from hwtune.adapters.load.requests import Request
from hwtune.domain.bench import ARMS, ArmProof, RequestRecord
from hwtune.domain.errors import ExternalFailureError, InfeasibleError, InputError
from hwtune.domain.launch import Arm
from hwtune.domain.pairing import latest_attempts, next_attempts
from hwtune.domain.prefix_cache import CacheReading, read_cache
from hwtune.domain.workload import Block, Design, Tier, schedule
from hwtune.io.records import RequestJournal

Echo = Callable[[str], None]


@dataclass(slots=True)
class Progress:
    """What the runner tells whoever watches. Mutable: it is filled as the run goes on."""

    done: int = 0
    total: int = 0
    tier_done: Counter[str] = field(default_factory=Counter)
    tier_total: Counter[str] = field(default_factory=Counter)
    records: list[RequestRecord] = field(default_factory=list)
    proofs: dict[Arm, ArmProof] = field(default_factory=dict)
    worst_lag_s: float = 0.0
    readings: list[CacheReading] = field(default_factory=list)


class Runner:
    """One A/B run over two arms. ``run`` may end early: everything finished is in the journal."""

    def __init__(
        self,
        design: Design,
        arms: Mapping[Arm, ArmServer],
        journal: RequestJournal,
        earlier: Sequence[RequestRecord],
        echo: Echo,
        on_block: Callable[[Block, Progress], None] = lambda block, progress: None,
        sleep: Callable[[float], None] = time.sleep,
        api_key: str = "",
    ) -> None:
        self._design = design
        self._arms = arms
        self._journal = journal
        self._echo = echo
        self._on_block = on_block
        self._sleep = sleep
        self._api_key = api_key
        self._prompts = PromptMaker(design)
        self._attempts = next_attempts(design, earlier)
        self._targets: dict[Arm, _Target] = {}
        self._wrong: set[Arm] = set()
        self._restarts = design.mode == "restart per block"
        self.progress = Progress(records=list(earlier))

    def run(self) -> Progress:
        """Runs what is missing.

        Raises:
            ExternalFailureError: a server did not start, died, or cannot be reached.
            InfeasibleError: the server's longest context is below a tier.
        """
        blocks = [block for block in schedule(self._design) if block.place in self._attempts]
        planned = schedule(self._design)
        self.progress.total = len(planned)
        self.progress.done = len(planned) - len(blocks)
        self.progress.tier_total = Counter(block.tier.name for block in planned)
        missing = Counter(block.tier.name for block in blocks)
        self.progress.tier_done = self.progress.tier_total - missing
        with self._servers():
            if not self._restarts and not self._prepare():
                return self.progress
            for block in blocks:
                self._run_block(block)
            if not self._restarts:
                for arm in ARMS:
                    self._read_cache(arm, "end")
                self._prove(require_kernel_hits=True)
            self._repeat()
        return self.progress

    @contextmanager
    def _servers(self) -> Iterator[None]:
        try:
            if not self._restarts:
                for arm in ARMS:
                    self._start(arm)
            yield
        finally:
            self._stop(ARMS)

    def _start(self, arm: Arm) -> None:
        self._echo(f"{arm}: starting the server" if self._owns_servers() else f"{arm}: connecting")
        endpoints = tuple(
            parse_endpoint(url, verify_tls=self._design.verify_tls, api_key=self._api_key)
            for url in self._arms[arm].start()
        )
        name = self._check_models(arm, endpoints)
        self._targets[arm] = _Target(endpoints=endpoints, model=name)
        self._echo(f"{arm}: ready at {', '.join(endpoint.url for endpoint in endpoints)}")
        if said := self._prompts.measure_text(endpoints[0], name):
            self._echo(f"{arm}: {said}")

    def _check_models(self, arm: Arm, endpoints: Sequence[Endpoint]) -> str:
        """The name under which all endpoints answer."""
        wanted = max(tier.most_tokens for tier in self._design.tiers)
        served = [served_model(endpoint) for endpoint in endpoints]
        if len({name for name, _ in served}) > 1:
            message = f"{arm}: its endpoints serve {' and '.join(name for name, _ in served)}"
            raise InputError(message)
        longest = min((length for _, length in served if length is not None), default=wanted)
        if longest < wanted:
            message = (
                f"{arm}: the server takes {longest} tokens, the largest tier needs {wanted};"
                f" pass --max-model-len {wanted} or leave the tier out"
            )
            raise InfeasibleError(message)
        return served[0][0]

    def _owns_servers(self) -> bool:
        return self._design.mode != "given urls"

    def _stop(self, arms: Iterable[Arm]) -> None:
        for arm in arms:
            self._targets.pop(arm, None)
            self._arms[arm].stop()

    def _prepare(self) -> bool:
        """Warm-up and a first look at the markers. False: an arm is not what it should be."""
        for arm in ARMS:
            self._warm_up(arm, self._design.tiers)
            self._read_cache(arm, "start")
        self._prove(require_kernel_hits=False)
        return all(proof.passed is not False for proof in self.progress.proofs.values())

    def _prove(self, *, require_kernel_hits: bool) -> None:
        for arm in ARMS:
            self._prove_arm(arm, require_kernel_hits=require_kernel_hits)

    def _prove_arm(self, arm: Arm, *, require_kernel_hits: bool) -> None:
        proof = self._arms[arm].verify(require_kernel_hits=require_kernel_hits)
        self._echo(f"{arm}: markers: {proof.summary}")
        self.progress.proofs[arm] = proof

    def _prove_restarted(self, arm: Arm) -> None:
        """One of many servers of an arm. A wrong one voids the arm, whatever the others were.

        A server that saw one tier only need not have hit every kernel; one of them must.
        """
        earlier = self.progress.proofs.get(arm)
        proof = self._arms[arm].verify(require_kernel_hits=False)
        if proof.passed is False:
            self._wrong.add(arm)
        elif arm in self._wrong or (earlier is not None and earlier.passed):
            return
        else:
            proof = self._arms[arm].verify(require_kernel_hits=True)
        self.progress.proofs[arm] = proof
        self._echo(f"{arm}: markers: {proof.summary}")

    def _warm_up(self, arm: Arm, tiers: Sequence[Tier]) -> None:
        earlier = self.progress.records
        number = sum(record.phase == "warm-up" and record.arm == arm for record in earlier)
        for tier in tiers:
            model = self._targets[arm].model
            requests = list(self._prompts.warm_up(arm, tier, number, model))
            records = self._load(arm, requests)
            times = [f"{r.ttft_s * 1e3:.0f}" for r in records if r.ttft_s is not None]
            self._echo(
                f"{arm}: warm-up {tier.name}: TTFT {', '.join(times) or 'none'} ms (excluded)"
            )

    def _run_block(self, block: Block) -> None:
        server = block.server
        if self._restarts:
            self._start(server)
            self._warm_up(server, [block.tier])
            self._read_cache(server, "start")
        else:
            self._sleep(self._design.settle_s)
        model = self._targets[server].model
        requests = self._prompts.block(block, self._attempts[block.place], model)
        records = self._load(server, requests)
        self._check_alive(block, records)
        if self._restarts:
            self._read_cache(server, "end")
            self._prove_restarted(server)
            self._stop([server])
        self.progress.done += 1
        self.progress.tier_done[block.tier.name] += 1
        self._on_block(block, self.progress)

    def _read_cache(self, arm: Arm, moment: Literal["start", "end"]) -> None:
        for server, endpoint in enumerate(self._targets[arm].endpoints):
            text = metrics_text(endpoint)
            if text is None:
                continue
            reading = read_cache(text, arm=arm, server=server, moment=moment, unix_s=time.time())
            self.progress.readings.append(reading)

    def _repeat(self) -> None:
        """The baseline answers some prompts once more: how often does it agree with itself?"""
        for tier in self._design.tiers:
            requests = self._repeats(tier)
            if not requests:
                continue
            if "baseline" not in self._targets:
                self._start("baseline")
            self._echo(f"baseline: {len(requests)} prompts of {tier.name} again, for their texts")
            model = self._targets["baseline"].model
            self._load("baseline", [replace(request, model=model) for request in requests])
        if self._restarts:
            self._stop(["baseline"])

    def _repeats(self, tier: Tier) -> list[Request]:
        """The first measured prompts of a tier, without those that have been repeated."""
        measured = latest_attempts(self.progress.records, tier.name)
        done = {record.prompt_id for record in self.progress.records if record.phase == "repeat"}
        attempts = {record.pair: record.attempt for record in measured}
        found: list[Request] = []
        for pair in sorted(attempts):
            if len(found) < self._design.repeats:
                block = Block(tier=tier, pair=pair, arm="baseline")
                found += self._prompts.block(block, attempts[pair], "")
        wanted = found[: self._design.repeats]
        return [
            replace(request, phase="repeat") for request in wanted if request.prompt_id not in done
        ]

    def _load(self, arm: Arm, requests: Sequence[Request]) -> list[RequestRecord]:
        records: list[RequestRecord] = []
        report: LoadReport = run_load(
            self._targets[arm].endpoints,
            requests,
            concurrency=None if self._design.arrival != "closed" else self._design.concurrency,
            timeout_s=self._design.request_timeout_s,
            on_record=lambda record: self._keep(record, records),
        )
        self.progress.worst_lag_s = max(self.progress.worst_lag_s, report.worst_lag_s)
        self._journal.sync()
        return records

    def _keep(self, record: RequestRecord, records: list[RequestRecord]) -> None:
        self._journal.append(record)
        records.append(record)
        self.progress.records.append(record)

    def _check_alive(self, block: Block, records: Sequence[RequestRecord]) -> None:
        """A server that is gone ends the run; failures of a living one are a red gate later."""
        failed = [record for record in records if record.failure]
        gone = next((r.detail for r in failed if r.failure == "connect error"), "")
        if failed and not gone:
            try:
                for endpoint in self._targets[block.server].endpoints:
                    served_model(endpoint)
            except ExternalFailureError as error:
                gone = str(error)
                # Voids the pair, so that a resume measures it again.
                self._keep(replace(failed[-1], failure="connect error", detail=gone), [])
        if not gone:
            return
        gone = self._arms[block.server].cause_of_death() or gone
        message = (
            f"{block.server}: the server is gone in tier {block.tier.name}, block"
            f" {block.pair + 1} of {self._design.pairs} ({gone}); {self.progress.done} of"
            f" {self.progress.total} blocks are kept"
        )
        raise ExternalFailureError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    endpoints: tuple[Endpoint, ...]
    model: str
