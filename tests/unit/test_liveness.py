"""When a server that does nothing is stuck, and when nobody asked it anything."""

from __future__ import annotations

import dataclasses

import pytest

from hwtune.domain.liveness import Liveness, LivenessVerdict, Pulse

PATIENCE_S = 30.0
IDLE = Pulse(at_s=0, log_bytes=0, healthy=True, progress=5, requests=0, connections=0)
FINE = LivenessVerdict()


def verdicts(*looks: Pulse) -> list[LivenessVerdict]:
    liveness = Liveness(PATIENCE_S)
    return [liveness.feed(look) for look in looks]


def over(pulse: Pulse, seconds: tuple[float, ...]) -> list[Pulse]:
    return [dataclasses.replace(pulse, at_s=at) for at in seconds]


def test_an_idle_server_is_never_stuck_nor_asked() -> None:
    assert set(verdicts(*over(IDLE, (0, 100, 1000, 10_000)))) == {FINE}


def test_requests_without_a_token_are_stuck_after_the_patience_and_not_before() -> None:
    busy = dataclasses.replace(IDLE, requests=2, connections=2)
    *before, after = verdicts(*over(busy, (0, 15, 29.9, 30)))
    assert set(before) == {FINE}
    assert after.trouble == "2 requests in progress and no token for 30 s"


def test_a_token_now_and_then_is_work() -> None:
    looks = [
        dataclasses.replace(IDLE, at_s=29.0 * n, requests=1, progress=n, log_bytes=7)
        for n in range(20)
    ]
    assert set(verdicts(*looks)) == {FINE}


def test_log_lines_are_no_work_while_requests_wait() -> None:
    """vLLM goes on printing 0.0 tokens/s when its engine hangs."""
    looks = [dataclasses.replace(IDLE, at_s=n, log_bytes=n, requests=1) for n in range(31)]
    assert verdicts(*looks)[-1].trouble is not None


def test_no_answer_to_health_is_trouble_and_says_whether_anything_was_printed() -> None:
    gone = dataclasses.replace(IDLE, healthy=False, requests=None, connections=None)
    last = verdicts(IDLE, *over(gone, (1, 20, 40)))[-1].trouble
    assert last == "no good answer to /health for 40 s, no token for 40 s, no log line for 40 s"
    talking = [dataclasses.replace(gone, at_s=at, log_bytes=int(at)) for at in (1.0, 20.0, 40.0)]
    last = verdicts(IDLE, *talking)[-1].trouble
    assert last == "no good answer to /health for 40 s, no token for 40 s"


def test_a_server_too_busy_to_answer_is_not_stuck() -> None:
    looks = [
        dataclasses.replace(IDLE, at_s=10.0 * n, healthy=False, progress=n, requests=None)
        for n in range(20)
    ]
    assert set(verdicts(*looks)) == {FINE}


@pytest.mark.parametrize("connections", [3, None])
def test_open_connections_and_no_work_is_a_doubt_that_a_request_settles(
    connections: int | None,
) -> None:
    """An engine that hangs before its first step never reports the request as running."""
    doubtful = dataclasses.replace(IDLE, connections=connections)
    liveness = Liveness(PATIENCE_S)
    assert liveness.feed(doubtful) == FINE
    later = dataclasses.replace(doubtful, at_s=30.0)
    assert liveness.feed(later) == LivenessVerdict(ask=True)
    liveness.answered(31.0)
    assert liveness.feed(dataclasses.replace(doubtful, at_s=60.0)) == FINE
    assert liveness.feed(dataclasses.replace(doubtful, at_s=61.0)).ask
    trouble = liveness.unanswered(30.0).trouble
    assert trouble == "a request of one token got no answer in 30 s"


def test_it_works_again_as_soon_as_anything_moves() -> None:
    busy = dataclasses.replace(IDLE, requests=1)
    moved = dataclasses.replace(busy, at_s=41.0, progress=6)
    found = verdicts(*over(busy, (0, 40)), moved)
    assert [verdict.trouble is None for verdict in found] == [True, False, True]
