"""Workers with process=True tasks as real processes: killed, stopped, paused, and started by a careless script."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

import limits

from . import slots
from .crew import QUIET, search_path
from .test_processes import gone, noted

PATIENCE = 60.0
UNGUARDED = """
from taskharbor import Harbor

harbor = Harbor("sqlite:///{file}?synchronous=normal")

@harbor.task(process=True)
def work(number: int) -> int:
    return number

work.enqueue(1)
harbor.run_worker()
"""


class Workers:
    """Starts workers of the application on one store; kills what is left of them."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/jobs.db?synchronous=normal"
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """A worker of its own process, with one slot and a short lease."""
        environment = {name: value for name, value in os.environ.items() if name not in QUIET}
        command = [sys.executable, "-m", "taskharbor", "worker", "system.slots:harbor", "-c", "1", "--lease", "3s"]
        worker = subprocess.Popen(
            [*command, *options],
            env={**environment, "PYTHONPATH": search_path(), slots.VARIABLE: self.url},
            stderr=subprocess.DEVNULL,
        )
        self._started.append(worker)
        return worker

    def close(self) -> None:
        for worker in self._started:
            limits.end(worker)


@pytest.fixture
def workers(tmp_path: Path) -> Generator[Workers]:
    """No worker runs yet; the test's own harbor uses the same store."""
    workers = Workers(tmp_path)
    try:
        with slots.harbor.stand_in(workers.url):
            yield workers
    finally:
        workers.close()


@pytest.mark.parametrize("task", ["hang", "compute"])
def test_a_child_does_not_outlive_its_worker(workers: Workers, task: str, tmp_path: Path) -> None:
    """X1: after a kill -9 of the worker its children are gone as well, also one that is busy in C with the GIL."""
    worker = workers.start()
    job = getattr(slots.bare, task).enqueue(str(tmp_path / "pid"))
    pid = noted(tmp_path / "pid")[0]
    limits.end(worker)
    gone(pid)
    assert job.record().state == "inflight"
    for program in noted(tmp_path / "pid")[1:]:  # only the child is tied to the worker
        os.kill(program, signal.SIGKILL)


def test_a_lost_lease_kills_the_run(workers: Workers, tmp_path: Path) -> None:
    """L4, G3: the child of a worker that is paused past its lease ends by itself; the job is the other worker's."""
    first = workers.start()
    job = slots.bare.hold.enqueue(str(tmp_path / "pid"), str(tmp_path / "gate"))
    (child,) = noted(tmp_path / "pid")
    os.kill(first.pid, signal.SIGSTOP)
    (tmp_path / "pid").unlink()
    workers.start()
    (other,) = noted(tmp_path / "pid")
    assert other != child
    gone(child)
    os.kill(first.pid, signal.SIGCONT)
    (tmp_path / "gate").touch()
    assert job.result(timeout=PATIENCE) == "through"
    assert (job.record().version, job.record().attempts) == (2, 0)


def test_a_graceful_stop_waits_then_kills_and_gives_back(workers: Workers, tmp_path: Path) -> None:
    """X6: what does not end within the grace goes back, without an attempt or a crash; no process is left."""
    worker = workers.start("--grace", "0.2s")
    job = slots.bare.hang.enqueue(str(tmp_path / "pid"))
    pids = noted(tmp_path / "pid")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    gone(*pids)
    record = job.record()
    assert (record.state, record.attempts, record.crashes) == ("ready", 0, 0)


def test_a_stop_lets_a_job_finish(workers: Workers, tmp_path: Path) -> None:
    """X6: within the grace, although the signal reaches the child too."""
    worker = workers.start("--grace", "60s")
    job = slots.bare.hold.enqueue(str(tmp_path / "pid"), str(tmp_path / "gate"))
    (child,) = noted(tmp_path / "pid")
    for pid in (worker.pid, child):
        os.kill(pid, signal.SIGTERM)
    (tmp_path / "gate").touch()
    assert worker.wait(PATIENCE) == 0
    assert job.result(timeout=PATIENCE) == "through"
    assert job.record().version == 1
    gone(child)


def test_a_module_without_a_guard_starts_no_worker_in_its_children(tmp_path: Path) -> None:
    """X5: its worker refuses to start and names the guard; nothing is enqueued a second time."""
    (tmp_path / "unguarded.py").write_text(UNGUARDED.format(file=tmp_path / "jobs.db"))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "unguarded.py")], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith('belongs under `if __name__ == "__main__":`')
    with slots.harbor.stand_in(f"sqlite:///{tmp_path}/jobs.db"):
        (job,) = slots.harbor.admin.jobs.list()
    assert (job.type, job.state) == ("unguarded.work", "ready")


@pytest.mark.parametrize("way", ["-c", "-"])
def test_a_task_without_a_module_is_refused(way: str) -> None:
    """X5: a new process could not import it; the message names the fix. Nothing is started."""
    script = UNGUARDED.format(file="never.db")
    done = subprocess.run(
        [sys.executable, way, *([script] if way == "-c" else [])],
        input=script,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("work is not in a module: put it into a file, such as tasks.py")
    assert not Path("never.db").exists()


def test_a_limit_that_the_system_cannot_give_is_refused(tmp_path: Path) -> None:
    """X5: when the worker starts, before a job is claimed; the message names the fix."""
    script = UNGUARDED.format(file=tmp_path / "jobs.db").replace("process=True", "process=True, memory='1 GiB'")
    script = script.replace("harbor.run_worker()", "").replace("work.enqueue(1)", 'if __name__ == "__main__":')
    script += (
        "    job = work.enqueue(1)\n    try:\n        harbor.run_worker()\n    finally:\n        print(job.state())\n"
    )
    unlimited = "from taskharbor.worker.processes import limits\nlimits.PROBE = 4096  # as if the kernel ignored it\n"
    (tmp_path / "unlimited.py").write_text(unlimited + script)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "unlimited.py")], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stdout == "ready\n"
    assert "memory= cannot be enforced: this kernel does not enforce RLIMIT_DATA. Leave it out" in done.stderr


def test_a_script_with_a_guard_runs_its_own_tasks(tmp_path: Path) -> None:
    """P4: the task of a script is found under the script's name in its children."""
    script = UNGUARDED.format(file=tmp_path / "jobs.db").replace(
        "work.enqueue(1)\nharbor.run_worker()",
        'if __name__ == "__main__":\n    with harbor.worker(concurrency=1):\n'
        "        print(work.enqueue(1).result(timeout=60))",
    )
    (tmp_path / "guarded.py").write_text(script)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "guarded.py")], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_child_begins_with_the_module_that_the_worker_was_given(tmp_path: Path) -> None:
    """P4: what that module sets up, such as Django, is there before the modules of tasks are imported."""
    files = {
        "frame.py": "ready = False",
        "harbors.py": "from taskharbor import Harbor\nharbor = Harbor()",
        "chores.py": "import frame\nfrom harbors import harbor\nassert frame.ready\n\n"
        "@harbor.task(process=True)\ndef work(number: int) -> int:\n    return number",
        "entry.py": "import frame\nframe.ready = True\nimport chores\nfrom harbors import harbor",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    store = f"sqlite:///{tmp_path}/jobs.db"
    command = [sys.executable, "-m", "taskharbor", "worker", "entry:harbor", "-c", "1", "--url", store]
    with slots.harbor.stand_in(store):
        job = slots.harbor.enqueue("chores.work", {"number": 5})
        worker = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
        with limits.limited(worker, "a worker that runs one job and stops"):
            assert job.result(timeout=PATIENCE) == 5
            worker.terminate()
            assert worker.wait(PATIENCE) == 0


def test_a_worker_whose_processes_lack_a_set_up_says_what_to_do(tmp_path: Path) -> None:
    """X5, P4: the command line was given no module, so only those with the tasks are imported."""
    files = {
        "frame.py": "ready = False",
        "chores.py": "import frame\nfrom taskharbor import Harbor\n\nassert frame.ready, 'not set up'\n"
        "harbor = Harbor()\n\n\n@harbor.task(process=True)\ndef work(number: int) -> int:\n    return number",
        "embed.py": "import frame\n\nframe.ready = True\nfrom chores import harbor\n\nharbor.run_worker(concurrency=1)",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "embed.py"],
        cwd=tmp_path,
        env={**os.environ, "TASKHARBOR_URL": f"sqlite:///{tmp_path}/jobs.db"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    expected = r"importing chores: AssertionError: not set up \(.*chores\.py line 4\)\. .*taskharbor worker MODULE:"
    assert re.search(expected, done.stderr), done.stderr


def test_no_child_is_left_behind(tmp_path: Path) -> None:
    """After a worker's end no process of it exists, neither running nor as a zombie."""
    with slots.harbor.stand_in(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"):
        with slots.harbor.worker(concurrency=2):
            pid = slots.bare.describe.enqueue("x").result(timeout=PATIENCE)["pid"]
            assert slots.is_alive(pid)
        assert not Path(f"/proc/{pid}").exists()
