"""What ``hwtune simulate MODEL`` does: load, play, show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hwtune.cli import derive_page as page_command
from hwtune.cli import derive_page_modes as page_modes
from hwtune.cli.simulate_workload import WorkloadOptions, duration_of, workload_of
from hwtune.domain.errors import UsageError
from hwtune.domain.launch import Arm
from hwtune.domain.scheduler.ascend_calls import AscendDevice
from hwtune.domain.scheduler.question import Prediction, Question, predict, sweep
from hwtune.domain.scheduler.server_setup import ServerQuestion
from hwtune.domain.scheduler.speedup import parse_ratios, parse_share
from hwtune.domain.scheduler.sweep import parse_sweep
from hwtune.domain.units import LARGEST_SIZE
from hwtune.domain.vllm_command import split_command
from hwtune.io.model_config import load_model
from hwtune.io.profiles import load_profile
from hwtune.io.records import write_text
from hwtune.report.tables import Format, render

TIMELINE_STEPS = 4000
"""As many as a browser draws at once without effort."""
TRACE_STEPS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions:
    """As typed, beside the workload."""

    words: tuple[str, ...]
    """Model and vLLM's flags."""
    profile: str | None
    arm: Arm
    version: str | None
    npu: AscendDevice | None
    page: int | None
    kv_cache_memory: str | None
    device_memory: str | None
    weight_bytes: str | None
    accepted: str | None
    kernel_ratios: tuple[str, ...]
    attention_share: str | None
    sweep: tuple[str, ...]
    below: float
    trace: bool
    timeline: Path | None
    plot: Path | None
    format: Format


def answer(options: PredictOptions, workload: WorkloadOptions) -> tuple[str, bool]:
    """The text to print, and whether every request is served; files that were asked for are written.

    In a sweep one setting that serves all is enough: which do not is what it shows.

    Raises:
        HwtuneError: an option, the model, the profile or the deployment is no good.
    """
    _check(options, workload)
    question = question_of(options, workload)
    if options.sweep:
        return _sweep_answer(question, options)
    prediction = predict(question)
    if options.timeline is not None:
        write_text(options.timeline, _timeline(prediction))
    return _shown(prediction, options), prediction.stuck is None


def question_of(options: PredictOptions, workload: WorkloadOptions) -> Question:
    """The question, with everything loaded that it needs."""
    ratios_known = options.attention_share is not None
    if bool(options.kernel_ratios) != ratios_known:
        message = "--kernel-ratio and --attention-share need one another"
        raise UsageError(message)
    server = _server(options)
    return Question(
        server=server,
        workload=workload_of(workload),
        duration=duration_of(workload),
        ratios=parse_ratios(options.kernel_ratios, (k.name for k in server.profile.kernels)),
        attention_share=None
        if options.attention_share is None
        else parse_share("--attention-share", options.attention_share),
        keep_steps=_kept_steps(options),
    )


def _kept_steps(options: PredictOptions) -> int:
    if options.timeline is not None:
        return TIMELINE_STEPS
    return TRACE_STEPS if options.trace else 0


def _server(options: PredictOptions) -> ServerQuestion:
    if options.profile is None:
        message = "--profile is missing; hwtune profiles list names them"
        raise UsageError(message)
    if options.page is not None and not 1 <= options.page <= LARGEST_SIZE:
        message = f"--page {options.page}: must be from 1 to {LARGEST_SIZE}"
        raise UsageError(message)
    profile = load_profile(options.profile)
    if options.npu is not None and profile.device != "npu":
        message = f"--npu has no effect with profile {profile.name}, which is not an NPU's"
        raise UsageError(message)
    npu = options.npu or "A2"
    reference, flags = split_command(options.words)
    deployment = page_command.deployment_of(flags, options.version, profile.engine, None)
    request = page_modes.Request(
        reference=page_command.local_model(reference),
        deployment=page_modes.placed(deployment, profile),
        profile=profile,
        format=options.format,
    )
    memory = page_command.memory_of(
        options.kv_cache_memory, options.device_memory, options.weight_bytes
    )
    size, _ = page_modes.kv_memory(request, memory)
    return ServerQuestion(
        model=load_model(request.reference),
        profile=profile,
        deployment=replace(request.deployment, ascend_310p=npu == "310P"),
        flags=tuple(flags),
        arm=options.arm,
        npu=npu,
        page_tokens=options.page,
        kv_memory_bytes=size,
        accepted=_accepted(options.accepted, request.deployment.num_speculative_tokens),
    )


def _accepted(text: str | None, drafts: int) -> tuple[int, ...]:
    if text is None:
        return (0,)
    if not drafts:
        message = "--accepted has no effect without drafts: give vLLM's --speculative-config"
        raise UsageError(message)
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = (-1,)
    if not 0 <= min(numbers) <= max(numbers) <= drafts:
        message = f"--accepted {text[:40]}: expected whole numbers from 0 to {drafts}, such as 1,0"
        raise UsageError(message)
    return numbers


def _check(options: PredictOptions, workload: WorkloadOptions) -> None:
    shows = {"--trace": options.trace, "--timeline": options.timeline}
    for flag, value in shows.items():
        if value and options.sweep:
            message = f"{flag} and --sweep do not go together: it shows one run"
            raise UsageError(message)
    if options.plot is not None and not options.sweep:
        message = "--plot needs --sweep"
        raise UsageError(message)
    if not 0 < options.below <= 1:
        message = f"--below {options.below}: expected a share above 0 and up to 1"
        raise UsageError(message)
    closed = not workload.given and workload.arrivals is None and workload.arrival == "closed"
    if any("concurrency" in text for text in options.sweep) and not closed:
        message = "--sweep concurrency needs a closed loop: leave --arrival and --request out"
        raise UsageError(message)


def _sweep_answer(question: Question, options: PredictOptions) -> tuple[str, bool]:
    from hwtune.report.sweep import show_sweep, sweep_svg

    result = sweep(question, parse_sweep(options.sweep), options.below)
    if options.plot is not None:
        write_text(options.plot, sweep_svg(result))
    served = any(point.prediction.stuck is None for point in result.points)
    return show_sweep(result, options.format), served


def _shown(prediction: Prediction, options: PredictOptions) -> str:
    from hwtune.report.forecast import show_prediction
    from hwtune.report.step_table import step_table

    if not options.trace:
        return show_prediction(prediction, options.format)
    shown = render(step_table(prediction.timeline, TRACE_STEPS), options.format)
    left = prediction.timeline.total_steps - TRACE_STEPS
    if left > 0 and options.format is Format.TABLE:
        shown += f"\n… {left:,} more steps; --timeline FILE.html shows long runs"
    return shown


def _timeline(prediction: Prediction) -> str:
    from hwtune.report.timeline import timeline_html

    setup = prediction.setup
    config = setup.scenario.config
    return timeline_html(
        prediction.timeline,
        title=f"{setup.page.model.architecture} on {setup.profile.name}",
        subtitle=(
            f"{prediction.workload.title}; page {setup.page.block_size_tokens},"
            f" vLLM {config.vllm_version}, simulated"
        ),
        budget=config.max_num_scheduled_tokens or config.max_num_batched_tokens,
    )
