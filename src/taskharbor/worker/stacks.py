"""The stack of a run that does not end, for the log (F5)."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path
from types import FrameType
from typing import Any, cast

from taskharbor.core.text import bounded_end
from taskharbor.worker.running import JobRun

EXECUTOR = str(Path(__file__).with_name("executor.py"))
INNERMOST = 20  # frames
LONGEST = 4096  # bytes
frames_by_thread: Callable[[], dict[int, FrameType]] = cast("Any", sys)._current_frames


def stack_of(run: JobRun) -> str:
    """The frames of the handler, the innermost last; empty if there are none. May be called from any thread."""
    with suppress(Exception):  # the run goes on meanwhile, and may end
        thread = run.thread
        frames = _of_task(run) if thread is None else _outermost_first(frames_by_thread()[thread])
        inner = dropwhile(lambda frame: frame.f_code.co_filename != EXECUTOR, frames)
        own = [frame for frame in inner if frame.f_code.co_filename != EXECUTOR][-INNERMOST:]
        lines = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in own).format()
        if lines and run.thread == thread and not run.ended:
            return bounded_end("Stack (most recent call last):\n" + "".join(lines), LONGEST)
    return ""


def _of_task(run: JobRun) -> list[FrameType]:
    """The frames of the coroutines that wait for each other; those of the thread if it runs one of them now."""
    frames = list(_awaited(None if run.task is None else run.task.get_coro()))
    for frame in frames_by_thread().values():
        if frames and frames[0] in (found := _outermost_first(frame)):
            return found
    return frames


def _outermost_first(frame: FrameType) -> list[FrameType]:
    return [found for found, _ in traceback.walk_stack(frame)][::-1]


def _awaited(waiting: Any) -> Iterator[FrameType]:
    while waiting is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(waiting, f"{kind}_frame")), None)
        if kind is None or (frame := getattr(waiting, f"{kind}_frame")) is None:
            return
        yield frame
        waiting = getattr(waiting, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
