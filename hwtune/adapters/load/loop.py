"""The event loop that requests are sent from, and the peace it needs to read the clock in time."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def run_async(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine on uvloop when it is installed, else on asyncio's own loop."""
    loop = new_loop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_cancel_all())
        loop.close()


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's loop when it is installed."""
    try:
        loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    except ImportError:
        return asyncio.new_event_loop()
    return loop


async def _cancel_all() -> None:
    """Ends what an interrupt left behind, and lets closed sockets go."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)


@contextmanager
def quiet_collector() -> Iterator[None]:
    """No garbage collection while streams run: a pause would look like the server's."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def first_in_line() -> Iterator[None]:
    """Real-time scheduling for this thread, where the system allows it.

    The client needs next to no processor time, but it needs it at once: where servers fill every
    core, an ordinary process reads its socket up to 0.2 s late. Child processes do not inherit it.
    """
    try:
        before, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
        realtime = os.SCHED_RR | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, realtime, os.sched_param(1))
    except (AttributeError, OSError):
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, parameter)
