"""Log lines that somebody quoted: Markdown, HTML, lists of strings, line ends that were lost.

A log travels through issue forms, web pages and automation tools, each of which wraps its lines in
its own way. What stands inside is read like the line itself. Every pattern here is linear.
"""

from __future__ import annotations

import ast
import html
import itertools
import re
from collections.abc import Iterator

from hwtune.domain.json_text import parse_json

_ENTITIES = ("&gt;", "&lt;", "&#39;", "&#x27;", "&quot;", "&#34;", "&amp;")
_FENCE = re.compile(r"\s{0,8}(?:`{3,}|~{3,})[\w+-]{0,20}\s*$")
_TICKS = re.compile(
    r"\s{0,8}`{1,3}(?=\([A-Za-z_][\w :.-]{0,60} pid=|\[[\w-]{1,40}\]|Traceback \(|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[ :]"
    r"|[A-Za-z_][\w.]{0,200}(?:Error|Exception): )"
)
"""Code marks before a header, a process, or an exception; those of other text stay."""
_ITEM = re.compile(r"""\s{0,80}(?:- |\[ ?|u(?=['"]))?(?=(?P<quote>["']))""")
_FIELD = re.compile(
    r'\s{0,80}"(?:stdout|stderr|msg|message|log|line|text|data|output|module_stdout|module_stderr)": ?(?=")'
)
_CELL = re.compile(r'(?:"?[^",]{1,80}"?,){1,6}"(?P<text>[^"].{0,200000})"$')
"""A row of a table as CSV, whose last cell is the line."""
_ITEM_END = re.compile(r"[\],\s]{0,8}$")
_RESULT = re.compile(r"(?:fatal|ok|changed|failed): \[[^\]]{1,200}\](?::? [A-Z]+!?)? => (?=\{)")
"""Ansible's line per host; the object holds what the command printed."""
_OUTPUTS = ("stdout", "stderr", "module_stdout", "module_stderr", "msg")
_HEADER = re.compile(
    r"(?:^|(?<=\s)|(?=\())(?:\([A-Za-z_][\w .:-]{0,40} pid=\d{1,10}[^()]{0,40}\) ?){0,2}"
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})? \[?[\w./*-]{1,120}:\d{1,6}\] "
)
"""A header of vLLM's inside a line, with the process names before it."""
_INSIDE = re.compile(
    _HEADER.pattern
    + r"|(?:(?<=\s)|(?<=\w)(?=\())\((?:APIServer|EngineCore|Worker|VllmWorker|Ray)[\w .:-]{0,40} pid=\d{1,10}[^()]{0,40}\) "
    r"|(?<=\s)INFO: {1,8}(?=Application s|Waiting for application|Started server|Uvicorn running|Shutting down)"
)
"""Where a line begins once it is known that line ends were lost: also behind a process's name."""
_FEW_HEADERS = 3
"""So many headers in one line are no quotation but lines whose ends were lost."""
_USERS_TEXT = re.compile(
    r"(?i)\b(?:prompt|outputs?|text)['\"]?\s{0,3}[:=]|received request|generated response"
    r"|chat template|['\"]content"
)
"""What says that the headers behind it may be part of what a user sent, or was answered."""
_MAX_CHARS = 262_144


def unquote(text: str) -> str:
    """The line without the quotation marks that stand around it; most lines stay as they are.

    A marker of hwtune in quotation marks stays a quotation, whoever wrote it.
    """
    if "&" in text and any(entity in text for entity in _ENTITIES):
        text = html.unescape(text)
    if "hwtune[" in text:
        return text
    if "`" in text:
        text = _without_ticks(text)
    if text.endswith(('"', '",', "'", "',", '"]', "']")) and len(text) <= _MAX_CHARS:
        found = _ITEM.match(text)
        inner = None if found is None else _string(text[found.end() :])
        if inner is not None and "\n" not in inner.rstrip():
            return inner.rstrip("\r\n")
        cell = _CELL.match(text)
        if cell is not None:
            return cell["text"].replace('""', '"')
    return text


def _without_ticks(text: str) -> str:
    if _FENCE.match(text):
        return ""
    if text[0] == text[-1] == "`" and text.count("`") == 2:
        return text[1:-1]
    opened = _TICKS.match(text)
    if opened is not None:
        text = text[opened.end() :]
    if text.endswith("`") and text.count("`") % 2:
        text = text.rstrip("`")
    return text


def split_quoted(text: str) -> Iterator[str]:
    """One physical line that holds several -> each of them; else the line itself."""
    if len(text) > _MAX_CHARS:
        yield text
        return
    held = _held_in_field(text) or _held_in_result(text)
    if held is not None and "\n" in held.rstrip():
        yield from (line for line in held.split("\n") if line.strip())
        return
    yield from _at_headers(text)


def _held_in_field(text: str) -> str | None:
    """``"stdout": "one\\ntwo",`` or a list's ``"one\\ntwo",`` -> the string."""
    if "\\n" not in text:
        return None
    found = _FIELD.match(text) or _ITEM.match(text)
    return None if found is None else _string(text[found.end() :])


def _held_in_result(text: str) -> str | None:
    found = _RESULT.match(text)
    if found is None:
        return None
    try:
        data = parse_json(text[found.end() :])
    except ValueError:
        return None
    return "\n".join(str(data[key]) for key in _OUTPUTS if isinstance(data.get(key), str)) or None


def _string(text: str) -> str | None:
    """The string literal (JSON's or Python's) that the text consists of, up to commas and brackets."""
    text = _ITEM_END.sub("", text)
    if len(text) < 2 or text[0] != text[-1]:
        return None
    try:
        value = parse_json(text) if text[0] == '"' else ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, str) else None


def _at_headers(text: str) -> Iterator[str]:
    """Splits where headers begin, if what lies before is no user's text.

    Two suffice when the second follows without a blank, as when two processes write at once. A line
    that speaks of hwtune's markers is never split: a marker counts only where a line begins.
    """
    starts = [match.start() for match in _HEADER.finditer(text)] if "] " in text else []
    if not _are_lines(text, starts):
        yield text
        return
    begins = [match.start() for match in _INSIDE.finditer(text)]
    edges = [*([0] if begins[0] else []), *begins, len(text)]
    yield from (text[a:b].rstrip() for a, b in itertools.pairwise(edges))


def _are_lines(text: str, starts: list[int]) -> bool:
    if len(starts) < 2 or "hwtune[" in text or _USERS_TEXT.search(text, 0, starts[1]):
        return False
    glued = text[starts[1]] == "(" and text[starts[1] - 1] not in " \t'\"`=:,"
    return glued or len(starts) >= _FEW_HEADERS
