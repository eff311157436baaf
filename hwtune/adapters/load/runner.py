"""Runs a design: servers up, warm-up, blocks in their order, records kept as they come."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from hwtune.adapters.load.arms import ArmServer, served_model
from hwtune.adapters.load.client import LoadReport, Request, run_load
from hwtune.adapters.load.exchange import parse_endpoint
from hwtune.domain.bench import ARMS, ArmProof, Phase, RequestRecord
from hwtune.domain.errors import ExternalFailureError, InfeasibleError
from hwtune.domain.launch import Arm
from hwtune.domain.workload import (
    Block,
    Design,
    Place,
    Tier,
    places,
    prompt_hash,
    prompt_keys,
    prompts_in_pair,
    schedule,
    token_prompt,
    warm_up_lengths,
)
from hwtune.io.records import RequestJournal

Echo = Callable[[str], None]


@dataclass(slots=True)
class Progress:
    """What the runner tells whoever watches. Mutable: it is filled as the run goes on."""

    done: int = 0
    total: int = 0
    records: list[RequestRecord] = field(default_factory=list)
    proofs: dict[Arm, ArmProof] = field(default_factory=dict)
    worst_lag_s: float = 0.0


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
    ) -> None:
        self._design = design
        self._arms = arms
        self._journal = journal
        self._echo = echo
        self._on_block = on_block
        self._sleep = sleep
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
        self.progress.total = len(schedule(self._design))
        self.progress.done = self.progress.total - len(blocks)
        with self._servers():
            if not self._restarts and not self._prepare():
                return self.progress
            for block in blocks:
                self._run_block(block)
            if not self._restarts:
                self._prove(require_kernel_hits=True)
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
        url = self._arms[arm].start()
        name, longest = served_model(url)
        wanted = max(tier.most_tokens for tier in self._design.tiers)
        if longest is not None and longest < wanted:
            message = (
                f"{arm}: the server takes {longest} tokens, the largest tier needs {wanted};"
                f" pass --max-model-len {wanted} or leave the tier out"
            )
            raise InfeasibleError(message)
        self._targets[arm] = _Target(url=url, model=name)
        self._echo(f"{arm}: ready at {url}")

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
        for tier in tiers:
            requests = list(self._warm_up_requests(arm, tier))
            records = self._load(arm, requests)
            times = [f"{r.ttft_s * 1e3:.0f}" for r in records if r.ttft_s is not None]
            self._echo(
                f"{arm}: warm-up {tier.name}: TTFT {', '.join(times) or 'none'} ms (excluded)"
            )

    def _warm_up_requests(self, arm: Arm, tier: Tier) -> Iterator[Request]:
        earlier = self.progress.records
        number = sum(record.phase == "warm-up" and record.arm == arm for record in earlier)
        for index, length in enumerate(warm_up_lengths(self._design, tier)):
            key = f"{self._design.seed}/warm-up/{tier.name}/{number}/{index}"
            request = self._request(arm, "warm-up", tier, (0, 0, index), key, length)
            yield replace(request, model=self._targets[arm].model)

    def _run_block(self, block: Block) -> None:
        server = block.server
        if self._restarts:
            self._start(server)
            self._warm_up(server, [block.tier])
        else:
            self._sleep(self._design.settle_s)
        records = self._load(server, list(self._block_requests(block)))
        self._check_alive(block, records)
        if self._restarts:
            self._prove_restarted(server)
            self._stop([server])
        self.progress.done += 1
        self._on_block(block, self.progress)

    def _block_requests(self, block: Block) -> Iterator[Request]:
        attempt = self._attempts[block.place]
        for index, (key, length) in enumerate(prompt_keys(self._design, block, attempt)):
            place = (block.pair, attempt, index)
            request = self._request(block.arm, block.phase, block.tier, place, key, length)
            yield replace(request, model=self._targets[block.server].model)

    def _request(
        self,
        arm: Arm,
        phase: Phase,
        tier: Tier,
        place: tuple[int, int, int],
        key: str,
        length: int,
    ) -> Request:
        token_ids = token_prompt(key, length, self._design.vocab_size)
        return Request(
            arm=arm,
            phase=phase,
            tier=tier.name,
            pair=place[0],
            attempt=place[1],
            prompt=place[2],
            prompt_id=prompt_hash(token_ids),
            token_ids=tuple(token_ids),
            model="",
            output_tokens=self._design.output_tokens,
        )

    def _load(self, arm: Arm, requests: Sequence[Request]) -> list[RequestRecord]:
        records: list[RequestRecord] = []
        report: LoadReport = run_load(
            parse_endpoint(self._targets[arm].url),
            requests,
            concurrency=self._design.concurrency,
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
                served_model(self._targets[block.server].url)
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
    url: str
    model: str


def next_attempts(design: Design, earlier: Iterable[RequestRecord]) -> dict[Place, int]:
    """Pairs still to run, with their attempt number.

    A pair is finished when both arms have a record of every prompt in the same attempt and no
    request met a dead server. Otherwise both arms measure it again, with fresh prompts.
    """
    counts: Counter[tuple[Place, int]] = Counter()
    void: set[tuple[Place, int]] = set()
    highest: dict[Place, int] = {}
    for record in earlier:
        place = (record.phase, record.tier, record.pair)
        highest[place] = max(highest.get(place, 0), record.attempt)
        counts[place, record.attempt] += 1
        if record.failure == "connect error":
            void.add((place, record.attempt))
    missing: dict[Place, int] = {}
    for place in places(design):
        last = (place, highest.get(place, -1))
        full = prompts_in_pair(design, place[2]) * len(ARMS)
        if last in void or counts[last] < full:
            missing[place] = last[1] + 1
    return missing
