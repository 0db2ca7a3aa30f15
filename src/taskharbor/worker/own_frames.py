"""A short traceback for logs: the frames of the application, without those of libraries."""

from __future__ import annotations

import re
import sysconfig
from functools import cache

HEADER = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'  File "(.+?)", line \d+')


def own_frames(traceback: str) -> str:
    """The last exception of a traceback, with its first frame (the handler's) and those outside of libraries."""
    if "Exception Group Traceback" in traceback:
        return traceback
    _, header, rest = traceback.rpartition(HEADER)
    frames, error = _split(rest)
    kept = [frame for place, frame in enumerate(frames) if place == 0 or not _is_library(frame)]
    left_out = len(frames) - len(kept)
    note = f"  [{left_out} frame{'' if left_out == 1 else 's'} of libraries left out]\n" if left_out else ""
    return header + "".join(kept) + note + error


def _split(text: str) -> tuple[list[str], str]:
    """The frames, each with its lines of code, and the error after them."""
    frames: list[str] = []
    lines = text.splitlines(keepends=True)
    for place, line in enumerate(lines):
        if _FRAME.match(line):
            frames.append(line)
        elif frames and line.startswith("  "):
            frames[-1] += line
        else:
            return frames, "".join(lines[place:])
    return frames, ""


def _is_library(frame: str) -> bool:
    found = _FRAME.match(frame)
    file = "" if found is None else found[1].replace("\\", "/")
    return file.startswith(_standard_library()) or "/site-packages/" in file or "/dist-packages/" in file


@cache
def _standard_library() -> tuple[str, ...]:
    folders = {sysconfig.get_path(name).replace("\\", "/") + "/" for name in ("stdlib", "platstdlib")}
    return ("<frozen", *folders)
