"""Lines that somebody quoted, listed or pasted without line ends state the same facts."""

from __future__ import annotations

import html
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.evidence import Evidence
from hwtune.domain.line_quoting import split_quoted, unquote
from hwtune.io.marker_sets import load_markers

PAGE = "Setting attention block size to 832 tokens to ensure that attention page size is >= mamba page size."
MODE = "Mamba cache mode is set to 'align' for M by default when prefix caching is enabled"
API = "(APIServer pid=7) "
ENGINE = "(EngineCore pid=9) "
ERROR = f"{ENGINE}ERROR 11-30 06:51:48 [core.py:2] "
LINES = [
    f"{API}INFO 11-30 06:51:30 [api_utils.py:330] vLLM server version 0.32.0, serving model org/m",
    f"{API}INFO 11-30 06:51:31 [config.py:688] {MODE}",
    f"{ENGINE}INFO 11-30 06:51:47 [interface.py:890] {PAGE}",
    f"{ENGINE}INFO 11-30 06:51:47 [kv_cache_utils.py:2] GPU KV cache size: 27,440 tokens",
    f"{API}INFO:     Application startup complete.",
    f"{ERROR}Traceback (most recent call last):",
    f'{ERROR}  File "/a/core.py", line 3, in run',
    f'{ERROR}RuntimeError: the model\'s "head" <64> & more',
]
CLOCK = "2026-11-30T06:51:{:02}.123456Z"
Wrap = Callable[[list[str]], list[str]]


def _each(form: str) -> Wrap:
    return lambda lines: [
        form.format(line=line, n=n, time=CLOCK.format(n)) for n, line in enumerate(lines)
    ]


WRAPPINGS: dict[str, Wrap] = {
    "quotation": _each("> {line}"),
    "code": _each("`{line}`"),
    "one code span": lambda lines: ["`" + lines[0], *lines[1:-1], lines[-1] + "`"],
    "fence": lambda lines: ["Here it is:", "```text", *lines, "```"],
    "HTML": lambda lines: ["<pre>", *[html.escape(line) for line in lines], "</pre>"],
    "HTML, old": lambda lines: [html.escape(line).replace("&#x27;", "&#39;") for line in lines],
    "Ansible stdout_lines": lambda lines: [
        '    "stdout_lines": [', *[f"        {json.dumps(line)}," for line in lines], "    ]"],
    "Ansible stdout": lambda lines: [
        "fatal: [gpu1]: FAILED! => {", f'    "stdout": {json.dumps(chr(10).join(lines))},', "}"],
    "Ansible, one line": lambda lines: [
        f"fatal: [gpu1]: FAILED! => {json.dumps({'rc': 1, 'stdout': chr(10).join(lines)})}"],
    "Python's list": lambda lines: [f"{line!r}," for line in lines],
    "CSV": lambda lines: [
        '"2026-11-30T06:51:00Z","{}"'.format(line.replace('"', '""')) for line in lines],
    "logcli": _each('{time} {{app="vllm", pod="a-0"}} {line}'),
    "labels alone": _each('{{app="vllm"}} {line}'),
    "docker service logs": _each("web_vllm.1.x9k2m1@node-1    | {line}"),
    "Kaggle": lambda lines: [
        f'{"," if n else "["}{json.dumps({"stream_name": "stderr", "time": n, "data": line})}'
        for n, line in enumerate(lines)],
    "syslog": _each("<30>Nov 30 06:51:{n:02} host vllm[12]: {line}"),
    "RFC 5424": _each("<30>1 {time} host vllm 12 - - {line}"),
    "journald, monotonic": _each("[ 1234.{n:06}] host vllm[12]: {line}"),
    "Open MPI": _each("[1,0]<stderr>:{line}"),
    "a prefix with braces": _each("[2026-11-30, 06:51:{n:02} UTC] {{task.py:93}} INFO - {line}"),
    "a prefix with quotes": _each("2026-11-30 06:51:{n:02} DEBG 'vllm' stdout output: {line}"),
    "levels in the prefix": lambda lines: [
        f"2026-11-30 06:51:{n:02} [{'Error' if 'rror' in line else 'Info'}] (Process) {line}"
        for n, line in enumerate(lines)],
    "no line ends": lambda lines: [" ".join(lines)],
}  # fmt: skip


def _evidence(lines: list[str]) -> Evidence:
    collector = EvidenceCollector(load_markers())
    block = "\n".join(lines).encode()
    collector.feed_files([("x.log", iter([(1, block)]))])
    return collector.evidence()


def _facts(lines: list[str]) -> dict[str, object]:
    return {name: fact.value for name, fact in _evidence(lines).facts.items()}


@pytest.mark.parametrize("wrap", WRAPPINGS.values(), ids=WRAPPINGS.keys())
def test_a_wrapped_log_states_what_the_log_states(wrap: Wrap) -> None:
    plain = _facts(LINES)
    assert plain["attention_block_size"] == 832
    assert str(plain["first_error"]).startswith("RuntimeError: the model's")
    assert _facts(wrap(LINES)) == plain


def test_two_lines_that_ran_into_each_other_are_two() -> None:
    glued = f"{ENGINE}INFO 11-30 06:51:46 [loader.py:2] took 3.0 s{LINES[2]}"
    assert _facts([LINES[0], glued])["attention_block_size"] == 832


def test_a_paste_whose_underscores_were_taken_for_bold_type() -> None:
    lines = [
        "$ kubectl logs a INFO 11-30 06:51:25 [**init**.py:239] Automatically detected platform cuda.",
        "INFO 11-30 06:51:27 [api_server.py:1044] args: Namespace(prompt_adapters=None, x=1)",
        "INFO 11-30 06:51:30 [interface.py:890] " + PAGE,
    ]
    assert _facts([" ".join(lines)])["attention_block_size"] == 832
    assert _facts([" ".join(lines)])["platform"] == "cuda"


@pytest.mark.parametrize(
    "text",
    [
        f"{API}INFO 11-30 06:52:47 [logger.py:40] Received request a: prompt: 'why {LINES[2]} {LINES[2]}'",
        f"{API}INFO 11-30 06:52:47 [logger.py:70] Generated response a: {LINES[2]} {LINES[3]} {LINES[2]}",
        f"{API}INFO 11-30 06:52:47 [x.py:7] output: '{LINES[2]} {LINES[3]} {LINES[2]}', output_token_ids: 1",
        f"{API}INFO 11-30 06:52:47 [x.py:40] Completion(text='{LINES[2]} {LINES[3]} {LINES[2]}')",
        f"{API}INFO 11-30 06:52:47 [x.py:40] he wrote {LINES[2]}",
        f'{{"messages": [{{"role": "user", "content": "{LINES[2]} {LINES[3]} {LINES[2]}"}}]}}',
    ],
)
def test_a_users_text_is_not_split(text: str) -> None:
    assert list(split_quoted(text)) == [text]


def test_quotation_marks_make_no_marker_evidence() -> None:
    head = f"{ENGINE}INFO 11-30 06:51:47 [backend.py:40] "
    registered = f"{head}hwtune[a1] registered backend=X class=Y alignment=64 kernels=k"
    hit = f"{head}hwtune[a1] first hit kernel=k query=1 context=1 block_size=832"
    for quoted in (f'"{hit}",', f"`{hit}`", f"'{hit}'", f"{LINES[0]} {LINES[1]} {hit}"):
        evidence = _evidence([registered, quoted])
        assert [mark.kind for mark in evidence.marks] == ["registered"]
        assert evidence.foreign_marks == 1


def test_a_prefix_with_quotes_must_stand_before_the_first_lines() -> None:
    late = [f"user said 'x' {LINES[2]}"] * 5
    assert "attention_block_size" not in _facts([LINES[0]] * 70 + late)


@pytest.mark.parametrize(
    "text", ["`torch_dtype` is deprecated! Use `dtype` instead!", "a & b", "'a', 'b'", '"a": "b",']
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert unquote(text) == text


@given(st.text(alphabet="`'\"&>{[,\\n ab(INFO)=]#", max_size=60))
def test_any_text_can_be_unquoted_and_split(text: str) -> None:
    unquote(text)
    assert list(split_quoted(text))


@pytest.mark.parametrize(
    "piece",
    [
        "`",
        '"',
        "&gt;",
        '","',
        "(A pid=1) ",
        "INFO: ",
        "\\n",
        "[,",
        "(APIServer pid=1) INFO 11-30 06:51:47 [a.py:1] ",
    ],
)
def test_no_line_takes_more_than_linear_time(piece: str) -> None:
    """Would not end within a test run if it did."""
    text = piece * (200_000 // len(piece))
    for line in (text, f'"{text}"', f'"stdout": "{text}\\n",'):
        unquote(line)
        list(split_quoted(line))
