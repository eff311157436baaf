"""The words by which failures are told apart: reports, stops, requests, and what says it plainly."""

from __future__ import annotations

import re

WRAPPERS = (
    "Engine core initialization failed",
    "Engine process failed to start",
    "WorkerProc initialization failed due to an exception in a background process",
    "EngineCore encountered an issue",
    "EngineCore failed to start",
    "Engine loop has died",
    "Background loop has errored already",
    "EngineCore encountered a fatal error",
    "Worker failed with error",
    "Executor failed",
    "cancelled",
    "unhandled errors in a TaskGroup",
    "The actor died unexpectedly before finishing this task",
    "The Inner error is reported as above",
)
RELAYED = re.compile(r"\[address=[^\]]{1,200}\] |Dummy run failed: ")
"""What a launcher puts before the text of an exception that it passes on."""
MAIN_GAVE_UP = re.compile(
    r"(?:\w+: )?(?:Engine core initialization failed|Engine process failed to start)"
)
NOTEBOOK = re.compile(r"[A-Za-z_]\w{0,80} {2,200}Traceback \(most recent call last\)$")
"""IPython names the exception in the first line of its traceback, and again in the last."""
RAW = re.compile(
    r"(?:\w+\.)*(?:KeyError|HTTPError|HTTPStatusError|Connect\w*Error|MaxRetryError|NewConnectionError"
    r"|gaierror|\w*TimeoutError|LocalEntryNotFoundError|GatedRepoError|RepositoryNotFoundError): "
)
"""Exceptions that a library catches to say in words what is wrong."""
IN_WORDS = re.compile(
    r"does not recognize this architecture|gated repo|couldn't connect to|not a local folder|is restricted"
    r"|not a valid model identifier|does not appear to have a file named|Invalid repository ID|Can't load"
)
STOPPED = frozenset(
    {"KeyboardInterrupt", "SystemExit", "GeneratorExit", "asyncio.exceptions.CancelledError"}
)
REQUEST_FILES = re.compile(
    r"(?:.*[./])?(?:serving\w*|protocol|logger|preprocessor|exception_handlers|chat_utils)"
    r"(?:\.py)?(?::\d+)?$"
)
"""Code that serves requests, as a file (``serving_chat.py:136``) or a logger's name."""
