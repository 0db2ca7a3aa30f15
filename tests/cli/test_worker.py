"""`taskharbor worker`, as a process."""

from __future__ import annotations

import re
import signal
import sys
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from taskharbor.cli import types

from .desk import Desk, until


def job(desk: Desk, id: str) -> Any:
    """The job in full."""
    return desk.json("jobs", "show", id, "--url", desk.url)


def test_it_works_until_sigterm(desk: Desk) -> None:
    """X6, C: runs jobs, stops gracefully, exit 0; every line carries the fields of its job."""
    with desk.process("worker", "shop:harbor") as worker:
        started = worker.says("worker.started")
        assert f"(taskharbor {version('taskharbor')}) works on default, mail of sqlite:///" in started
        assert "/jobs.db, 16 jobs at a time, 6 tasks: shop.explode, shop.hang, shop.merge, shop.once, shop" in started
        id = desk.enqueue("shop.welcome", "user_id=7")
        inside = worker.says("welcoming 7")
        assert re.match(rf"\d{{4}}-\S+Z INFO shop job={id} task=shop.welcome attempt=1 welcoming 7$", inside)
        done = worker.says("job.succeeded")
        assert f"job={id} task=shop.welcome attempt=1 job.succeeded: after " in done
        assert (done.count(id), done.count("shop.welcome"), len(re.findall(r"\d\d:\d\d", done))) == (1, 1, 1)
        worker.signal(signal.SIGTERM)
        worker.says("worker.draining: no job is running")
        worker.says("worker.stopped")
        assert worker.exit_code() == 0
    assert job(desk, id)["state"] == "done"
    assert desk.json("stats", "--url", desk.url)["workers"] == []


def test_sigint_is_as_good(desk: Desk) -> None:
    """X6: Ctrl-C."""
    with desk.process("worker", "-A", "shop:harbor") as worker:
        worker.says("worker.started")
        worker.signal(signal.SIGINT)
        assert worker.exit_code() == 0


def test_a_thread_that_never_ends_is_released(desk: Desk) -> None:
    """X6: after the grace period its job goes back without an attempt, due when the process has ended."""
    id = desk.enqueue("shop.hang")
    with desk.process("worker", "shop:harbor", "--grace", "0.1") as worker:
        worker.says("hanging")
        worker.signal(signal.SIGTERM)
        assert id in worker.says("worker.abandoned")
        assert worker.exit_code() == 0
    released = job(desk, id)
    assert (released["attempts"], released["crashes"], released["lease"]) == (0, 0, None)
    assert released["state"] in ("scheduled", "ready")
    due, settled = (datetime.fromisoformat(released[name]) for name in ("due_at", "settled_at"))
    assert timedelta(seconds=0.9) < due - settled <= timedelta(seconds=1)


def test_a_second_signal_does_not_wait(desk: Desk) -> None:
    """X6: the grace period of an hour is cut short; the job is released as well."""
    id = desk.enqueue("shop.hang")
    with desk.process("worker", "shop:harbor", "--grace", "1h") as worker:
        worker.says("hanging")
        worker.signal(signal.SIGTERM)
        told = worker.says("worker.draining")
        assert told.endswith(": 1 job is running; waiting up to 1 h for it; a second signal stops at once")
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0
    assert job(desk, id)["state"] in ("scheduled", "ready")


@pytest.mark.parametrize("signals", [1, 2])
def test_a_stop_does_not_hand_an_overrun_back_as_if_nothing_had_happened(desk: Desk, signals: int) -> None:
    """F5, X6: a thread past its timeout is a timeout, also when a deploy or a second signal ends its process."""
    id = desk.enqueue("shop.hang", "--timeout", "0.1")
    with desk.process("worker", "shop:harbor", "--grace", "0.1" if signals == 1 else "1h") as worker:
        worker.says("hanging")
        assert f"job={id} " in worker.says("job.overrun: still runs after its timeout of 0.1 s")
        worker.signal(signal.SIGTERM)
        worker.says("worker.draining")
        if signals == 2:
            worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0
    ended = job(desk, id)
    assert ended["state"] in ("scheduled", "ready")
    assert (ended["attempts"], ended["crashes"]) == (1, 0)
    assert ended["last_error"] == "TimeoutError: timed out after 0.1 s"


def test_a_signal_while_the_application_is_imported(desk: Desk) -> None:
    """X6: as PID 1 a signal without a handler would be ignored, so there is one from the start."""
    (desk.folder / "slow.py").write_text(
        "import pathlib, sys, threading\nprint('importing', file=sys.stderr, flush=True)\nthreading.Event().wait()\n",
        encoding="utf-8",
    )
    with desk.process("worker", "slow:harbor") as worker:
        worker.says("importing")
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0


def test_it_serves_the_queues_it_is_given(desk: Desk) -> None:
    """C: --queues, also several times."""
    other, mine = desk.enqueue("shop.welcome", "user_id=1"), desk.enqueue("shop.explode", "text=x")
    with desk.process("worker", "shop", "-Q", "default=3", "-Q", "spare=1", "--log-level", "debug") as worker:
        assert "works on default, spare" in worker.says("worker.started")
        assert f"job={mine} " in worker.says("job.dead")
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0
    assert job(desk, other)["state"] == "ready"


def test_the_log_level(desk: Desk) -> None:
    """C: --log-level; one line for one record, whatever a job raises, and its traceback indented below."""
    desk.enqueue("shop.explode", 'text="first\\nsecond \\u001b[31m"')
    with desk.process("worker", "shop", "--log-level", "error") as worker:
        worker.says("job.dead")
        worker.says("    second")
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0
    line, *traceback = worker.lines
    assert line.endswith("ValueError: first\\nsecond \\x1b[31m")
    assert "2 failures within " in line
    assert "Retry.patient()" in line
    assert traceback[0] == "    Traceback (most recent call last):"
    assert "shop.py" in traceback[1]  # not our own frames
    assert traceback[-2:] == ["    ValueError: first", "    second \\x1b[31m"]
    assert all(each.startswith("    ") for each in traceback)


def test_a_worker_without_tasks_says_so(desk: Desk) -> None:
    """C: with the likely reason; a job of an unknown task is a warning that names the likely causes."""
    (desk.folder / "bare.py").write_text("from taskharbor import Harbor\nharbor = Harbor('sqlite:///jobs.db')\n")
    desk.enqueue("shop.welcome", "user_id=1", "--queue", "default")
    with desk.process("worker", "bare:harbor") as worker:
        assert worker.says("worker.started").endswith("16 jobs at a time, no tasks")
        assert "--include shop.mail" in worker.says("WARNING taskharbor.worker job=- task=- attempt=- worker.no_tasks")
        assert "put back a job of task 'shop.welcome'" in worker.says("WARNING taskharbor.worker")
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0


def test_tasks_in_other_modules_are_included(desk: Desk) -> None:
    """C: --include, repeated, and include in [tool.taskharbor]."""
    for name in ("mail", "bills", "more"):
        (desk.folder / f"{name}.py").write_text(
            f"from shop import harbor\n@harbor.task(name='{name}')\ndef work() -> None: ...\n", encoding="utf-8"
        )
    (desk.folder / "pyproject.toml").write_text('[tool.taskharbor]\ninclude = ["more", "mail"]\n', encoding="utf-8")
    with desk.process("worker", "shop:harbor", "--include", "mail", "--include", "bills") as worker:
        assert "9 tasks: bills, mail, more, shop.explode" in worker.says("worker.started")
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0


def test_a_worker_on_a_store_in_memory_warns(desk: Desk) -> None:
    """G2: nothing outside of the process sees it, and it is forgotten."""
    with desk.process("worker", "shop:harbor", "--url", "memory://") as worker:
        assert "memory://" in worker.says("WARNING taskharbor.worker job=- task=- attempt=- store.ephemeral")
        worker.says("worker.started")
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "name the application"),
        (["nowhere:harbor"], 2, "no module 'nowhere'"),
        (["shop:harbor", "--include", "nowhere.mail"], 2, "include 'nowhere.mail': no module 'nowhere'"),
        (["shop:harbor", "--queues", "mail=many"], 2, "whole number"),
        (["shop:harbor", "--queues", "mail=0"], 2, "from 1 to 100"),
        (["shop:harbor", "--queues", ""], 2, "queue's name"),
        (["shop:harbor", "--concurrency", "0"], 2, "--concurrency"),
        (["shop:harbor", "--lease", "0"], 2, "lease must be"),
        (["shop:harbor", "--lease", "short"], 2, "15m"),
        (["shop:harbor", "--grace", "-1"], 2, "grace must be"),
        (["shop:harbor", "--log-level", "loud"], 2, "--log-level"),
        (["shop:harbor", "--url", "sqlite:///shop.py"], 3, "shop.py"),
        (["shop:harbor", "extra"], 2, "extra"),
    ],
)
def test_a_worker_that_cannot_start(desk: Desk, words: list[str], code: int, said: str) -> None:
    """C, X5: one line and the exit code, at once."""
    with desk.process("worker", *words) as worker:
        assert said in worker.says("taskharbor: ")
        assert worker.exit_code() == code
    assert len(worker.lines) == 1


def test_uvloop_is_an_extra(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """X5: the message has the pip command."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert 'pip install "taskharbor[fast]"' in desk.bad(2, "worker", "shop:harbor", "--uvloop")


@pytest.mark.parametrize(
    ("text", "queues"),
    [
        (None, None),
        ("mail", ["mail"]),
        ("mail, default", ["mail", "default"]),
        ("mail=3,default=1", {"mail": 3, "default": 1}),
        ("mail=3,default", {"mail": 3, "default": 1}),
        ("a=b=2", {"a=b": 2}),
    ],
)
def test_how_queues_are_written(text: str | None, queues: object) -> None:
    """C: names, or names with weights."""
    assert types.queues(text) == queues


def test_reload_restarts_on_a_change(desk: Desk) -> None:
    """C: a change stops the worker gracefully and starts the new code; a broken file waits for the next change."""
    with desk.process("worker", "shop:harbor", "--reload") as worker:
        worker.says("worker.started")
        source = desk.folder / "shop.py"
        code = source.read_text(encoding="utf-8")
        source.write_text(code.replace("welcoming", "greeting"), encoding="utf-8")
        worker.says("reload: shop.py changed")
        worker.says("worker.stopped")
        worker.says("worker.started")
        desk.enqueue("shop.welcome", "user_id=1")
        worker.says("greeting 1")

        source.write_text("1 / 0", encoding="utf-8")
        worker.says("ZeroDivisionError")
        worker.says("reload: the worker ended with exit code 2; waiting for a change")
        source.write_text(code, encoding="utf-8")
        worker.says("worker.started")
        worker.signal(signal.SIGTERM)
        worker.says("worker.stopped")
        assert worker.exit_code() == 0


def test_reload_passes_a_second_signal_on(desk: Desk) -> None:
    """X6: the parent waits for its worker, and does not wait after a second signal."""
    id = desk.enqueue("shop.hang")
    with desk.process("worker", "shop:harbor", "--reload", "--grace", "1h") as worker:
        worker.says("hanging")
        worker.signal(signal.SIGINT)
        worker.says("worker.draining")
        worker.signal(signal.SIGINT)
        assert worker.exit_code() == 0
    until(lambda: job(desk, id)["state"] == "ready")


def test_reload_ends_with_its_terminal(desk: Desk) -> None:
    """X6: the worker is not in the terminal's group; it would be left behind, with nothing to stop it."""
    with desk.process("worker", "shop:harbor", "--reload") as parent:
        parent.says("worker.started")
        parent.signal(signal.SIGHUP)
        parent.says("worker.stopped")
        assert parent.exit_code() == 0


def test_what_reload_looks_at(tmp_path: Path) -> None:
    """C: .py files; not hidden folders, caches or virtual environments."""
    from taskharbor.cli.reload import sources

    for name in ("a.py", "src/b.py", "c.txt", ".git/d.py", "env/pyvenv.cfg", "env/lib/e.py", "x/__pycache__/f.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(str(path.relative_to(tmp_path)) for path in sources(tmp_path)) == ["a.py", "src/b.py"]


def test_a_file_that_is_gone_ends_it(desk: Desk) -> None:
    """X9, C: an error within seconds, exit 3."""
    with desk.process("worker", "shop:harbor") as worker:
        worker.says("worker.started")
        (desk.folder / "jobs.db").unlink()
        assert " ERROR " in worker.says("was deleted or moved while it was open")
        assert worker.exit_code() == 3


def test_a_deleted_file_is_reported_while_every_slot_is_taken(desk: Desk) -> None:
    """X9: by upkeep, which looks every second."""
    desk.enqueue("shop.hang")
    with desk.process("worker", "shop:harbor", "--concurrency", "1", "--grace", "0.1") as worker:
        worker.says("hanging")
        (desk.folder / "jobs.db").unlink()
        assert " ERROR " in worker.says("was deleted or moved while it was open")
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0
