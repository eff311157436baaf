"""The two servers under test, however they come to be."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from hwtune.adapters.load.exchange import parse_endpoint
from hwtune.domain.bench import ARMS, ArmProof, Gate
from hwtune.domain.errors import ExternalFailureError, InputError, UsageError
from hwtune.domain.launch import Arm, LaunchPlan
from hwtune.domain.validity import plan_difference_gate
from hwtune.io.plans import PLAN_FILE, read_plan


class ArmServer(Protocol):
    """One arm's server, as the runner sees it."""

    @property
    def arm(self) -> Arm: ...

    def start(self) -> tuple[str, ...]:
        """Makes the server ready and returns its URL, or those of several that share the work."""
        ...

    def verify(self, *, require_kernel_hits: bool) -> ArmProof:
        """What its log and counters prove so far."""
        ...

    def cause_of_death(self) -> str | None:
        """The first thing that went wrong in its log, or None when that is not known."""
        ...

    def stop(self) -> None:
        """Ends every process that ``start`` began. Allowed at any time, and twice."""
        ...


class UrlArm:
    """Servers that somebody else runs. With a run directory its markers are checked too."""

    def __init__(self, arm: Arm, urls: Sequence[str], run_dir: Path | None = None) -> None:
        self.arm: Arm = arm
        self._urls = tuple(urls)
        self._run_dir = run_dir

    def start(self) -> tuple[str, ...]:
        """Its URLs."""
        return self._urls

    def verify(self, *, require_kernel_hits: bool) -> ArmProof:
        """Not checked without a run directory."""
        if self._run_dir is None:
            return ArmProof(arm=self.arm, passed=None, summary="no run directory was given")
        return verify_arm(self.arm, self._run_dir, hits=require_kernel_hits)

    def cause_of_death(self) -> str | None:
        """What its log says, when its run directory is known."""
        return None if self._run_dir is None else _cause(self._run_dir)

    def stop(self) -> None:
        """Nothing: it is not ours."""


def given_arm(arm: Arm, urls: Sequence[str], run_dir: Path | str | None) -> UrlArm:
    """A server that is up, with the run directory that is to prove what answers at its URLs.

    Raises:
        InputError: no such directory, or the server it is of listens elsewhere.
    """
    if run_dir is None:
        return UrlArm(arm, urls)
    path = Path(run_dir)
    if not path.is_dir():
        message = f"{run_dir}: no such run directory"
        raise InputError(message)
    port = read_plan(path / PLAN_FILE).port
    if port not in [parse_endpoint(url).port for url in urls]:
        message = f"{run_dir}: its server listens on port {port}, not at {', '.join(urls)}"
        raise InputError(message)
    return UrlArm(arm, urls, path)


class ServedArm:
    """A vLLM server of hwtune's own, planned, started, proved and stopped here."""

    def __init__(self, plan: LaunchPlan, run_dir: Path, timeout_s: float) -> None:
        self.arm: Arm = plan.arm
        self.plan = plan
        self._run_dir = run_dir
        self._current = run_dir
        self._timeout_s = timeout_s
        self._stack = ExitStack()

    def start(self) -> tuple[str, ...]:
        """Starts vLLM and waits for it. Every restart gets a run directory of its own."""
        from hwtune.adapters.vllm.server import serve

        self._current = self._fresh_directory()
        starting = serve(self.plan, self._current, echo=None, ready_timeout_s=self._timeout_s)
        try:
            return (self._stack.enter_context(starting).url,)
        except ExternalFailureError as error:
            cause = self.cause_of_death()
            message = f"{self.arm}: {cause}; {error}" if cause else f"{self.arm}: {error}"
            raise ExternalFailureError(message) from None

    def _fresh_directory(self) -> Path:
        """arms/baseline, then arms/baseline-2 … so that a resume overwrites no evidence."""
        candidate, number = self._run_dir, 1
        while candidate.exists():
            number += 1
            candidate = self._run_dir.with_name(f"{self._run_dir.name}-{number}")
        return candidate

    def verify(self, *, require_kernel_hits: bool) -> ArmProof:
        """The marker check over the current server's run directory."""
        return verify_arm(self.arm, self._current, hits=require_kernel_hits)

    def cause_of_death(self) -> str | None:
        """From the current server's log."""
        return _cause(self._current)

    def stop(self) -> None:
        """Ends the server and its workers."""
        self._stack.close()


def verify_arm(arm: Arm, run_dir: Path, *, hits: bool, replaced: bool = False) -> ArmProof:
    """The marker check over the run directory of one of an arm's servers.

    Args:
        arm: whose server it was.
        run_dir: what the server left.
        hits: whether a planned kernel without a hit is a failure.
        replaced: another server took over after it. That it died is then no failure: the pair it
            died in was measured again.

    Raises:
        InputError: the run directory lacks its plan or holds damaged evidence.
    """
    from hwtune.adapters.vllm.verify import verify_run

    report = verify_run(run_dir, require_kernel_hits=hits)
    excused = replaced and all(check.name == "health" for check in report.failed)
    summary = report.summary
    if excused and report.failed:
        summary = f"PASS until it ended, and was replaced: {report.failed[0].reason}"
    return ArmProof(arm=arm, passed=report.passed or excused, summary=summary)


def _cause(run_dir: Path) -> str | None:
    from hwtune.adapters.vllm.verify import cause_of_death

    return cause_of_death(run_dir) if run_dir.is_dir() else None


def served_arms(
    model: str,
    profile: str,
    flags: Sequence[str],
    *,
    port: int | None,
    run_dir: Path,
    ready_timeout_s: float,
) -> tuple[ServedArm, ServedArm, Gate]:
    """Plans both arms and checks that their plans differ only in what is declared.

    Raises:
        UsageError: the flags fix the port, which two servers cannot share.
    """
    from hwtune.adapters.vllm.planning import free_port, plan_server

    if any(flag.split("=", 1)[0] == "--port" for flag in flags):
        message = "--port belongs before the vLLM flags: the candidate gets the port after it"
        raise UsageError(message)
    plans = [
        plan_server(model, profile, arm, flags, port=port + offset if port else free_port())
        for offset, arm in enumerate(ARMS)
    ]
    baseline, candidate = (
        ServedArm(plan, run_dir / "arms" / plan.arm, ready_timeout_s) for plan in plans
    )
    return baseline, candidate, plan_difference_gate(*plans)
