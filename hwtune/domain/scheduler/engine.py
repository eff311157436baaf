"""The scheduler itself: running requests first, then the waiting ones (Scheduler.schedule)."""

from __future__ import annotations

from hwtune.domain.errors import InputError
from hwtune.domain.scheduler.cache import Cache, Hit
from hwtune.domain.scheduler.live import FINISHED, PREEMPTED, RUNNING, WAITING, Live
from hwtune.domain.scheduler.plan import Pick, Plan
from hwtune.domain.scheduler.queues import ByPriority, Fcfs, Queue
from hwtune.domain.scheduler.setup import Setup
from hwtune.domain.scheduler.values import RowKind

_STEPS_IN_FLIGHT = 2
"""Most steps whose output is still to come."""


class Engine:
    """Requests, queues and cache of one engine."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._config = setup.config
        self.cache = Cache(setup)
        self.running: list[Live] = []
        self.waiting: Queue = ByPriority() if setup.config.policy == "priority" else Fcfs()
        self.tables: dict[str, tuple[int, ...]] = {}
        """Running request -> length of its block table per group."""
        self.held: dict[str, tuple[int, ...]] = {}
        """Running request -> blocks held per group."""
        self.tick = -1
        """Number of the last scheduled step."""
        self.changes = 0
        """Grows whenever ``tables`` change."""
        self._settled: Plan | None = None
        self._settled_until = -1
        self._preempted_at = -_STEPS_IN_FLIGHT - 1

    # --- schedule ---------------------------------------------------------------------------

    def schedule(self) -> Plan:
        """Decides one step and counts its tokens as computed."""
        self.tick += 1
        if self._settled is not None:
            if self.tick <= self._settled_until:
                return self._settled
            self._settled = None
        plan = Plan(
            tick=self.tick,
            budget=self._setup.max_scheduled,
            inputs=self._config.max_num_batched_tokens,
            long_prefill=self._long_prefill(),
        )
        self.cache.begin_step()
        left = self._schedule_running(plan)
        for live in self.running[left:]:
            live.catch_up(self.tick)
        if not plan.preempted:
            self._schedule_waiting(plan)
        self.cache.end_scheduling()
        self._advance(plan)
        self._settle(plan)
        return plan

    @property
    def settled(self) -> Plan | None:
        """The plan that the next steps will repeat."""
        return self._settled

    def settled_for(self) -> int:
        """How many of the next steps are sure to repeat the last one, unless something arrives."""
        return 0 if self._settled is None else self._settled_until - self.tick

    def skip(self, steps: int) -> None:
        """Counts steps that repeat the last one."""
        self.tick += steps

    def add(self, live: Live) -> None:
        """A request arrives."""
        self.waiting.add(live)
        self._settled = None

    def _settle(self, plan: Plan) -> None:
        """Notices that every running request is easy, so that nothing changes until one is not.

        Whoever waits will be refused for the same reason until then, except for a request whose
        output from before its preemption is still to come.
        """
        if plan.preempted:
            self._preempted_at = self.tick
        if plan.picks or len(plan.lives) != len(self.running) or not plan.lives:
            return
        if self.tick - self._preempted_at <= _STEPS_IN_FLIGHT:
            return
        self._settled = plan
        self._settled_until = min([live.easy_until for live in plan.lives])

    def _long_prefill(self) -> int:
        """The threshold protects others, so it does not hold for a request that is alone."""
        config = self._config
        requests = len(self.running) + len(self.waiting)
        threshold = config.long_prefill_token_threshold
        if requests <= 1 and not self._setup.rules.long_prefill_alone:
            return 0
        if threshold > 0 and config.long_prefill_adaptive:
            return max(threshold, config.max_num_batched_tokens // max(requests, 1))
        return threshold

    def _schedule_running(self, plan: Plan) -> int:
        """Rows for the running requests; returns how many of them were asked."""
        running, tick, slots = self.running, self.tick, self._setup.draft_slots
        index = 0
        while index < len(running) and plan.budget > 0 and plan.inputs > slots:
            live = running[index]
            if live.easy_until >= tick:
                index += self._easy_rows(plan, index)
                continue
            live.catch_up(tick)
            tokens = 0 if self._ends_in_flight(live) else self._wanted(live, plan)
            if tokens <= 0:
                index += 1
                continue
            while not self._room(live, tokens):
                victim = self._victim()
                index -= self._preempt(victim, plan, index)
                if victim is live:
                    return index
            if tokens == 1 and self._eased(live):
                continue
            plan.prefill_scheduled |= live.prefilling
            pick = self._pick(live, tokens, "running")
            plan.charge(pick, live.entry(tick, tokens, pick.drafts, "running"), slots)
            index += 1
        return index

    def _easy_rows(self, plan: Plan, start: int) -> int:
        """Rows of easy requests from ``start`` on, as far as they and the budgets go."""
        tick, cost = self.tick, 1 + self._setup.draft_slots
        most = min(plan.budget, -(-(plan.inputs - cost + 1) // cost))
        lives = []
        for live in self.running[start : start + most]:
            if live.easy_until < tick:
                break
            lives.append(live)
        plan.lives += lives
        plan.entries += [live.lane for live in lives if live.lane is not None]
        plan.budget -= len(lives)
        plan.inputs -= cost * len(lives)
        return len(lives)

    def _eased(self, live: Live) -> bool:
        """Makes a request easy if the next steps can only add a token each, this one included."""
        flight = 1 if self._config.async_scheduling else 0
        if (
            self._setup.num_drafts
            or live.prefilling
            or live.stale
            or live.placeholders != flight
            or live.in_flight != flight
            or live.known + flight - live.computed != 1
        ):
            return False
        end = min(live.limit, self._config.max_model_len)
        steps = min(live.quiet_until - live.computed, end - live.known - 1)
        if steps < 2:
            return False
        live.ease(self.tick, steps)
        return True

    def _wanted(self, live: Live, plan: Plan) -> int:
        """Tokens that a running request asks for, within every limit."""
        tokens = live.known + live.proposed + live.placeholders - live.computed
        if 0 < plan.long_prefill < tokens:
            tokens = plan.long_prefill
        tokens = min(
            tokens,
            plan.budget,
            plan.inputs - self._setup.draft_slots,
            self._config.max_model_len - live.computed - 1,
        )
        split = self._setup.split
        return split.clip(live, tokens, live.computed) if split else tokens

    def _room(self, live: Live, tokens: int) -> bool:
        if live.computed + tokens + self.cache.lookahead <= live.quiet_until:
            return True
        if not self.cache.allocate(live, tokens):
            return False
        self._note_tables(live)
        return True

    def _note_tables(self, live: Live) -> None:
        self.tables[live.id] = tuple([len(table.blocks) for table in live.tables])
        self.held[live.id] = tuple([table.held for table in live.tables])
        self.changes += 1

    def _pick(self, live: Live, tokens: int, kind: RowKind) -> Pick:
        drafts = 0
        if live.proposed:
            unknown = tokens + live.computed - live.known - live.placeholders
            drafts = max(min(live.proposed, unknown), 0)
            live.proposed = 0
        return Pick(live=live, tokens=tokens, drafts=drafts, kind=kind, computed=live.computed)

    def _victim(self) -> Live:
        if self._config.policy == "priority":
            return max(self.running, key=lambda live: (live.priority, live.arrival))
        return self.running[-1]

    def _preempt(self, victim: Live, plan: Plan, index: int) -> int:
        """Sends a running request back to the queue; 1 if it stood before ``index``."""
        place = self.running.index(victim)
        del self.running[place]
        victim.catch_up(self.tick)
        if not self._setup.rules.preemption_refunds and victim in plan.lives:
            message = (
                f"{victim.id}: a victim of higher priority that this step had scheduled already; "
                "before 0.13 vLLM goes on counting its tokens, which is not modelled"
            )
            raise InputError(message)
        plan.refund(victim, self._setup.draft_slots)
        self._drop_tables(victim)
        self.cache.release(victim)
        victim.status = PREEMPTED
        victim.computed = victim.proposed = 0
        if self._setup.rules.delivers_stale:
            victim.placeholders = 0
            victim.stale = victim.in_flight
        self.waiting.put_back((victim,))
        plan.preempted.append(victim)
        return int(place < index)

    def _drop_tables(self, live: Live) -> None:
        self.tables.pop(live.id, None)
        self.held.pop(live.id, None)
        self.changes += 1

    # --- admit ------------------------------------------------------------------------------

    def _schedule_waiting(self, plan: Plan) -> None:
        passed_over: list[Live] = []
        draft_slots = self._setup.draft_slots
        while plan.budget > 0 and plan.inputs > draft_slots and len(self.waiting):
            if len(self.running) >= self._setup.max_active:
                break
            live = self.waiting.head()
            if live.stale or self._too_long(live, plan):
                passed_over.append(self.waiting.pop())
                continue
            pick = self._admission(live, plan)
            if pick is None:
                break
            self.waiting.pop()
            self.running.append(live)
            live.status = RUNNING
            live.computed = pick.computed
            self._note_tables(live)
            plan.charge(
                pick, live.entry(self.tick, pick.tokens, pick.drafts, pick.kind), draft_slots
            )
        if passed_over:
            self.waiting.put_back(passed_over)

    def _admission(self, live: Live, plan: Plan) -> Pick | None:
        """What the head of the queue gets; None when it has to go on waiting."""
        hit = self.cache.lookup(live)
        live.junction = hit.junction if self._setup.rules.junctions else 0
        room = min(plan.budget, plan.inputs - self._setup.draft_slots)
        tokens = self._first_tokens(live, hit, plan, room)
        drafts = max(tokens - (live.known - hit.tokens), 0)
        split = self._setup.split
        if split and tokens > 0:
            clipped = split.clip(live, tokens, hit.tokens)
            if drafts and clipped != tokens:
                clipped, drafts = 1, 0
            tokens = clipped
        if tokens <= 0:
            return None
        kind: RowKind = "new" if live.status == WAITING else "resumed"
        whole, others = self._setup.reserves, bool(self.running)
        if not self.cache.admit(live, tokens, hit, whole=whole, others=others):
            return None
        return Pick(live=live, tokens=tokens, drafts=drafts, kind=kind, computed=hit.tokens)

    def _first_tokens(self, live: Live, hit: Hit, plan: Plan, room: int) -> int:
        """Tokens for a waiting request before alignment; 0 when nothing fits."""
        tokens = live.known - hit.tokens
        if self._pads(live, hit, plan, tokens):
            # A lone token beside verifications is padded, so that all rows are equally long.
            padded = 1 + self._setup.num_drafts
            if 0 < plan.long_prefill < padded:
                return self._cut_padding(plan.long_prefill, room)
            return padded if padded <= room else 0
        if 0 < plan.long_prefill < tokens:
            tokens = plan.long_prefill
        if not self._config.chunked_prefill and tokens > room:
            return 0
        return min(tokens, room)

    def _cut_padding(self, most: int, room: int) -> int:
        """A threshold below 1 + K takes the padding off, where vLLM can bear that at all."""
        if self._setup.rules.drops_cut_padding and self._setup.split:
            return 1 if room > self._setup.num_drafts else 0
        message = (
            f"long_prefill_token_threshold {most} is below the {1 + self._setup.num_drafts} tokens"
            f" of a verification: vLLM {self._config.vllm_version} fails where a request has one"
            " token left to compute"
        )
        raise InputError(message)

    def _pads(self, live: Live, hit: Hit, plan: Plan, tokens: int) -> bool:
        drafts = self._setup.num_drafts
        return (
            drafts > 0
            and self._setup.rules.pads_verifications
            and tokens == 1
            and not plan.prefill_scheduled
            and (any(pick.kind == "running" for pick in plan.picks.values()) or hit.tokens > 0)
            and hit.tokens + drafts + 2 <= self._config.max_model_len
        )

    # --- after ------------------------------------------------------------------------------

    def _advance(self, plan: Plan) -> None:
        asynchronous = self._config.async_scheduling
        for pick in plan.picks.values():
            live = pick.live
            live.computed += pick.tokens
            live.in_flight += pick.tokens
            live.prefilling = live.computed < live.known + live.placeholders
            pick.produces = not live.prefilling
            if asynchronous and pick.produces:
                live.placeholders += 1 + pick.drafts
                live.proposed = self._setup.num_drafts

    def finish(self, live: Live) -> None:
        """Takes a request out of the engine and frees its blocks."""
        if live.status == RUNNING:
            self.running.remove(live)
            self._drop_tables(live)
        else:
            self.waiting.remove(live)
        live.status = FINISHED
        self.cache.release(live)
        self._settled = None

    def _ends_in_flight(self, live: Live) -> bool:
        """Async: whether steps in flight are sure to reach the request's last token."""
        return (
            live.placeholders > 0
            and self._setup.rules.foresees_ends
            and live.computed + 2 - live.placeholders >= live.limit
        )

    def _too_long(self, live: Live, plan: Plan) -> bool:
        """0.11 without chunked prefill: whether the request is passed over for now."""
        if self._config.chunked_prefill or self._setup.rules.waits_for_room:
            return False
        tokens = live.known - self.cache.lookup(live).tokens
        if 0 < plan.long_prefill < tokens:
            tokens = plan.long_prefill
        return tokens > plan.budget
