"""Limits for waits on other processes: what hangs is killed, and the failure says what was waited for.

A test that waits without one does not fail, it hangs, and the run with it. So does one that closes a pipe while a
thread reads it: that waits for the end of the read, until the last process that holds the other end is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

LIMIT = 120.0
LONGEST = 180.0  # less than pytest gives a test, and more than a wait inside a block
GRACE = 5.0  # for the children of a process that was killed, which end by themselves


@contextmanager
def limited(process: subprocess.Popen[Any], what: str, limit: float = LONGEST) -> Generator[None]:
    """Kill the process if the block takes longer than `limit`, which ends its reads and waits, and fail.

    After the block the process is gone in any case; its streams are closed.
    """
    late = threading.Event()

    def expire() -> None:
        late.set()
        process.kill()
        _kill_holders(process.stdout, process.stderr)

    timer = threading.Timer(limit, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
        cause = None
    except BaseException as error:
        if not late.is_set():
            raise
        cause = error
    finally:
        timer.cancel()
        rest = _rest(process) if late.is_set() else ""
        end(process)
    if late.is_set():
        failure = f"not within {limit:g} s: {what} ({process.args!r} was killed)"
        raise AssertionError(f"{failure}; the rest of its output:\n{rest}") from cause


def _rest(process: subprocess.Popen[Any]) -> str:
    """The output of a killed process that was not read."""
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None and not stream.closed]
    return "".join(map(str, (stream.read() for stream in streams)))


def end(process: subprocess.Popen[Any], listener: threading.Thread | None = None, limit: float = LIMIT) -> None:
    """Kill a process if it still runs, and close its streams, of which a thread may read one.

    Processes that it has started and that hold the stream are killed as well. That they are there is a failure if it
    ended by itself, and not by a signal.
    """
    code = process.poll()
    process.kill()
    process.wait(limit)
    holders: dict[int, str] = {}
    if listener is not None:
        listener.join(GRACE)
        if listener.is_alive():
            holders = _kill_holders(process.stdout, process.stderr)
            listener.join(limit)
            assert not listener.is_alive(), f"the output of {process.args!r} does not end; held by {holders}"
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    assert not holders or code is None or code < 0, f"{process.args!r} ended and left processes behind: {holders}"


def _kill_holders(*streams: IO[Any] | None) -> dict[int, str]:
    """Kill the other processes that have these pipes open; return their commands. Only Linux shows which they are."""
    own = Path("/proc/self/fd")
    if not own.exists():
        return {}
    ours = [stream.fileno() for stream in streams if stream is not None and not stream.closed]
    pipes = {link for fd in ours if str(link := (own / str(fd)).readlink()).startswith("pipe:")}
    found: dict[int, str] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            with suppress(OSError):
                if any(file.readlink() in pipes for file in (place / "fd").iterdir()):
                    command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    os.kill(int(place.name), signal.SIGKILL)
                    found[int(place.name)] = command
    return found
