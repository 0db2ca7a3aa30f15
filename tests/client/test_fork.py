"""Forks: a child of a memory store is refused, a child of a closed harbor works, and ids never meet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def in_a_process(program: str, tmp_path: Path) -> str:
    """Run a program of its own, so that no test thread is forked."""
    file = tmp_path / "program.py"
    file.write_text(program)
    quiet = "-Wignore::DeprecationWarning"  # Python 3.12 and later warn of every fork beside threads
    done = subprocess.run([sys.executable, quiet, str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_memory_store_refuses_a_forked_child(tmp_path: Path) -> None:
    """P1: a job stored in the child's copy would be lost, so the child gets an error."""
    program = """
import os, sys
from taskharbor import Harbor
from taskharbor.errors import DriverForked
harbor = Harbor("memory://")
@harbor.task
def work(): ...
work.enqueue()
pid = os.fork()
if pid == 0:
    try:
        work.enqueue()
    except DriverForked as error:
        print("refused:", error, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(len(harbor.admin.jobs.list()), flush=True)
"""
    refused, count = in_a_process(program, tmp_path).splitlines()
    assert refused.startswith("refused: a memory store belongs to the process")
    assert count == "1"


def test_a_harbor_that_was_not_open_works_in_both_processes(tmp_path: Path) -> None:
    """P1: and the two mint different ids, though the fork copied the dice."""
    program = """
import os, sys
from taskharbor import Harbor
harbor = Harbor("memory://")
@harbor.task
def work(): ...
harbor._session.rng.random()
pid = os.fork()
numbers = [*(work.enqueue().id for _ in range(3)), str(harbor._session.rng.getrandbits(64))]
os.write(1, (" ".join(numbers) + "\\n").encode())  # in one piece: the two share a pipe
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
"""
    words = in_a_process(program, tmp_path).split()
    assert len(words) == 8
    assert len(set(words)) == 8


def test_blocking_calls_work_in_a_child_though_their_thread_stayed_behind(tmp_path: Path) -> None:
    """P1: the portal starts again."""
    program = """
import os
from taskharbor import Harbor
first = Harbor("memory://")
@first.task
def work(): ...
work.enqueue()
first.close()
pid = os.fork()
if pid == 0:
    print(work.enqueue().state(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(work.enqueue().state(), flush=True)
"""
    assert in_a_process(program, tmp_path).split() == ["ready", "ready"]
