"""Stacks for the log: of a run that does not end (F5), and of a failure, without the frames of libraries."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cache
from itertools import dropwhile
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, cast

from taskharbor.core.text import bounded_end
from taskharbor.worker.running import JobRun

HEADER = "Traceback (most recent call last):\n"
EXECUTOR, AROUND = (str(Path(__file__).with_name(name)) for name in ("executor.py", "around.py"))
INNERMOST = 20  # frames
LONGEST = 4096  # bytes
_FRAME = re.compile(r'  File "(.+?)", line \d+')
frames_by_thread: Callable[[], dict[int, FrameType]] = cast("Any", sys)._current_frames


def stack_of(run: JobRun) -> str:
    """The frames of the handler, the innermost last; empty if there are none. May be called from any thread."""
    with suppress(Exception):  # the run goes on meanwhile, and may end
        thread = run.thread
        frames = _of_task(run) if thread is None else _outermost_first(frames_by_thread()[thread])
        inner = dropwhile(lambda frame: frame.f_code.co_filename != EXECUTOR, frames)
        own = [frame for frame in inner if frame.f_code.co_filename not in (EXECUTOR, AROUND)][-INNERMOST:]
        lines = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in own).format()
        if lines and run.thread == thread and not run.ended:
            return bounded_end("Stack (most recent call last):\n" + "".join(lines), LONGEST)
    return ""


def _of_task(run: JobRun) -> list[FrameType]:
    """The frames of the coroutines that wait for each other; those of the thread if it runs one of them now."""
    task = run.task  # unknown during the first step of an eager task
    frames = [] if task is None else list(_awaited(task.get_coro()))
    for frame in frames_by_thread().values():
        found = _outermost_first(frame)
        if any(each in frames[:1] if task else _executes(each, run) for each in found):
            return found
    return frames


def _executes(frame: FrameType, run: JobRun) -> bool:
    return frame.f_code.co_filename == EXECUTOR and frame.f_locals.get("run") is run


def _outermost_first(frame: FrameType) -> list[FrameType]:
    return [found for found, _ in traceback.walk_stack(frame)][::-1]


def _awaited(waiting: Any) -> Iterator[FrameType]:
    while waiting is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(waiting, f"{kind}_frame")), None)
        if kind is None or (frame := getattr(waiting, f"{kind}_frame")) is None:
            return
        yield frame
        waiting = getattr(waiting, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")


def own_frames(traceback: str) -> str:
    """The last exception of a traceback, with its first frame (the handler's) and those outside of libraries."""
    if "Exception Group Traceback" in traceback:
        return traceback
    _, header, rest = traceback.rpartition(HEADER)
    frames, error = _split(rest)
    kept = [frame for index, frame in enumerate(frames) if index == 0 or not _is_library(frame)]
    left_out = len(frames) - len(kept)
    note = f"  [{left_out} frame{'' if left_out == 1 else 's'} of libraries left out]\n" if left_out else ""
    return header + "".join(kept) + note + error


def beyond(error: BaseException, files: Collection[str]) -> TracebackType | None:
    """The traceback of an error from the first frame on that is in none of these files; None if all are."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in files:
        frames = frames.tb_next
    return frames


def _split(text: str) -> tuple[list[str], str]:
    """The frames, each with its lines of code, and the error after them."""
    frames: list[str] = []
    lines = text.splitlines(keepends=True)
    for index, line in enumerate(lines):
        if _FRAME.match(line):
            frames.append(line)
        elif frames and line.startswith("  "):
            frames[-1] += line
        else:
            return frames, "".join(lines[index:])
    return frames, ""


def _is_library(frame: str) -> bool:
    found = _FRAME.match(frame)
    file = "" if found is None else found[1].replace("\\", "/")
    return file.startswith(_standard_library()) or "/site-packages/" in file or "/dist-packages/" in file


@cache
def _standard_library() -> tuple[str, ...]:
    import sysconfig  # slow to import and rarely needed

    folders = {sysconfig.get_path(name).replace("\\", "/") + "/" for name in ("stdlib", "platstdlib")}
    return ("<frozen", *folders)
