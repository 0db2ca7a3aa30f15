"""The batch thread: runs the requests of event loops on the connection, in whole batches.

A switch between threads costs more than the work of a job, so requests are not handed over one by one: the thread takes
all that arrived while it was busy, and wakes each event loop once with their answers. Callers that block take turns
with it on the same connection (`turns.py`). While a caller waits for news the thread watches for the commits of other
processes; otherwise it sleeps.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import apsw

from taskharbor.drivers.sqlite import batch, fork
from taskharbor.drivers.sqlite.batch import Awaited, Request, RequestResult
from taskharbor.drivers.sqlite.connection import BusyHandler, open_store
from taskharbor.drivers.sqlite.files import Files, Identity
from taskharbor.drivers.sqlite.turns import Blocked, Turns
from taskharbor.drivers.sqlite.watch import CommitWatcher
from taskharbor.drivers.sqlite.writeback import WriteBack, fdatasync
from taskharbor.drivers.wakeup import Wakeup
from taskharbor.errors import DriverClosed, DriverForked, DriverUnavailable, StoreGone

INSIDE = (
    "this thread is inside a transaction of the store already, which a signal handler or a finalizer interrupted: "
    "nothing was stored. Set a flag there, and enqueue where the flag is checked"
)

AwaitedAnswer = tuple["asyncio.Future[Any]", RequestResult]


class ThreadMessage(Enum):
    """Other messages to the thread: a caller began to wait for news, there may be news, or stop."""

    LISTEN = 1
    NEWS = 2
    STOP = 3


class BatchThread:
    """Owns the connection. `work` and `ends` are woken after commits of this process and of others."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self.path = path.absolute()
        self.db: apsw.Connection | None = None
        self.file: Identity | None = None
        self.forked = False
        self.work = Wakeup()
        self.ends = Wakeup()
        self._synchronous = synchronous
        self._queue: SimpleQueue[Awaited | ThreadMessage] = SimpleQueue()
        self._entry = threading.Lock()
        self._turns = Turns(self._answers)
        self._in_sqlite = self._turns.lock
        self._busy_handler = BusyHandler()
        self._watcher: CommitWatcher | None = None
        self._write_back: WriteBack | None = None
        self._closed = False
        self._ended = False
        self._files: Files | None = None
        self._gone: str | None = None
        self._farewells: list[asyncio.Future[Any]] = []
        self._listeners = 0
        self._seen = 0
        self._thread = threading.Thread(target=self._run, name=f"taskharbor {path.name}", daemon=True)

    # called from any thread and event loop

    async def open(self) -> None:
        """Start the thread; returns when the file is open."""
        fork.refuse_inherited(self.path)
        fork.holders.add(self)
        self._opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._thread.start()
        try:
            await self._opened
        except BaseException:
            self._stop()
            raise

    def check(self) -> None:
        """Raise unless the store can be used."""
        if self.forked:
            raise DriverForked(f"this driver was opened before the process was forked: {fork.FIX}")
        if self._closed:
            raise DriverClosed("this sqlite driver was closed")
        if self._gone is not None:
            raise StoreGone(self._gone)

    def check_files(self) -> None:
        """Raise unless the store can be used, and its file is still there at this moment."""
        self.check()
        if self._files is not None and (wrong := self._files.wrong()) is not None:
            raise StoreGone(wrong)

    def run_blocking(self, request: Blocked) -> Any:
        """Run a request in the calling thread, or let the thread that has its turn run it."""
        self.check()
        result, error = self._inside(request) if self._turns.is_inside else self._turns.take(request)
        if error is not None:
            raise error
        for wakeup in request.wakes:
            wakeup.wake()
        return result

    def _inside(self, request: Blocked) -> RequestResult:
        """Run a request of a signal handler or a finalizer, but never as part of the transaction it interrupted."""
        if self.db is not None and self.db.in_transaction:
            raise DriverUnavailable(INSIDE)
        return self._answers([request], request.deadline)[0]

    def submit(self, request: Awaited) -> None:
        """Hand over a request; its future gets the answer."""
        self.check()
        with self._entry:
            self.check()
            self._queue.put(request)

    async def listen(self, wakeup: Wakeup, timeout: float) -> None:
        """Wait for a wake-up or `timeout` seconds."""
        self.check()
        with self._entry:
            self._listeners += 1
            self._queue.put(ThreadMessage.LISTEN)
        try:
            await wakeup.wait(timeout)
        finally:
            with self._entry:
                self._listeners -= 1

    async def close(self) -> None:
        """Finish pending requests, then close the file and end the thread."""
        if self.forked:
            return
        self._stop()
        farewell = asyncio.get_running_loop().create_future()
        with self._entry:
            if self._ended:
                farewell.set_result(None)
            else:
                self._farewells.append(farewell)
        await farewell
        self._thread.join()

    def _stop(self) -> None:
        with self._entry:
            if not self._closed:
                self._closed = True
                self._queue.put(ThreadMessage.STOP)

    def hold_still(self, timeout: float) -> bool:
        """Keep out of SQLite while the process forks."""
        return self._in_sqlite.acquire(timeout=timeout)

    def go_on(self) -> None:
        """Continue after the fork."""
        self._in_sqlite.release()

    # the thread itself

    def _run(self) -> None:
        try:
            with self._in_sqlite:
                db, self.file = open_store(self.path, self._synchronous, self._busy_handler)
                self.db = db
                looks = db.cursor()
                self._seen = _data_version(looks)
                self._files = files = Files(self.path, self.file, db)
            watcher = self._watcher = CommitWatcher(Path(db.filename_wal), lambda: self._queue.put(ThreadMessage.NEWS))
            try:
                if self._synchronous == "normal" and fdatasync is not None:
                    self._write_back = WriteBack(db.filename_wal)
                _post([(self._opened, (None, None))])
                while self._turn(looks, files, watcher):
                    pass
            finally:
                watcher.close()
                if self._write_back is not None:
                    self._write_back.close()
        except BaseException as error:
            self._end()
            _post([(self._opened, (None, error))])
        else:
            self._end()

    def _turn(self, looks: apsw.Cursor, files: Files, watcher: CommitWatcher) -> bool:
        requests, stop = self._take(watcher)
        if self._gone is None and (requests or self._listeners):
            self._close_if(files.wrong_now_and_then())
        if requests:
            answers = self._turns.serve(requests)
            _post((it.future, answer) for it, answer in zip(requests, answers, strict=True))
            _wake(*dict.fromkeys(wakeup for it in requests for wakeup in it.wakes))
        if self._listeners and self._gone is None:
            self._look(looks, watcher)
        return not stop

    def _answers(self, requests: Sequence[Request], deadline: float) -> Sequence[RequestResult]:
        """The answers to a batch, in the thread that has its turn. No write is confirmed that other processes cannot
        see, but for those of blocking callers within a moment."""
        answers: Sequence[RequestResult] = ()
        db, files = self.db, self._files
        if db is not None and files is not None:
            self._busy_handler.deadline = deadline
            answers = batch.run(db, self.path, requests)
            for it in requests:
                if it.writes:
                    self._wrote(files, deadline)
                    break
        elif self._gone is None:
            return [(None, DriverClosed("this sqlite driver was closed")) for _ in requests]
        gone = self._gone
        return answers if gone is None else [(None, StoreGone(gone)) for _ in requests]

    def _wrote(self, files: Files, deadline: float) -> None:
        """Note a commit, and check that it went to a file that other processes see."""
        if self._watcher is not None:
            self._watcher.wrote()
        if self._write_back is not None:
            self._write_back.wrote()
        is_batch = deadline == math.inf  # of the thread itself, which many requests share
        if (wrong := files.wrong() if is_batch else files.wrong_a_moment_ago()) is not None:
            self._close_if(wrong)

    def _close_if(self, wrong: str | None) -> None:
        """Close a file that was moved or deleted, and wake all waiters: their next call raises."""
        if wrong is not None:
            with self._in_sqlite:
                self._let_go()
            self._gone = wrong
            _wake(self.work, self.ends)

    def _take(self, watcher: CommitWatcher) -> tuple[list[Awaited], bool]:
        """All waiting requests, and whether to stop after them."""
        requests: list[Awaited] = []
        stop = False
        try:
            item = self._queue.get(timeout=watcher.poll_interval() if self._listeners else None)
            while True:
                if isinstance(item, Awaited):
                    requests.append(item)
                elif item is ThreadMessage.NEWS:
                    watcher.notified()
                stop = stop or item is ThreadMessage.STOP
                if self._queue.empty():
                    break
                item = self._queue.get()
        except Empty:
            pass
        return requests, stop

    def _look(self, looks: apsw.Cursor, watcher: CommitWatcher) -> None:
        """Wake waiters when another process has committed. Without waiters, the last seen version stays."""
        if not (self.work.awaited or self.ends.awaited) or not watcher.should_look():
            return
        if not self._in_sqlite.acquire(blocking=False):
            return  # a caller has its turn: look a little later
        try:
            version = _data_version(looks)
        except apsw.Error:
            return
        finally:
            self._in_sqlite.release()
        if version != self._seen:
            self._seen = version
            watcher.found()
            _wake(self.work, self.ends)

    def _end(self) -> None:
        with self._in_sqlite:
            self._let_go()
            fork.holders.discard(self)
        with self._entry:
            self._closed = self._ended = True
            farewells, self._farewells = self._farewells, []
        _wake(self.work, self.ends)
        self._refuse_rest()
        _post((farewell, (None, None)) for farewell in farewells)

    def _let_go(self) -> None:
        """Close the connection. A file that was moved is complete without its log, which SQLite leaves where it is."""
        if self.db is not None:
            with suppress(apsw.Error):
                if self._files is not None and self._files.is_away():
                    self.db.wal_checkpoint()
            with suppress(apsw.Error):
                self.db.close()
        self.db = self.file = None

    def _refuse_rest(self) -> None:
        """Refuse the remaining requests: there are some only if this thread failed."""
        while not self._queue.empty():
            item = self._queue.get()
            if isinstance(item, Awaited):
                _post([(item.future, (None, DriverUnavailable(f"the thread of {self.path} broke down")))])


def _data_version(looks: apsw.Cursor) -> int:
    """A number that changes when another connection commits."""
    version: int = looks.execute("PRAGMA data_version").get
    return version


def _wake(*wakeups: Wakeup) -> None:
    for wakeup in wakeups:
        try:
            wakeup.wake()
        except RuntimeError:
            # The waiter's loop was closed at this moment.
            continue


def _post(replies: Iterable[AwaitedAnswer]) -> None:
    """RequestResult futures, waking each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[AwaitedAnswer]] = {}
    for reply in replies:
        by_loop.setdefault(reply[0].get_loop(), []).append(reply)
    for loop, own in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver, own)
        except RuntimeError:
            # The loop was closed: no caller waits there.
            continue


def _deliver(replies: list[AwaitedAnswer]) -> None:
    for future, (result, error) in replies:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
