"""Processes that handlers fork, such as those of multiprocessing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from taskharbor import Harbor
from taskharbor.worker.processes.channel import Channel
from taskharbor.worker.processes.host import ChildHost

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
PROGRAM = """
import os, signal, threading
from taskharbor import Harbor

harbor = Harbor("memory://")
ends = {"terminated": signal.SIGTERM, "interrupted": signal.SIGINT}


@harbor.task(max_attempts=1)
def fork(how):
    copy = os.fork()
    if copy == 0:
        signal.alarm(30)
        while True:
            signal.pause()
    os.kill(copy, ends[how])
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])


def talk():
    print([fork.enqueue(how).result(timeout=60) for how in [*ends] * 5])
    os.kill(os.getpid(), signal.SIGTERM)


threading.Thread(target=talk).start()
harbor.run_worker()
print("stopped")
"""


def test_a_forked_process_is_ended_by_signals_and_its_worker_is_not(tmp_path: Path) -> None:
    """X6, F11: it has the default handlers from its first step on, and shares no wake-up with the worker's loop."""
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    quiet = "-Wignore::DeprecationWarning"  # Python 3.12 and later warn of every fork beside threads
    command = [sys.executable, quiet, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "[-15, -2, -15, -2, -15, -2, -15, -2, -15, -2]\nstopped\n", done.stderr


def test_a_copy_cannot_end_the_job_of_its_process() -> None:
    """D9, X5: the transaction would wait for an answer that is not its own; the message names the fix."""
    here, there = socket.socketpair()
    with here, there:
        channel = Channel(here, lambda message: None)
        channel._disown()
        host = ChildHost(Harbor("memory://").client, channel)
        with pytest.raises(RuntimeError, match=r"cannot settle its job: call transaction\(\) in the handler"):
            host.acknowledge(cast("Any", None))
