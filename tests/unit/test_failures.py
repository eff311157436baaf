"""The first cause of a failure, not the last traceback."""

from __future__ import annotations

import json

import pytest

from hwtune.domain.check_health import health_checks
from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.evidence import Evidence
from hwtune.domain.failures import first_cause
from hwtune.io.marker_sets import load_markers

WORKER = "(Worker pid=3) ERROR 11-30 06:49:30 [multiproc_executor.py:953] "
ENGINE = "(EngineCore pid=2) ERROR 11-30 06:49:31 [core.py:1510] "
SERVING = "ERROR 08-18 19:58:43 [serving_chat.py:203] "
STARTED = "INFO:     Application startup complete."


def _evidence(*lines: str) -> Evidence:
    collector = EvidenceCollector(load_markers())
    collector.feed("x.log", enumerate(lines, start=1))
    return collector.evidence()


def _traceback(prefix: str, exception: str) -> list[str]:
    return [
        f"{prefix}Traceback (most recent call last):",
        f'{prefix}  File "core.py", line 1, in run',
        f"{prefix}    engine = Engine()",
        f"{prefix}             ^^^^^^^^",
        f"{prefix}{exception}",
    ]


def test_the_workers_exception_comes_before_those_that_waited_for_it() -> None:
    evidence = _evidence(
        f"{WORKER}WorkerProc failed to start.",
        *_traceback(WORKER, "ValueError: Available memory on node 0 is less than desired"),
        f"{ENGINE}EngineCore failed to start.",
        *_traceback(
            ENGINE,
            "Exception: WorkerProc initialization failed due to an exception in a "
            "background process. See stack trace for root cause.",
        ),
        *_traceback("", "RuntimeError: Engine core initialization failed. See root cause above."),
    )
    cause = first_cause(evidence)
    assert cause is not None
    assert cause.text.startswith("ValueError: Available memory")
    assert (cause.place.line, cause.phase) == (6, "start")
    assert evidence.value("first_error") == cause.text


def test_tracebacks_of_two_processes_may_interleave() -> None:
    one, two = _traceback(WORKER, "ValueError: one"), _traceback(ENGINE, "KeyError: 'two'")
    mixed = [line for pair in zip(one, two, strict=True) for line in pair]
    assert [failure.text for failure in _evidence(*mixed).failures] == [
        "ValueError: one",
        "KeyError: 'two'",
    ]


def test_lines_of_other_programs_may_stand_inside_a_traceback() -> None:
    first, *rest = _traceback("", "ValueError: one")
    others = [
        "[entrypoint] waiting for the server",
        "INFO:     127.0.0.1:5 - health",
        "step: 4 of 9",
    ]
    mixed = [first, *(line for pair in zip(others, rest, strict=False) for line in pair), rest[-1]]
    assert [failure.text for failure in _evidence(*mixed).failures] == ["ValueError: one"]


def test_a_request_error_is_known_by_the_loggers_name_too() -> None:
    line = json.dumps({"level": "error", "logger": "vllm.entrypoints.openai.serving_chat",
                       "event": "Error", "exception": "\n".join(_traceback("", "ValueError: long"))})  # fmt: skip
    evidence = _evidence(line)
    assert (evidence.failures, evidence.request_errors) == ((), 1)


def test_a_traceback_inside_a_json_line_is_read() -> None:
    line = json.dumps({"level": "ERROR", "name": "vllm.v1.engine.core", "message": "failed",
                       "exc_info": "\n".join(_traceback("", "ValueError: page"))})  # fmt: skip
    assert [failure.text for failure in _evidence(line).failures] == ["ValueError: page"]


def test_an_echo_is_reported_when_nothing_better_was_logged() -> None:
    cause = first_cause(_evidence(f"{ENGINE}EngineCore failed to start."))
    assert cause is not None
    assert cause.wrapper


def test_an_exception_without_text() -> None:
    cause = first_cause(
        _evidence(f"{ENGINE}Traceback (most recent call last):", f"{ENGINE}AssertionError")
    )
    assert cause is not None
    assert cause.text == "AssertionError"


def test_pydantic_says_the_reason_in_its_next_line() -> None:
    lines = _traceback(
        "", "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig"
    )
    cause = first_cause(
        _evidence(*lines, "  Value error, block_size (2096) must be small [type=x]")
    )
    assert cause is not None
    assert "block_size (2096) must be small" in cause.text


def test_a_failed_request_is_no_failure_of_the_server() -> None:
    evidence = _evidence(
        STARTED, *_traceback(SERVING, "ValueError: maximum context length is 2048")
    )
    assert (evidence.failures, evidence.request_errors) == ((), 1)


def test_a_failure_after_start_up_is_told_apart() -> None:
    cause = first_cause(_evidence(STARTED, *_traceback(ENGINE, "RuntimeError: device-side assert")))
    assert cause is not None
    assert cause.phase == "serving"


API = "(APIServer pid=1) ERROR 11-30 07:42:17 [async_llm.py:906] "
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See above."
ASSERT = "RuntimeError: device-side assert"
STOPS = [
    "(APIServer pid=1) INFO 11-30 07:42:17 [launcher.py:254] [shutdown] API server: shutdown triggered",
    "INFO 08-18 19:58:43 [launcher.py:73] Shutting down FastAPI HTTP server.",
    "INFO:     Shutting down",
    "INFO:     Finished server process [7]",
]


def _health(evidence: Evidence) -> str:
    found = {item.name: item.status for item in health_checks(evidence)}
    return found.get("health", "no failure")


@pytest.mark.parametrize("stop", STOPS)
def test_what_a_server_prints_while_it_stops_is_no_failure(stop: str) -> None:
    evidence = _evidence(STARTED, stop, f"{API}output_handler failed.", *_traceback(API, DEAD))
    assert [failure.phase for failure in evidence.failures] == ["shutdown"]
    assert first_cause(evidence) is None
    assert (evidence.value("first_error"), _health(evidence)) == (None, "no failure")


def test_a_failure_before_the_request_to_stop_counts() -> None:
    evidence = _evidence(STARTED, *_traceback(ENGINE, ASSERT), STOPS[0], *_traceback(API, DEAD))
    cause = first_cause(evidence)
    assert cause is not None
    assert (cause.text, cause.phase, _health(evidence)) == (ASSERT, "serving", "failed")


def test_a_traceback_that_began_before_the_request_to_stop_counts() -> None:
    *most, last = _traceback(ENGINE, ASSERT)
    assert _health(_evidence(STARTED, *most, STOPS[0], last)) == "failed"


def test_a_server_that_starts_again_in_the_same_log_can_fail_again() -> None:
    again = "(APIServer pid=8) INFO 11-30 08:00:00 [api_utils.py:1] vLLM API server version 0.32.0"
    first = (STARTED, STOPS[0], *_traceback(API, DEAD), again)
    cause = first_cause(_evidence(*first, *_traceback(ENGINE, ASSERT)))
    assert cause is not None
    assert cause.phase == "start"
    assert _health(_evidence(*first, STARTED, *_traceback(API, DEAD))) == "failed"


def test_a_start_that_fails_is_no_shutdown() -> None:
    cause = first_cause(_evidence(STOPS[0], *_traceback(ENGINE, ASSERT)))
    assert cause is not None
    assert cause.phase == "start"


@pytest.mark.parametrize("end", ["KeyboardInterrupt", "SystemExit: 0"])
def test_being_stopped_is_no_failure(end: str) -> None:
    assert first_cause(_evidence(STARTED, *_traceback("", end))) is None


@pytest.mark.parametrize(
    "line",
    [
        "LLVM ERROR: Unsupported rounding mode for conversion.",
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): "
            "address already in use"
        ),
        "HW Exception by GPU node-1 (Agent handle: 0x55) reason :GPU Hang",
        "terminate called after throwing an instance of 'c10::Error'",
    ],
)
def test_ends_without_a_traceback(line: str) -> None:
    cause = first_cause(_evidence(line))
    assert cause is not None
    assert cause.text == line


def test_an_error_line_alone_is_no_failure() -> None:
    line = "ERROR 07-31 16:03:34 [fa_utils.py:57] Cannot use FA version 2 is not supported"
    assert _evidence(line).failures == ()


def test_the_same_failure_is_kept_once() -> None:
    lines = _traceback(ENGINE, "ValueError: twice")
    assert len(_evidence(*lines, *lines).failures) == 1


OLD_WORKER = "(VllmWorkerProcess pid=760) ERROR 07-24 08:26:01 multiproc_worker_utils.py:226] "
FILE = '  File "/opt/x/{}", line 7, in {}'


@pytest.mark.parametrize(
    "opening",
    [
        f"{OLD_WORKER}Exception in worker VllmWorkerProcess: no link, Traceback (most recent call last):",
        f"{ENGINE}EngineCore hit an exception: Traceback (most recent call last):",
    ],
)
def test_a_traceback_may_begin_behind_other_words_of_its_line(opening: str) -> None:
    """Reading whole blocks passes over dull lines; this one is none, whatever its first words."""
    head = opening[: opening.index("] ") + 2]
    more = [f"{head}{FILE.format('a.py', 'run')}", f"{head}ValueError: real"]
    dull = f"{head}Exception in worker VllmWorkerProcess while it starts"
    block = "\n".join([dull, opening, *more]).encode()
    collector = EvidenceCollector(load_markers())
    collector.feed_files([("x.log", iter([(1, block)]))])
    assert collector.evidence().value("first_error") == "ValueError: real"


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (("logging/__init__.py", "emit"), ("logging/__init__.py", "format")),
        (("x.py", "__del__"), ("y.py", "close")),
        (("threading.py", "run"), ("usage/usage_lib.py", "_report_usage_worker")),
        (("multiprocessing/resource_tracker.py", "main"), None),
    ],
)
def test_tracebacks_that_end_nothing_are_no_cause(
    outer: tuple[str, str], inner: tuple[str, str] | None
) -> None:
    frames = [FILE.format(*frame) for frame in (outer, inner) if frame]
    aside = ["Traceback (most recent call last):", *frames, "KeyError: 'aside'"]
    assert _evidence(*aside).value("first_error") is None
    cause = first_cause(_evidence(*aside, *_traceback(ENGINE, "ValueError: real")))
    assert cause is not None
    assert cause.text == "ValueError: real"


def test_the_same_frames_further_in_are_those_of_a_cause() -> None:
    frames = [FILE.format("core.py", "run"), FILE.format("x.py", "__del__")]
    evidence = _evidence("Traceback (most recent call last):", *frames, "KeyError: 'k'")
    assert evidence.value("first_error") == "KeyError: 'k'"


def test_a_group_of_exceptions_is_named_by_what_it_holds() -> None:
    evidence = _evidence(
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/a.py", line 3, in f',
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "/a.py", line 3, in f',
        "    | ValueError: inside",
        "    +------------------------------------",
    )
    assert evidence.value("first_error") == "ValueError: inside"


def test_a_process_that_died_silently_counts_only_where_nothing_says_why() -> None:
    died = f"{ENGINE}Worker proc VllmWorker-1 died unexpectedly, shutting down executor."
    silent = first_cause(_evidence(died))
    assert silent is not None
    assert silent.text.startswith("Worker proc VllmWorker-1 died")
    told = first_cause(_evidence(died, *_traceback(WORKER, "ValueError: real")))
    assert told is not None
    assert told.text == "ValueError: real"


LOADING = "vllm-1  | (APIServer pid=7) INFO 11-30 06:51:30 [api_utils.py:330] vLLM server version 0.32.0, serving model m"


@pytest.mark.parametrize(
    "line",
    [
        "vllm-1 exited with code 137",
        "Aug 18 14:14:54 host systemd[1]: vllm.service: Main process exited, code=killed, status=9/KILL",
        "[12345.678901] Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:9kB",
        "      Reason:       OOMKilled",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some were killed.",
        "srun: error: node4: task 0: Killed",
    ],
)
def test_the_system_tells_of_a_death_that_the_log_does_not_explain(line: str) -> None:
    evidence = _evidence(LOADING, line)
    cause = first_cause(evidence)
    assert cause is not None
    assert line.endswith(cause.text.strip())
    assert evidence.value("startup_complete") is False
    told = first_cause(_evidence(LOADING, *_traceback(ENGINE, "ValueError: real"), line))
    assert told is not None
    assert told.text == "ValueError: real"


@pytest.mark.parametrize(
    "line",
    [
        "grafana-1 exited with code 1",
        "vllm-1 exited with code 0",
        "vllm-1 exited with code 143",
        "host kernel: Out of memory: Killed process 99 (chrome) total-vm:9kB",
    ],
)
def test_other_containers_and_orderly_ends_are_no_failure(line: str) -> None:
    assert _evidence(LOADING, f"vllm-1  | {STARTED}", line).failures == ()


def test_the_end_of_a_job_counts_only_for_a_server_that_had_not_started() -> None:
    limit = (
        "slurmstepd: error: *** JOB 7 ON n4 CANCELLED AT 2026-08-18T14:14:54 DUE TO TIME LIMIT ***"
    )
    starting = first_cause(_evidence(LOADING, limit))
    assert starting is not None
    assert "TIME LIMIT" in starting.text
    assert first_cause(_evidence(LOADING, STARTED, limit)) is None


def test_an_excerpt_that_lacks_a_tracebacks_first_line() -> None:
    lines = [
        f'{ENGINE}  File "/a/b.py", line 3, in g',
        f"{ENGINE}    f()",
        f"{ENGINE}KeyError: 'w2'",
    ]
    cause = first_cause(_evidence(*lines))
    assert cause is not None
    assert (cause.text, cause.wrapper) == ("KeyError: 'w2'", False)


def test_frames_open_no_traceback_for_long() -> None:
    frame = f'{WORKER}  File "/a/b.py", line 3, in g'
    others = [f"{ENGINE}step {n}" for n in range(60)]
    assert _evidence(STARTED, frame, *others, f"{WORKER}KeyError: 'w2'").failures == ()


def test_an_exception_alone_is_taken_for_want_of_better() -> None:
    alone = f"{ENGINE}ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (161)."
    cause = first_cause(_evidence(alone))
    assert cause is not None
    assert cause.text.startswith("ValueError: max_num_seqs")
    better = first_cause(_evidence(alone, *_traceback(WORKER, "KeyError: 'w2'")))
    assert better is not None
    assert better.text == "KeyError: 'w2'"
    for healthy in ([alone, STARTED], [STARTED, alone]):
        assert _evidence(*healthy).failures == ()


def test_a_request_that_fails_inside_the_web_framework_is_no_failure_of_the_server() -> None:
    evidence = _evidence(
        STARTED,
        "ERROR:    Exception in ASGI application",
        *_traceback("", "KeyError: 'x'"),
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        *_traceback("", "RuntimeError: no reply"),
    )
    assert (evidence.failures, evidence.request_errors) == ((), 2)
    dead = _evidence(STARTED, *_traceback(ENGINE, ASSERT))
    assert len(dead.failures) == 1


def test_the_environments_report_in_an_issue_is_no_start() -> None:
    lines = ["Collecting environment information...", "Traceback (most recent call last):",
             FILE.format("collect_env.py", "main"), "ModuleNotFoundError: No module named 'x'"]  # fmt: skip
    assert _evidence(*lines).value("first_error") is None


def test_a_notebooks_traceback() -> None:
    evidence = _evidence(
        "-" * 75,
        "ValueError                                Traceback (most recent call last)",
        "[<ipython-input-1>](https://localhost/#) in <cell line: 0>()",
        "----> 4 llm = LLM()",
        "ValueError: the page",
    )
    assert evidence.value("first_error") == "ValueError: the page"


def test_what_a_library_made_of_the_exception_that_it_caught() -> None:
    said = "ValueError: The checkpoint has model type `a` but Transformers does not recognize this architecture."
    evidence = _evidence(*_traceback("", "KeyError: 'a'"), *_traceback("", said))
    assert evidence.value("first_error") == said
    other = _evidence(*_traceback("", "KeyError: 'a'"), *_traceback("", "ValueError: b"))
    assert other.value("first_error") == "KeyError: 'a'"


def test_an_exception_whose_text_begins_in_the_next_line() -> None:
    evidence = _evidence(*_traceback(ENGINE, "ValueError:"), f"{ENGINE}  the layer is odd")
    assert str(evidence.value("first_error")).endswith("the layer is odd")


def test_an_engine_that_was_used_offline_and_then_stops_fails_nothing() -> None:
    head = "(EngineCore pid=2) INFO 11-30 06:51:37 [core.py:133] "
    lines = [
        f"{head}init engine (profile, create kv cache, warmup model) took 9 s",
        f"{head}Shutdown initiated (timeout=0)",
        "ERROR 05-12 11:36:01 [core_client.py:704] Engine core proc EngineCore died unexpectedly, shutting down client.",
    ]
    assert first_cause(_evidence(*lines)) is None


def test_pydantics_second_line_alone() -> None:
    alone = "(APIServer pid=53)   Value error, User-specified max_model_len (65536) is greater"
    cause = first_cause(_evidence(alone))
    assert cause is not None
    assert cause.text.startswith("Value error, User-specified")
    whole = ["Traceback (most recent call last):",
             "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"]  # fmt: skip
    assert len(_evidence(*whole, "  Value error, User-specified").failures) == 1


def test_a_second_line_belongs_to_its_own_exception_alone() -> None:
    once = f"{ENGINE}pydantic.ValidationError: 1 validation error for X"
    assert _evidence(once, STARTED, f"{ENGINE}  Value error, late").failures == ()
    one, two = "ValueError: 1 validation error for X", "KeyError: 'two'"
    again = [*_traceback(ENGINE, one), *_traceback(ENGINE, two), *_traceback(ENGINE, one)]
    found = _evidence(*again, f"{ENGINE}  of which").failures
    assert [failure.text for failure in found] == [one, two]


def test_where_it_was_raised_is_named_without_its_folder_on_any_system() -> None:
    lines = ["Traceback (most recent call last):",
             '  File "C:\\venv\\lib\\site-packages\\vllm\\core.py", line 7, in run', "AssertionError"]  # fmt: skip
    assert (
        _evidence(*lines).value("first_error")
        == "AssertionError (raised at core.py, line 7, in run)"
    )


def test_a_start_that_failed_is_no_way_of_stopping() -> None:
    """Another run wrote into the same file, and nothing of it but its end is there."""
    evidence = _evidence(
        "(EngineCore pid=2) INFO 11-30 06:51:37 [core.py:1] init engine (profile, create kv cache, warmup model) took 9 s",
        "(EngineCore pid=2) INFO 11-30 06:52:37 [core.py:2] Shutdown initiated (timeout=0)",
        *_traceback("", "RuntimeError: Engine core initialization failed. See root cause above."),
    )
    cause = first_cause(evidence)
    assert cause is not None
    assert cause.phase == "start"


def test_a_launchers_own_words_before_a_report_hide_nothing() -> None:
    report = "RuntimeError: [address=0.0.0.0:36797, pid=6075] Engine core initialization failed. See root cause above."
    cause = first_cause(_evidence(*_traceback("", report), *_traceback(ENGINE, "KeyError: 'w2'")))
    assert cause is not None
    assert cause.text == "KeyError: 'w2'"
