"""`taskharbor worker --processes N` on the command line: its settings, its complaints, its end."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios

import pytest

import limits
from taskharbor.cli.supervise import supervise
from taskharbor.supervisor.options import SupervisorOptions
from taskharbor.supervisor.supervisor import Supervisor

from .desk import Desk, Screen


def settings(desk: Desk, text: str) -> None:
    """Write [tool.taskharbor]."""
    (desk.folder / "pyproject.toml").write_text(f"[tool.taskharbor]\n{text}\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--processes", "0"], "processes must be from 1 to 1000, not 0; for a single worker without a supervisor"),
        (["--processes", "-2"], "processes must be from 1 to 1000, not -2"),
        (["--processes", "many"], "'many' is not a valid integer"),
        (["--processes", "2", "--max-jobs", "0"], "max_jobs must be 1 or more, not 0: leave it out for no limit"),
        (["--processes", "2", "--max-age", "1s"], "max_age must be 10 s or more, not 1 s: workers would be replaced"),
        (["--processes", "2", "--max-age", "nan"], "max_age must be 10 s or more"),
        (["--processes", "2", "--max-age", "soon"], "'soon' is not a length of time"),
        (["--processes", "2", "--max-memory", "1MiB"], "max_memory must be 16 MiB or more, not 1 MiB: no worker takes"),
        (["--processes", "2", "--max-memory", "lots"], "max_memory must be text such as"),
        (
            ["--processes", "2", "--start-timeout", "0"],
            "start_timeout must be 1 s or more, not 0 s: no worker would get",
        ),
        (["--processes", "2", "--start-timeout", "nan"], "start_timeout must be 1 s or more"),
        (["--start-timeout", "1m"], "start_timeout needs a supervisor that kills workers: add --processes 1"),
        (["--max-jobs", "9"], "max_jobs, max_age and max_memory need a supervisor that replaces workers: add --pro"),
    ],
)
def test_a_supervisor_that_cannot_be(desk: Desk, words: list[str], said: str) -> None:
    """C, X5: one line that names the fix, at once; no process is started."""
    assert said in desk.bad(2, "worker", "shop:harbor", *words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("processes = 0", "processes must be from 1 to 1000, not 0"),
        ('processes = "2"', "[tool.taskharbor] processes must be a whole number, not a value of type str"),
        ("processes = true", "[tool.taskharbor] processes must be a whole number, not a value of type bool"),
        ("procesess = 2", "has no 'procesess' (did you mean 'processes'?)"),
        ("processes = 2\nmax_age = 60", "[tool.taskharbor] max_age must be text, not a value of type int"),
        ('max_memory = "512MiB"', "need a supervisor that replaces workers: add --processes 1"),
    ],
)
def test_settings_of_a_project_that_cannot_be(desk: Desk, text: str, said: str) -> None:
    """C, X5: [tool.taskharbor] is held to the same rules, and a misspelt name is an error."""
    settings(desk, text)
    assert said in desk.bad(2, "worker", "shop:harbor")


def test_a_supervisor_has_a_loop_of_its_own_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """X6: others, such as uvloop, may be installed as the default and refuse to handle SIGCHLD."""
    seen: list[type] = []

    async def run(self: Supervisor) -> int:
        seen.append(type(asyncio.get_running_loop()))
        return 7

    def other() -> asyncio.AbstractEventLoop:
        raise AssertionError("the default loop was asked for")

    monkeypatch.setattr(Supervisor, "run", run)
    monkeypatch.setattr("asyncio.events.new_event_loop", other)
    assert supervise([], SupervisorOptions(processes=1)) == 7
    assert seen == [asyncio.SelectorEventLoop]


def test_the_settings_of_a_project(desk: Desk) -> None:
    """C: [tool.taskharbor] names the number of processes and the limits; their options win."""
    settings(desk, 'app = "shop:harbor"\nprocesses = 9\nmax_jobs = 5\nmax_age = "12h"\nmax_memory = "1 GiB"')
    with desk.process("worker", "--processes", "1") as supervisor:
        supervisor.says("supervisor.started: 1 worker")
        supervisor.says("supervisor.ready: pid")
        for number in range(5):
            desk.enqueue("shop.welcome", f"user_id={number}")
        supervisor.says("has run")
        supervisor.signal(signal.SIGTERM)
        supervisor.says("supervisor.stopped: exit code 0")
        assert supervisor.exit_code() == 0
    assert desk.json("stats", "--url", desk.url)["workers"] == []


@pytest.mark.parametrize(
    ("content", "words", "code", "said"),
    [
        ("import nowhere", [], 2, "No module named 'nowhere'"),
        ("import os; os._exit(7)", [], 1, "workers keep ending, the last one with exit code 7"),
        ("import signal; signal.pause()", ["--start-timeout", "2"], 1, "no worker gets ready within 2 s of its start"),
        ("from taskharbor import Harbor; harbor = Harbor()", ["--lease", "0"], 2, "lease must be from"),
        ("from taskharbor import Harbor; harbor = Harbor()", ["--url", "memory://"], 2, "inside one process"),
        ("from taskharbor import Harbor; harbor = Harbor()", ["--max-memory", "16MiB"], 2, "16 MiB is too low"),
    ],
    ids=["broken module", "crash loop", "hanging import", "bad option", "memory", "limit"],
)
def test_workers_that_do_not_start(desk: Desk, content: str, words: list[str], code: int, said: str) -> None:
    """X5, C: what waiting does not mend ends at once, a crash loop after a few tries; the exit code says which."""
    (desk.folder / "broken.py").write_text(f"{content}\n", encoding="utf-8")
    with desk.process("worker", "broken:harbor", "--processes", "1", *words) as supervisor:
        supervisor.says(said)
        assert supervisor.exit_code() == code


def test_a_worker_that_hangs_before_it_is_ready_is_replaced(desk: Desk) -> None:
    """X5: the first import waits for ever for something that is there the next time."""
    shop = (desk.folder / "shop.py").read_text(encoding="utf-8")
    hang = "import os, signal\nif not os.path.exists('there'):\n    open('there', 'w').close()\n    signal.pause()\n"
    (desk.folder / "shop.py").write_text(
        hang + shop.replace("from __future__ import annotations\n", ""), encoding="utf-8"
    )
    with desk.process("worker", "shop:harbor", "--processes", "1", "--start-timeout", "5s") as supervisor:
        supervisor.says("it was not ready within 5 s of its start: an import or a lifespan hangs")
        supervisor.says("supervisor.ready: pid")
        supervisor.signal(signal.SIGTERM)
        assert supervisor.exit_code() == 0


def test_new_code_that_is_broken_leaves_the_old_workers_alone(desk: Desk) -> None:
    """X6: a SIGHUP after a bad deploy costs nothing; the next one, after a good one, replaces them."""
    code = (desk.folder / "shop.py").read_text(encoding="utf-8")
    with desk.process("worker", "shop:harbor", "--processes", "1") as supervisor:
        supervisor.says("supervisor.ready: pid")
        (desk.folder / "shop.py").write_text("import nowhere\n", encoding="utf-8")
        supervisor.signal(signal.SIGHUP)
        supervisor.says("the rolling restart was given up: the new worker ended with exit code 2; others go on")
        (desk.folder / "shop.py").write_text(code, encoding="utf-8")
        supervisor.signal(signal.SIGHUP)
        supervisor.says("its successor is ready")
        supervisor.signal(signal.SIGTERM)
        assert supervisor.exit_code() == 0


def test_a_closed_terminal_stops_it(desk: Desk) -> None:
    """X6: SIGHUP asks for new code, but not if it comes from the end of the terminal."""
    leader, follower = pty.openpty()
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "taskharbor", "worker", "shop:harbor", "--processes", "1"],
        cwd=desk.folder,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(follower)
    with limits.limited(supervisor, "the end of the supervisor"):
        screen = Screen(leader)
        try:
            screen.until("supervisor.ready")
            os.kill(supervisor.pid, signal.SIGHUP)
            screen.until("its successor is ready")
        finally:
            screen.close()
        assert supervisor.wait(60) == 0


def test_a_store_that_is_deleted_ends_it(desk: Desk) -> None:
    """X9: with the code for the store; no worker is started that would make an empty file."""
    with desk.process("worker", "shop:harbor", "--processes", "2") as supervisor:
        for _ in range(2):
            supervisor.says("supervisor.ready: pid")
        desk.enqueue("shop.welcome", "user_id=1")
        supervisor.says("job.succeeded")
        (desk.folder / "jobs.db").unlink()
        supervisor.says("supervisor.stopped: exit code 3")
        assert supervisor.exit_code() == 3
    assert not (desk.folder / "jobs.db").exists()


def test_it_works_with_reload(desk: Desk) -> None:
    """C: --reload restarts the supervisor with its workers."""
    with desk.process("worker", "shop:harbor", "--processes", "1", "--reload") as parent:
        parent.says("supervisor.ready: pid")
        (desk.folder / "shop.py").touch()
        parent.says("reload: shop.py changed")
        parent.says("supervisor.stopped: exit code 0")
        parent.says("supervisor.ready: pid")
        parent.signal(signal.SIGTERM)
        assert parent.exit_code() == 0


def test_no_secret_of_the_store_is_shown(desk: Desk) -> None:
    """X5: a worker reports the URL through a socket; neither logs, arguments nor environments have it."""
    (desk.folder / "secret.py").write_text(
        "from taskharbor import Harbor\nharbor = Harbor('postgresql://u:hunter2@127.0.0.1:1/x')\n", encoding="utf-8"
    )
    with desk.process("worker", "secret:harbor", "--processes", "1") as supervisor:
        supervisor.says("store.unavailable")
        supervisor.signal(signal.SIGTERM)
        supervisor.says("supervisor.stopped: exit code 0")
    assert "hunter2" not in "\n".join(supervisor.lines)
