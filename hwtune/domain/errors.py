"""One error tree. Each class has its own exit status; 1 is kept for "the answer is no"."""

from __future__ import annotations

from typing import ClassVar


class HwtuneError(Exception):
    """Something a user can act on. Its text is one line: what, where, what to do."""

    exit_status: ClassVar[int] = 6


class UsageError(HwtuneError):
    """The command line itself does not make sense."""

    exit_status = 2


class InputError(HwtuneError):
    """A file or value the user gave cannot be read or lacks something; names the file and key."""

    exit_status = 3


class InfeasibleError(HwtuneError):
    """The inputs are fine, and vLLM would refuse the combination or no page satisfies it."""

    exit_status = 4


class MissingDependencyError(HwtuneError):
    """A package or program the command needs is not installed here."""

    exit_status = 5


class ExternalFailureError(HwtuneError):
    """Something outside hwtune failed: vLLM died, a server did not answer, a disk is full."""

    exit_status = 6


ANSWER_IS_NO = 1
"""Exit status of a command that ran and found that the answer is no."""
