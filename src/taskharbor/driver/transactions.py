"""Transactions that hold other writes beside the driver's own."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from taskharbor.core.group import Group, GroupResult
from taskharbor.core.lease import Verdict
from taskharbor.core.transition import Transition

R = TypeVar("R")


class Transaction(Protocol):
    """An open transaction, and the verbs that can take part in it.

    With `blocks`, it belongs to the calling thread and these coroutines never wait for an event loop: `at_once` runs
    them.
    """

    @property
    def handle(self) -> object:
        """The object that the transaction's owner works with, such as a connection."""
        ...

    @property
    def blocks(self) -> bool:
        """Whether the handle is used by blocking calls."""
        ...

    async def enqueue(self, groups: Sequence[Group], now: datetime) -> list[GroupResult]:
        """`Driver.enqueue`, if the transaction commits. A refused group leaves the transaction as it was."""
        ...

    async def settle(self, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
        """`Driver.settle`, if the transaction commits; no other transaction can touch these jobs until it ends."""
        ...


class OwnTransaction(Transaction, Protocol):
    """A transaction that the driver began."""

    async def commit(self) -> None:
        """Commit. After an error it may have happened or not."""
        ...


@runtime_checkable
class Within(Protocol):
    """Transactions that hold other writes beside the driver's own: they happen together or not at all (D13).

    `within` is called by `enqueue` with `tx=`, the other two by `current().transaction()` in a handler. A driver that
    can only join transactions raises `CapabilityMissing` in those two.
    """

    def within(self, tx: object) -> Transaction:
        """The open transaction of a handle of the caller's own; `InvalidJob` if it is not of a kind that is known."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[OwnTransaction]:
        """A new transaction for the block, rolled back at its end unless it was committed."""
        ...

    def transaction_blocking(self) -> AbstractContextManager[OwnTransaction]:
        """The same with a handle for blocking calls in this thread."""
        ...


def at_once(coroutine: Coroutine[Any, Any, R]) -> R:
    """Return the result of a coroutine that never waits, such as those of a `Transaction` that blocks."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast(R, end.value)
    coroutine.close()
    raise RuntimeError("a coroutine that should end at once waits for an event loop")
