"""A running job as three objects, each with one owner that writes it.

- `HeldLease`, the claim on the job: written by the keeper in its own thread; `lost` by `lose`, from any thread.
- `JobRun`, one attempt to run the handler: written by the worker and its executor, on the worker's loop. Exceptions:
  the thread that runs a job writes `begun`, `started_at`, `ends_by`, `ended`, `thread` and `returned_at`, which are the
  loop's again when it has the outcome; the thread that ends a run in a process by force writes `stop_request` and
  `returned_at` before that; and the first effect replaces `effects`.
- `Effects`, what the handler asks for: written through `current()`, from any thread of the handler.

Everything else reads them. Times are on the loop's monotonic clock unless they are a `datetime`.
"""

from __future__ import annotations

import asyncio
import math
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from taskharbor.core.job import JobRecord, NewJob, Progress
from taskharbor.core.transition import Ack

if TYPE_CHECKING:
    from taskharbor.client.client import Client

Stop = Literal["lost", "timeout", "cancel", "dead_letter", "shutdown"]
_making_effects = threading.Lock()


class HeldLease(Struct, eq=False, gc=False):
    """The claim on a job. `deadline` is when it ends unless renewed; `lost` says that it has ended or was refused.

    The rest is what the keeper has reported: the start and the progress that the store knows, since when there is
    something newer (`news_since`), and whether an overrun was logged.
    """

    token: str
    deadline: float
    lost: bool = False
    reported_start: datetime | None = None
    reported_progress: Progress | None = None
    news_since: float | None = None
    overrun: bool = False

    def lose(self) -> None:
        """Mark it as lost, from any thread: the outcome of its run is not written."""
        self.lost = True


class Effects(Struct, eq=False, gc=False):
    """The effects that a handler asked for. `settled` is the Ack that its own transaction has committed."""

    new_jobs: tuple[NewJob, ...] = ()
    progress: Progress | None = None
    result: bytes | None = None
    in_transaction: bool = False
    settled: Ack | None = None


NO_EFFECTS = Effects()
"""The effects that every run begins with: never written, most handlers ask for nothing."""


class JobRun(Struct, eq=False, gc=False):
    """One run of a claimed job, from the claim until its outcome is stored.

    `task` runs the handler, from `begun` to `ended`; None if a thread does it alone. `settling`: the outcome is on its
    way to the store. `abandoned`: the worker has stopped waiting for the handler. `ends_by` is when the timeout passes.
    `thread` runs a `def` handler, `returned_at` is when it ended, if the loop has not taken its result yet.
    `in_process`: a process that can be killed runs the handler; `process` ends it, once the process has the job.
    """

    job: JobRecord
    lease: HeldLease
    host: Host
    effects: Effects
    task: asyncio.Task[None] | None = None
    begun: bool = False
    ended: bool = False
    stop_request: Stop | None = None
    abandoned: bool = False
    settling: bool = False
    started_at: datetime | None = None
    ends_by: float = math.inf
    returned_at: float = math.inf
    thread: int | None = None
    in_process: bool = False
    process: Stoppable | None = None

    @property
    def stop(self) -> Stop | None:
        """Why the run should end, None if it should go on. A lost lease takes precedence over other reasons."""
        return "lost" if self.lease.lost else self.stop_request

    @property
    def has_news(self) -> bool:
        """Whether the store does not know yet that the run has started, or its latest progress."""
        lease = self.lease
        return not self.ended and (
            self.started_at is not lease.reported_start or self.effects.progress is not lease.reported_progress
        )

    def own_effects(self) -> Effects:
        """The effects to write to, made by the first call."""
        if self.effects is NO_EFFECTS:
            with _making_effects:
                if self.effects is NO_EFFECTS:
                    self.effects = Effects()
        return self.effects

    def notice_timeout(self, time: float) -> None:
        """Ask for the end of a run whose timeout has passed while a blocked loop could not call the timer."""
        if self.ends_by <= time and self.stop is None:
            self.stop_request = "timeout"


class Stoppable(Protocol):
    """The process of a run. May be called from any thread, also when the run has ended."""

    def stop(self, reason: Stop | None) -> None:
        """Ask the run to end, and kill the process if it goes on."""
        ...


class Host(Protocol):
    """The worker as its runs see it. All of it may be called from any thread."""

    @property
    def client(self) -> Client:
        """The client that jobs are enqueued with."""
        ...

    def request_stop(self, run: JobRun, stop: Stop) -> None:
        """Ask the run to end, on the worker's loop."""
        ...

    def hold(self, run: JobRun) -> None:
        """Renew its lease again."""
        ...

    def let_go(self, run: JobRun) -> None:
        """Stop renewing its lease, without giving it up."""
        ...

    def noted(self, run: JobRun) -> None:
        """Its handler has reported progress, or settled it by a transaction: the effects say so."""
        ...

    def acknowledge(self, run: JobRun) -> Ack:
        """The transition that makes the job done now, with the run's effects."""
        ...
