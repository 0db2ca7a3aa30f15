"""`taskharbor demo`, from end to end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import limits
from taskharbor.admin.recurring import RecurringTask
from taskharbor.cli.demo import play
from taskharbor.cli.demo.promises import Promise, verdicts
from taskharbor.cli.demo.story import Story
from taskharbor.core.job import JobRecord
from taskharbor.core.recurrence import Recurrence
from taskharbor.core.states import State

from .desk import LONGEST, Desk, in_terminal, unpainted, until


def demo(folder: Path, *words: str) -> subprocess.Popen[str]:
    """The demo as a process that keeps its temporary files below a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "taskharbor", "demo", *words],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "TASKHARBOR_URL": "sqlite:///not-this-one.db"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    """X1, F1, F2, F10, Q1, N1, N3, D11, I1, X6: the summary is checked against the store; no trace is left."""
    process = demo(tmp_path)
    with limits.limited(process, "the end of the demo"):
        out, err = process.communicate(timeout=LONGEST)
    assert (process.returncode, err) == (0, ""), out
    kept = [line for line in out.splitlines() if line.startswith("✔")]
    assert len(kept) == 11
    assert "✘" not in out
    assert "All 11 promises kept" in out
    for text in (
        "kill -9",
        "takes the voyage over: lease version",
        "stores the schedule of the bell: it rings every second",
        "goes to the dead-letter queue",
        "What to type next",
    ):
        assert text in out
    assert list(tmp_path.iterdir()) == []


def test_the_demo_in_a_terminal(tmp_path: Path) -> None:
    """X1, C: the same as a live picture, with the cursor back at the end."""
    code, text = in_terminal(tmp_path, 80, "demo", TMPDIR=str(tmp_path))
    picture = unpainted(text)
    assert code == 0, picture
    for words in (
        "TaskHarbor demo",
        "long voyage",
        "every second",
        "killed with -9",
        "lease version",
        "All 11 promises kept",
    ):
        assert words in picture
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_demo_cleans_up(desk: Desk) -> None:
    """C: SIGTERM in the middle ends the workers and removes the files."""
    process = demo(desk.folder)
    assert process.stdout is not None
    with limits.limited(process, "a demo that stops"):
        (store,) = wait_for_folder(desk.folder)
        for line in process.stdout:
            if "is at work, pid" in line:
                break
        worker = int(line.partition("pid ")[2].partition(",")[0])
        assert runs(worker)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 1
    assert "demo stopped" in err
    assert not runs(worker)
    assert not store.exists()


def test_a_broken_promise_is_exit_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """C: the demo does not lie about itself; a store that is asked for is kept."""

    async def broken(url: str) -> tuple[Story, list[Promise]]:
        return story(), [Promise("Kept", True, "seen"), Promise("Not kept", False, "missed")]

    monkeypatch.setattr(play, "_play", broken)
    assert play.run_demo(keep=True) == 1
    out = capsys.readouterr().out
    assert "✔ Kept      seen" in out
    assert "✘ Not kept  missed" in out
    assert "1 of 2 promises were broken" in out
    folder = Path(re.search("store was kept in (.*)", out)[1])  # type: ignore[index]
    assert folder.is_dir()
    folder.rmdir()


def test_nothing_is_taken_for_kept_without_proof() -> None:
    """C: held against an empty store, every promise is broken."""
    assert [promise.text for promise in verdicts(story(), []) if promise.kept] == []


@pytest.mark.parametrize(
    ("seconds", "kept"),
    [
        ([0, 1, 2, 3], True),
        ([0, 1, 1, 2, 3], False),
        ([0, 1, 3], False),
        ([1, 2, 3], False),
        ([0, 1, 2], False),
        ([0, 1, 2, 3, 4], False),
    ],
)
def test_a_tick_twice_or_never_breaks_the_promise(seconds: list[int], kept: bool) -> None:
    """N3: known from the slots of the jobs, the first tick that a worker declared, and the last of the schedule."""
    told = story()
    told.first_tick, told.killed_at = NOON, NOON + timedelta(seconds=1.5)
    told.cargo.rung = rung_until(NOON + timedelta(seconds=3))
    told.cargo.bell.seen = [stroke(NOON + timedelta(seconds=second)) for second in seconds]
    (promise,) = (promise for promise in verdicts(told, []) if promise.text == "Every tick is enqueued exactly once")
    assert promise.kept is kept


NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


def stroke(slot: datetime) -> JobRecord:
    """A job of the bell that is done."""
    headers = {"schedule": "bell", "slot": slot.isoformat()}
    return JobRecord(
        id="1",
        type="bell",
        queue="default",
        payload=b"",
        headers=headers,
        state=State.DONE,
        created_at=slot,
        due_at=slot,
    )


def rung_until(slot: datetime) -> RecurringTask:
    """The bell at rest."""
    return RecurringTask(
        name="bell",
        task="bell",
        words="Every second",
        when=Recurrence(every=1_000_000),
        payload=b"",
        queue="default",
        paused=True,
        in_code=True,
        next_run=None,
        last_run=slot,
        last_job_id="1",
        last_state="done",
    )


def story() -> Story:
    """A demo before its beginning."""
    return Story("sqlite:///nothing.db", lambda _: None, lambda _: None)


def wait_for_folder(folder: Path) -> list[Path]:
    """The demo's folder, once it is there."""
    until(lambda: bool(list(folder.glob("taskharbor-demo-*"))))
    return list(folder.glob("taskharbor-demo-*"))


def runs(pid: int) -> bool:
    """Whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_to_type_next_begins_with_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C: `make demo` runs in an environment that the shell does not know; what is on the PATH needs no line."""
    script = tmp_path / ".venv" / "bin" / "activate"
    script.parent.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert play.activation() == ""
    script.touch()
    assert play.activation() == f"  . {script}\n"
    monkeypatch.chdir(tmp_path)
    assert play.activation() == "  . .venv/bin/activate\n"
    (tmp_path / "taskharbor").touch(mode=0o755)
    assert play.activation() == ""
