"""A stage for turns inside SQLite, and a harbor on a file, for blocking callers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from taskharbor import Harbor, Task
from taskharbor.drivers.sqlite.batch import Request, RequestResult
from taskharbor.drivers.sqlite.turns import Blocked, Turns

LONG = 30.0


def request(name: str = "", seconds: float = LONG) -> Blocked:
    return Blocked(work=lambda db: name, writes=True, deadline=monotonic() + seconds)


class Stage:
    """Turns whose runs are noted, and may be held up or interrupted."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, list[str]]] = []
        self.hold: threading.Event | None = None
        self.inside = threading.Event()
        self.meanwhile: Callable[[], object] = lambda: None
        self.turns = Turns(self._run)

    def _run(self, requests: Sequence[Request], deadline: float) -> Sequence[RequestResult]:
        names: list[Any] = [it.work(None) for it in requests]  # type: ignore[arg-type]
        self.runs.append((threading.get_ident(), names))
        hold, self.hold = self.hold, None
        self.inside.set()
        if hold is not None:
            hold.wait(LONG)
        self.meanwhile()
        return [(name, None) for name in names]

    def busy(self) -> tuple[threading.Thread, threading.Event]:
        """A thread that is inside until the event."""
        self.hold = end = threading.Event()
        thread = threading.Thread(target=self.turns.take, args=(request("first"),))
        thread.start()
        self.inside.wait(LONG)
        return thread, end

    def waiting(self, count: int) -> None:
        """Return when so many are in line."""
        while len(self.turns._line) < count:
            pass


class Noop:
    """A harbor on a file."""

    def __init__(self, path: Path | str, **settings: Any) -> None:
        self.harbor = Harbor(f"sqlite:///{path}", **settings)
        self.task: Task[[int], None] = self.harbor.task(name="noop")(_noop)
        self.task.enqueue(0)

    @property
    def thread(self) -> Any:
        return self.harbor.driver()._thread  # type: ignore[attr-defined]


def _noop(n: int) -> None: ...
