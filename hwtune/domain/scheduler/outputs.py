"""What comes back from the model: counted tokens, rejected drafts, finished requests."""

from __future__ import annotations

from hwtune.domain.scheduler.engine import Engine
from hwtune.domain.scheduler.live import FINISHED, RUNNING, Live
from hwtune.domain.scheduler.plan import Pick, Plan
from hwtune.domain.scheduler.values import SchedulerConfig


class Outputs:
    """A model that only counts: one token per finished prefill or decode, and accepted drafts."""

    def __init__(self, engine: Engine, config: SchedulerConfig) -> None:
        self._engine = engine
        self._max_model_len = config.max_model_len
        self._speculation = config.speculation
        self._asynchronous = config.async_scheduling

    def process(self, plan: Plan) -> tuple[dict[str, int], list[str]]:
        """The output of one step reaches the scheduler (update_from_output).

        Returns:
            Tokens produced per request, and the requests that ended.
        """
        out: dict[str, int] = {}
        finished: list[str] = []
        for place, live in enumerate(plan.lives):
            if live.lane is not None:
                out[live.id] = 1
                continue
            pick = plan.picks.get(place) or _easy_pick(live)
            accepted = self._accepted(pick) if pick.drafts and pick.produces else 0
            if live.status == FINISHED:
                continue
            live.in_flight -= pick.tokens
            stale = live.stale > 0
            if stale:
                live.stale -= pick.tokens
            if not pick.produces:
                continue
            if not stale:
                self._reject(live, pick.drafts - accepted)
            out[live.id] = self._append(live, 1 + accepted, stale)
            if live.known >= self._end(live):
                self._engine.finish(live)
                finished.append(live.id)
            elif not self._asynchronous:
                live.proposed = self._proposal(live)
        return out, finished

    def _end(self, live: Live) -> int:
        return min(live.limit, self._max_model_len)

    @staticmethod
    def _reject(live: Live, drafts: int) -> None:
        if live.computed > 0:
            live.computed -= drafts
        if live.placeholders > 0:
            live.placeholders -= drafts

    def _append(self, live: Live, tokens: int, stale: bool) -> int:
        """Tokens that the request really gets: it ends at its limit, amid drafts if need be."""
        tokens = min(tokens, max(self._end(live) - live.known, 1))
        live.known += tokens
        if self._asynchronous:
            if not stale:
                live.placeholders -= tokens
            if live.status == RUNNING:
                self._engine.cache.store(live, live.computed - live.placeholders)
        return tokens

    def _accepted(self, pick: Pick) -> int:
        live, speculation = pick.live, self._speculation
        if speculation is None:
            return 0
        chosen = speculation.accepted[(live.order + live.verified) % len(speculation.accepted)]
        live.verified += 1
        return min(chosen, pick.drafts)

    def _proposal(self, live: Live) -> int:
        speculation = self._speculation
        if speculation is None:
            return 0
        if speculation.drafted is None:
            return speculation.num_tokens
        return speculation.drafted[(live.order + live.verified) % len(speculation.drafted)]


def _easy_pick(live: Live) -> Pick:
    """An easy row whose request stopped being easy before its output came."""
    return Pick(live=live, tokens=1, drafts=0, kind="running", computed=0, produces=True)
