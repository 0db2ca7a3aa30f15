"""Workers and clients as real processes, and everything that can be done to them."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw
import msgspec

import limits
from taskharbor.core.job import JobRecord
from taskharbor.drivers import from_url
from taskharbor.testing.check import CheckReport, Counts, check
from taskharbor.testing.history import (
    Began,
    Called,
    ClaimEntry,
    Ended,
    Event,
    HistoryFile,
    KeptEntry,
    Made,
    Renew,
    Returned,
    read,
)
from taskharbor.testing.recorder import take_stock

from .app import VARIABLE, Settings, Watched, opened
from .submit import Order

T = TypeVar("T")
M = TypeVar("M", bound="Member")
PATIENCE = 90.0
POLL = 0.02
TESTS = Path(__file__).parent.parent
LIVE = ("ready", "inflight", "waiting")
QUIET = dict.fromkeys(("TASKHARBOR_URL", "COVERAGE_PROCESS_START", "PYTEST_CURRENT_TEST"))


def until(found: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """Wait for something that other processes do; what was found."""
    give_up = time.monotonic() + patience
    while not (result := found()):
        assert time.monotonic() < give_up, f"not within {patience:g} s: {what}"
        time.sleep(POLL)
    return result


def search_path(*first: Path) -> str:
    """Where the processes of a crew import from."""
    return os.pathsep.join(
        filter(None, [*map(str, first), str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH")])
    )


def off_by(seconds: float) -> dict[str, str]:
    """The environment of a process whose host has a wrong clock."""
    return {"SKEW": str(seconds), "PYTHONPATH": search_path(TESTS / "system" / "skewed")}


class Note(NamedTuple):
    """A note of a handler."""

    id: str
    version: int
    word: str


class Member:
    """A process of the crew; what it says on stdout and stderr is kept."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self.pid = self._process.pid
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    @property
    def stopped(self) -> bool:
        """Whether the process lies still after a SIGSTOP."""
        if not self.running:
            return False
        return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None

    def has_said(self, text: str) -> bool:
        """Whether a line with this text has come."""
        return any(text in line for line in self.lines)

    def says(self, text: str) -> str:
        """Wait for a line with this text."""

        def found() -> str | None:
            ended = not self.running
            if ended:
                self._listener.join(PATIENCE)
            line = next((line for line in self.lines if text in line), None)
            assert line is not None or not ended, f"{self.name} ended without {text!r}:\n{self.story}"
            return line

        line = until(found, f"{self.name} says {text!r}")
        assert line is not None
        return line

    @property
    def story(self) -> str:
        """The end of its output."""
        return "\n".join(self.lines[-60:])

    def go(self) -> None:
        """The word that a client waits for."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def enough(self) -> None:
        """Let a client without a number of rounds end after this one."""
        self.signal(signal.SIGTERM)
        assert self.ends() == 0

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._process.kill()
        self.ends()

    def stop(self) -> None:
        """SIGSTOP, and wait until it has taken effect."""
        self.signal(signal.SIGSTOP)
        until(lambda: self.stopped or not self.running, f"{self.name} lies still")

    def go_on(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def ends(self, patience: float = PATIENCE) -> int:
        """Wait for the end; its exit code, negative for a signal."""
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end:\n{self.story}") from None
        self._listener.join(PATIENCE)
        return code

    def limit_files(self, size: int | None) -> None:
        """Let no file of this process grow beyond so many bytes, as if the disk were full; None lifts the limit."""
        limit = resource.RLIM_INFINITY if size is None else size
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def become_inner(self) -> None:
        """Mean the first child instead, for a process that was started through `unshare --fork`."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        self.pid = int(until(lambda: children.read_text().split(), f"{self.name} has a child")[0])

    def close(self) -> None:
        """End it whatever it does, and let go of everything."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        limits.end(self._process, self._listener, PATIENCE)


class SupervisorMember(Member):
    """A supervisor; its workers say what they say on its own stdout."""

    def children(self) -> list[int]:
        """The processes of its workers, zombies included."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def ready(self, number: int) -> list[int]:
        """Wait until so many workers in all have been ready; the pids of all that were."""
        found = until(lambda: len(each := self._ready()) >= number and each, f"{number} workers are ready")
        assert isinstance(found, list)
        return found

    def _ready(self) -> list[int]:
        lines = [line.partition("supervisor.ready: pid ") for line in list(self.lines)]
        return [int(rest.split()[0]) for _, told, rest in lines if told]

    def close(self) -> None:
        """End it and its workers."""
        workers = self.children() if self.running else []
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().close()


class Crew:
    """All processes of one test, the store they share, and what is known of it."""

    def __init__(
        self,
        folder: Path,
        *,
        max_crashes: int | None = 5,
        store: Path | None = None,
        options: str = "",
        url: str | None = None,
    ) -> None:
        """The store is a file in the folder, unless another `store` is named, or the `url` of any engine."""
        self.folder = folder
        self.store = store or folder / "jobs.db"
        self.url = url or f"sqlite:///{self.store}{options}"
        self.max_crashes = max_crashes
        self.members: list[Member] = []
        self._names: Counter[str] = Counter()
        self._harbor: Watched | None = None
        self.report = CheckReport([], [], Counts())

    # processes

    def start(
        self,
        name: str,
        command: Sequence[str],
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        **settings: Any,
    ) -> Member:
        """A process with these settings (see `app.Settings`)."""
        return self._start(Member, name, command, prefix, environment, **settings)

    def _start(
        self,
        kind: type[M],
        name: str,
        command: Sequence[str],
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        **settings: Any,
    ) -> M:
        told = msgspec.json.encode(self._settings(name, **settings)).decode()
        inherited = {key: value for key, value in os.environ.items() if key not in QUIET}
        member = kind(
            name,
            [*prefix, sys.executable, "-W", "ignore", *command],
            self.folder,
            {**inherited, "PYTHONPATH": search_path(), "PYTHONUNBUFFERED": "1", VARIABLE: told, **(environment or {})},
        )
        self.members.append(member)
        return member

    def _settings(self, who: str, **settings: Any) -> Settings:
        given = {"url": self.url, "max_crashes": self.max_crashes, **settings}
        return Settings(folder=str(self.folder), who=who, **given)

    def name(self, kind: str) -> str:
        """A name that was never used."""
        self._names[kind] += 1
        return f"{kind}-{self._names[kind]}"

    def worker(
        self,
        *,
        lease: float = 1.0,
        concurrency: int = 8,
        grace: float = 25.0,
        ready: bool = True,
        application: str = "system.process:harbor",
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        **settings: Any,
    ) -> Member:
        """`taskharbor worker`; returns when it works, unless not `ready`."""
        options = ["-c", str(concurrency), "--lease", f"{lease}s", "--grace", f"{grace}s"]
        command = ["-m", "taskharbor", "worker", application, *options]
        member = self.start(self.name("worker"), command, prefix, environment, **settings)
        if ready:
            member.says("worker.started")
        return member

    def supervisor(
        self,
        processes: int = 2,
        *options: str,
        lease: float = 60.0,
        concurrency: int = 4,
        grace: float = 25.0,
        prefix: Sequence[str] = (),
        **settings: Any,
    ) -> SupervisorMember:
        """`taskharbor worker --processes N`, recorded like its workers; returns when all of them work."""
        given = ["--processes", str(processes), "-c", str(concurrency), "--lease", f"{lease}s", "--grace", f"{grace}s"]
        command = ["-m", "system.supervised", "worker", "system.process:harbor", *given, *options]
        member = self._start(SupervisorMember, self.name("supervisor"), command, prefix, supervised=True, **settings)
        member.ready(processes)
        return member

    def client(
        self,
        each: Sequence[tuple[str, dict[str, Any], dict[str, Any]]],
        *,
        wait: bool = True,
        environment: dict[str, str] | None = None,
        **order: Any,
    ) -> Member:
        """A process that enqueues after `go`; returns when it is ready."""
        told = msgspec.json.encode(Order(each=list(each), **order)).decode()
        member = self.start(self.name("client"), ["-m", "system.submit", told], environment=environment)
        if wait:
            member.says("ready")
        return member

    # this process's own view

    @property
    def harbor(self) -> Watched:
        """A harbor in this process, recorded like all others."""
        if self._harbor is None:
            self._harbor = asyncio.run(opened(self._settings(self.name("test"), generation=2)))
        return self._harbor

    def let_go(self) -> None:
        """Close this process's own harbor; the next use opens another."""
        if self._harbor is not None:
            self._harbor.close()
            self._harbor = None

    def enqueue(self, task: str, arguments: dict[str, Any] | None = None, **options: Any) -> str:
        """Enqueue a job; returns its id."""
        (job,) = self.harbor.enqueue_many([self.harbor.step(task, arguments or {}, **options)])
        return job.id

    def enqueue_many(self, task: str, arguments: Sequence[dict[str, Any]], **options: Any) -> list[str]:
        """Enqueue several jobs of one task as one group."""
        steps = [self.harbor.step(task, each, **options) for each in arguments]
        return [job.id for job in self.harbor.enqueue_many(steps)]

    def job(self, id: str) -> JobRecord:
        """A job as it is stored."""
        return self.harbor.admin.jobs.get(id)

    def unfinished(self) -> int:
        """How many jobs have not ended."""
        return sum(
            each.scheduled + each.ready + each.waiting + each.claimed + each.running + each.lapsed
            for each in self.harbor.admin.queues.list()
        )

    def drained(self, patience: float = PATIENCE) -> None:
        """Wait until every job has ended."""
        until(lambda: self.unfinished() == 0, "every job has ended", patience)

    def ended(self, id: str) -> JobRecord:
        """Wait until a job has ended."""
        return until(lambda: (job := self.job(id)).state not in LIVE and job, f"job {id} has ended")  # type: ignore[return-value]

    def open_gate(self, gate: str) -> None:
        """Let the handlers through that wait for it."""
        (self.folder / gate).touch()

    def notes(self, id: str) -> list[Note]:
        """The notes of a job's handlers."""
        file = self.folder / "notes"
        if not file.exists():
            return []
        found = [Note(*json.loads(line)) for line in file.read_text().splitlines()]
        return [note for note in found if note.id == id]

    # histories

    def events(self) -> list[Event]:
        """Everything that was witnessed so far."""
        return read(sorted(self.folder.glob("*.history")))

    def began(self, id: str) -> list[Began]:
        """The runs of a job, in order."""
        found = [event for event in self.events() if isinstance(event, Began) and event.id == id]
        return sorted(found, key=lambda event: event.at)

    def began_by(self, member: Member) -> list[Began]:
        """The runs that a process has begun."""
        return [event for event in self.events() if isinstance(event, Began) and event.who == member.name]

    def finished(self, id: str) -> list[Ended]:
        """The ends of the runs of a job, in order."""
        found = [event for event in self.events() if isinstance(event, Ended) and event.id == id]
        return sorted(found, key=lambda event: event.at)

    def runs(self, id: str, number: int = 1) -> Began:
        """Wait until a job has begun to run for the n-th time."""
        return until(lambda: self.began(id)[number - 1 :], f"run {number} of job {id}")[0]

    def claims(self, *ids: str) -> list[ClaimEntry]:
        """The claims that reserve has answered with, of these jobs or of all, in order."""
        returned = sorted((event for event in self.events() if isinstance(event, Returned)), key=lambda it: it.at)
        claims = [answer for event in returned for answer in event.answers if isinstance(answer, ClaimEntry)]
        return [claim for claim in claims if not ids or claim.id in ids]

    def last_expiry(self, id: str, version: int) -> int:
        """The latest expiry that a lease was granted, in microseconds since the epoch."""
        events = self.events()
        asked = {(event.who, event.number): event.items for event in events if isinstance(event, Called)}
        token, latest = "", 0
        for event in sorted((event for event in events if isinstance(event, Returned)), key=lambda it: it.at):
            for item, answer in zip_longest(asked[event.who, event.number], event.answers):
                if isinstance(answer, ClaimEntry) and (answer.id, answer.version) == (id, version):
                    token, latest = answer.token, answer.expires_at
                elif isinstance(answer, KeptEntry) and isinstance(item, Renew) and item.token == token:
                    latest = max(latest, answer.expires_at)
        return latest

    # the end

    def stock(self) -> list[JobRecord]:
        """End all processes and read the store."""
        for member in self.members:
            member.close()
        self.let_go()
        self.check_file()
        return asyncio.run(self._take_stock())

    def judge(self, damaged: Collection[str] = ()) -> list[JobRecord]:
        """End all processes, read the store, and let the checker read all histories: no violation may be left.

        A `damaged` record is dead-lettered by the store itself, which no history records: its end has no explanation.
        """
        records = self.stock()
        self.report = check(self.events())
        unexplained = [it for it in self.report.violations if it.name == "H5" and any(id in str(it) for id in damaged)]
        assert len(self.report.violations) == len(unexplained), f"{self.report}\n(histories: {self.folder})"
        return records

    async def _take_stock(self) -> list[JobRecord]:
        stock = HistoryFile(self.folder / "stock.history")
        driver = await from_url(self._settings("stock").url)
        try:
            return await take_stock(driver, datetime.now(UTC), stock)
        finally:
            await driver.close()
            stock.close()

    def check_file(self) -> None:
        """The file, if the store is one, must be in order."""
        if self.url.startswith("sqlite:"):
            assert self.select("PRAGMA integrity_check") == [("ok",)]

    def select(self, query: str) -> list[Any]:
        """Rows of the store, past its driver."""
        db = apsw.Connection(str(self.store))
        try:
            return db.execute(query).fetchall()
        finally:
            db.close()

    @property
    def verdict(self) -> str:
        """The checker's verdict, in a line."""
        counts = self.report.counts
        duplicates = f"{len(self.report.duplicates)} overlaps explained"
        return (
            f"{counts.operations} operations ({counts.unknown} unknown), {counts.executions} executions, {duplicates}, "
            f"{len(self.report.violations)} violations"
        )

    def acknowledged(self) -> set[str]:
        """The jobs whose enqueue has returned."""
        answers = (event.answers for event in self.events() if isinstance(event, Returned))
        return {answer.id for each in answers for answer in each if isinstance(answer, Made)}

    def close(self) -> None:
        """End everything, whatever one of them does."""
        with ExitStack() as stack:
            stack.callback(self.let_go)
            for member in self.members:
                stack.callback(member.close)
