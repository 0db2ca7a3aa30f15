"""The memory of this process, as the system counts it."""

from __future__ import annotations

import mmap
import sys


def resident() -> int:
    """The resident memory in bytes; its peak where the system shows nothing else, 0 if unknown."""
    if (size := _statm(1)) is not None:
        return size
    try:
        import resource
    except ImportError:  # not on POSIX
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def data() -> int:
    """The private memory in bytes, as RLIMIT_DATA counts it; 0 if unknown."""
    return _statm(5) or 0


def _statm(column: int) -> int | None:
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123  (once per job)
            return int(file.read(128).split()[column]) * mmap.PAGESIZE
    except (OSError, IndexError, ValueError):
        return None
