"""One question to the simulator and its answer: server, workload, forecast, expected change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hwtune.domain.errors import InputError
from hwtune.domain.scheduler.kernel_paths import KernelPaths
from hwtune.domain.scheduler.play import Played, Watcher, play
from hwtune.domain.scheduler.prediction import Forecast, Forecaster
from hwtune.domain.scheduler.server_setup import ServerQuestion, ServerSetup, server_setup
from hwtune.domain.scheduler.speedup import ExpectedChange, Measured, expected_change
from hwtune.domain.scheduler.sweep import AxisName, first_below, hit_rate, settings
from hwtune.domain.scheduler.timeline import Timeline
from hwtune.domain.scheduler.workloads import Duration, Workload, fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be predicted."""

    server: ServerQuestion
    workload: Workload
    duration: Duration | None = None
    ratios: Mapping[str, Measured] = field(default_factory=dict)
    """Kernel -> how many times faster than what it replaces."""
    attention_share: Measured | None = None
    """Of end-to-end time, without the kernels."""
    observed: bool = False
    """Whether the kernels are only watched, as in the baseline arm of a real run."""
    keep_steps: int = 0
    """Steps to keep for looking at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The answer."""

    setup: ServerSetup
    workload: Workload
    """Without requests that the server would refuse."""
    duration: Duration | None
    forecast: Forecast
    played: Played
    change: ExpectedChange | None
    timeline: Timeline
    notes: tuple[str, ...]

    @property
    def stuck(self) -> str | None:
        """Why requests are never served, one of the notes; None when all are."""
        return _stuck(self.workload, self.played)


def predict(question: Question) -> Prediction:
    """Plays the workload and says what the kernels would get.

    Raises:
        HwtuneError: the server cannot be, or the question lacks something.
    """
    items = question.workload.items
    longest = max((item.prompt_tokens + item.output_tokens for item in items), default=1)
    setup = server_setup(question.server, longest)
    length = setup.scenario.config.max_model_len
    kept, refused = fit(items, length)
    if not kept:
        message = f"no prompt is below max_model_len {length}: vLLM would refuse every request"
        raise InputError(message)
    workload = replace(question.workload, items=kept)
    kernels = question.server.profile.kernels
    paths = KernelPaths(
        kernels,
        setup.layer,
        observed=question.observed,
        speculative_tokens=setup.runner.num_speculative_tokens,
    )
    forecaster = Forecaster(paths, setup.cost, graphs=setup.graphs, ascend=setup.ascend)
    ascend = None if setup.ascend is None else setup.runner
    timeline = Timeline(paths=paths, limit=question.keep_steps, ascend=ascend)
    watchers: tuple[Watcher, ...] = (forecaster, timeline) if question.keep_steps else (forecaster,)
    played = play(setup.scenario, workload, watchers, question.duration)
    forecast = forecaster.result()
    share = question.attention_share
    return Prediction(
        setup=setup,
        workload=workload,
        duration=question.duration if workload.pacing == "timed" else None,
        forecast=forecast,
        played=played,
        change=expected_change(forecast, question.ratios, share) if share else None,
        timeline=timeline,
        notes=tuple(_notes(setup, workload, refused, played)),
    )


def _notes(setup: ServerSetup, workload: Workload, refused: int, played: Played) -> list[str]:
    notes = [*workload.notes, *setup.notes]
    if refused:
        length = setup.scenario.config.max_model_len
        notes.append(f"{refused} requests are longer than {length} tokens: vLLM would refuse them")
    stuck = _stuck(workload, played)
    return [*notes, stuck] if stuck else notes


def _stuck(workload: Workload, played: Played) -> str | None:
    if played.stall is None:
        return None
    count = len(workload.items) - played.finished
    who = "1 request is" if count == 1 else f"{count} requests are"
    return f"stuck: {who} never served; {played.stall.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One setting of a sweep."""

    setting: Mapping[AxisName, int]
    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The same question at several settings."""

    axes: Mapping[AxisName, tuple[int, ...]]
    points: tuple[SweepPoint, ...]
    limit: float
    """Hit rate that ``first_below`` is about."""
    first_below: Mapping[str, int | None]
    """Kernel -> smallest concurrency at which its hit rate is below ``limit``; only when
    concurrency is the one axis."""


def sweep(question: Question, axes: Mapping[AxisName, tuple[int, ...]], limit: float) -> Sweep:
    """Asks at every combination, and closes in on where hit rates fall.

    Raises:
        HwtuneError: as :func:`predict`.
    """
    points = tuple(
        SweepPoint(setting=setting, prediction=predict(at(question, setting)))
        for setting in settings(axes)
    )
    below: dict[str, int | None] = {}
    if set(axes) == {"concurrency"}:
        below = _first_below(question, axes["concurrency"], points, limit)
    return Sweep(axes=axes, points=points, limit=limit, first_below=below)


def _first_below(
    question: Question, values: Sequence[int], points: Sequence[SweepPoint], limit: float
) -> dict[str, int | None]:
    known = {point.setting["concurrency"]: point.prediction.forecast for point in points}

    def forecast(value: int) -> Forecast:
        if value not in known:
            known[value] = predict(at(question, {"concurrency": value})).forecast
        return known[value]

    def falls(kernel: str) -> int | None:
        return first_below(values, lambda value: hit_rate(forecast(value), kernel), limit)

    return {spec.name: falls(spec.name) for spec in question.server.profile.kernels}


def at(question: Question, setting: Mapping[AxisName, int]) -> Question:
    """The question with a sweep's setting in place."""
    server = replace(
        question.server,
        budget_tokens=setting.get("budget", question.server.budget_tokens),
        page_tokens=setting.get("page", question.server.page_tokens),
        chunk_tokens=setting.get("chunk", question.server.chunk_tokens),
    )
    workload = question.workload
    if "concurrency" in setting:
        workload = replace(workload, concurrency=setting["concurrency"])
    return replace(question, server=server, workload=workload)
