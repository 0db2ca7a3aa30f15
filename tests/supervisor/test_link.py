"""The reports of a worker to its supervisor, and the death of the supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Generator

import pytest

from taskharbor.supervisor.link import VARIABLE, SupervisorLink
from taskharbor.supervisor.messages import (
    URGENT,
    Beat,
    Inbox,
    WaitsForStore,
    WorkerMessage,
    WorkerReady,
    encoded,
    period,
)
from taskharbor.worker.memory import resident

READY = WorkerReady(
    worker="w", lease=0.03, memory=1, store="postgresql://u:hunter2@h/x", store_timeout=30.0, keep_done=60.0
)


class Worker:
    """A worker that has finished this many runs."""

    finished = 7


class Ends:
    """A link, the supervisor's end of it, and the signals that the process sends itself."""

    def __init__(self, link: SupervisorLink, supervisor: socket.socket) -> None:
        self.link = link
        self.supervisor = supervisor
        self.signals: list[tuple[int, int]] = []
        self.signalled = threading.Event()

    def kill(self, pid: int, number: int) -> None:
        """In the place of `os.kill`."""
        self.signals.append((pid, number))
        self.signalled.set()


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Generator[Ends]:
    """At the end the thread of the link has ended, too: its signal is not for the test's own process."""
    supervisor, theirs = socket.socketpair()
    monkeypatch.setenv(VARIABLE, str(os.dup(theirs.fileno())))
    theirs.close()
    link = SupervisorLink.inherited()
    assert link is not None
    ends = Ends(link, supervisor)
    monkeypatch.setattr(os, "kill", ends.kill)
    yield ends
    supervisor.close()
    assert ends.signalled.wait(30)


def received(end: socket.socket, number: int) -> list[WorkerMessage]:
    """Wait for so many messages."""
    inbox, found = Inbox(), list[WorkerMessage]()
    end.settimeout(30)
    while len(found) < number:
        found += inbox.feed(end.recv(1000))
    return found


def test_a_worker_reports_itself_and_then_beats(ends: Ends) -> None:
    """L9: first what the supervisor has to know about it, then a sign of life in every third of a lease."""
    ends.link.report(Worker(), READY)
    first, second, *_ = received(ends.supervisor, 3)
    assert first == READY
    assert isinstance(second, Beat)
    assert second.finished == 7
    assert second.memory > 1024 * 1024


def test_a_worker_says_that_it_waits_for_its_store(ends: Ends) -> None:
    """X2: before it is ready, so that it is not taken for one that hangs."""
    ends.link.wait()
    assert received(ends.supervisor, 1) == [WaitsForStore()]


def test_the_end_of_the_supervisor_stops_the_worker(ends: Ends) -> None:
    """X6: gracefully, as by a SIGTERM, also before it is ready."""
    ends.supervisor.close()
    assert ends.signalled.wait(30)
    assert ends.signals == [(os.getpid(), signal.SIGTERM)]


def test_only_the_supervisor_makes_a_stop_urgent(ends: Ends) -> None:
    """X6: many signals are one; what the supervisor sends is the second call of the worker's own stop."""

    async def play() -> None:
        calls: list[int] = []
        urgent = asyncio.Event()

        def stop() -> None:
            calls.append(len(calls) + 1)
            if len(calls) == 2:
                urgent.set()

        stop_once = ends.link.once(stop)
        for _ in range(3):
            stop_once()
        assert calls == [1]
        ends.supervisor.send(URGENT)
        await asyncio.wait_for(urgent.wait(), 30)
        assert calls == [1, 2]

    asyncio.run(play())


def test_an_urgent_stop_needs_no_signal_before(ends: Ends) -> None:
    """X6: the signal may come later than the word."""

    async def play() -> None:
        calls = asyncio.Queue[None]()
        ends.link.once(lambda: calls.put_nowait(None))
        ends.supervisor.send(URGENT)
        for _ in range(2):
            await asyncio.wait_for(calls.get(), 30)

    asyncio.run(play())
    ends.supervisor.send(URGENT)  # its loop has ended: nothing happens


def test_processes_of_handlers_do_not_inherit_the_link(ends: Ends) -> None:
    """L9: neither the variable nor the socket."""
    assert VARIABLE not in os.environ
    assert not ends.link._socket.get_inheritable()


@pytest.mark.parametrize("value", [None, "", "x", "-1", "999999"])
def test_a_worker_without_a_supervisor_has_no_link(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """X5: also if the variable is left over from somewhere."""
    if value is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, value)
    assert SupervisorLink.inherited() is None


def test_messages_arrive_in_pieces_and_beside_noise() -> None:
    """L9: a supervisor that was stopped reads many at once."""
    beat = Beat(finished=1, memory=2)
    data = encoded(READY) + b"noise\n{}\n\xff\n" + encoded(beat)
    for size in (1, 7, len(data)):
        inbox = Inbox()
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert [message for piece in pieces for message in inbox.feed(piece)] == [READY, beat]


def test_a_message_shows_no_secret() -> None:
    """X5: the store's URL has a password."""
    assert "hunter2" not in f"{READY!r} {READY}"


def test_beats_come_at_least_three_times_a_lease() -> None:
    """L9: and once a second with long leases."""
    assert period(30) == 1.0
    assert 3 * period(0.3) <= 0.3
    assert resident() > 1024 * 1024
