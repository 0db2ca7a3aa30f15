"""Reading in pages and mending in bites: what all parts of a repair share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from taskharbor.drivers.redis.calls import RedisCalls
from taskharbor.drivers.redis.connection import Arg
from taskharbor.drivers.redis.drafts import COMMIT, CONFLICT, RNG
from taskharbor.drivers.redis.entries import Write
from taskharbor.drivers.redis.keyspace import keys
from taskharbor.drivers.redis.parts import PARTS, Head, Parts, compose, head_of
from taskharbor.drivers.redis.reader import LOOK
from taskharbor.drivers.redis.scripts import load

T = TypeVar("T")
READ = load("read")
PAGE = 200
KEYS_PAGE = 1000
MOST_TRIES = 20
MOST_EXAMPLES = 10
Compare = tuple[str, str, str, bytes | None]  # command, key, member, value


class Misfit(Struct):
    """Something that does not fit: what, the comparisons that must still hold, and the commands that mend it, if any.

    `again`: look again when it is mended.
    """

    what: str
    compares: Sequence[Compare]
    writes: Sequence[Write]
    again: bool = False


class AuditedJob(Struct):
    """A job as read. Without a record it cannot be read: `wrong` says why."""

    id: str
    parts: dict[str, bytes | None]
    head: Head | None = None
    record: Any = None
    wrong: str = ""


class Bites:
    """Counts what does not fit, and mends it unless `dry`."""

    def __init__(self, calls: RedisCalls, *, dry: bool) -> None:
        self.calls = calls
        self.dry = dry
        self.misfits = 0
        self.examples: list[str] = []
        self.incomplete: set[str] = set()  # indexes that lacked an entry

    async def read(self, commands: Iterable[Sequence[Arg]]) -> list[Any]:
        """The replies to commands, at one moment."""
        words = [word for command in commands for word in (len(command), *command)]
        return list(await self.calls.run(READ, *words)) if words else []

    async def jobs(self, ids: Sequence[str]) -> dict[str, AuditedJob]:
        """Jobs by id, those that cannot be read as well; without those that are not there."""
        reply = await self.calls.run(LOOK, len(ids), *ids, 0, 0)
        found = (_audited(id.decode(), parts) for id, *parts in zip(*reply[: 1 + len(PARTS)], strict=True))
        return {job.id: job for job in found if job.parts["job"] is not None}

    async def pages(self, command: str, key: str, width: int) -> AsyncIterator[list[bytes]]:
        """The members of a hash, set or sorted set, by HSCAN, SSCAN or ZSCAN; `width` words belong to each."""
        cursor = b"0"
        while True:
            cursor, flat = await self.calls.command(command, f"{self.calls.prefix}{key}", cursor, "COUNT", PAGE)
            names = flat[::width]
            for first in range(0, len(names), PAGE):
                yield names[first : first + PAGE]
            if cursor == b"0":
                return

    async def pairs(self, key: str) -> AsyncIterator[dict[str, bytes]]:
        """The fields and values of a hash."""
        cursor = b"0"
        while True:
            cursor, flat = await self.calls.command("HSCAN", f"{self.calls.prefix}{key}", cursor, "COUNT", KEYS_PAGE)
            yield {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
            if cursor == b"0":
                return

    async def keys(self, *beginnings: str) -> AsyncIterator[str]:
        """The keys of the namespace with this beginning, without the namespace's prefix."""
        async for name in keys(self.calls.command, self.calls.prefix):
            if name.startswith(beginnings):
                yield name

    async def mend(self, names: Sequence[T], find: Callable[[Sequence[T]], Awaitable[list[Misfit]]]) -> None:
        """Mend what `find` finds of these: all in one bite, or one after the other if something has changed."""
        found = await find(names)
        if found and not await self._commit(found):
            for name in names:
                await self._mend_one([name], find)
        elif not self.dry and any(misfit.again for misfit in found):
            await self._mend_one(names, find)

    async def _mend_one(self, names: Sequence[T], find: Callable[[Sequence[T]], Awaitable[list[Misfit]]]) -> None:
        for attempt in range(MOST_TRIES):
            found = await find(names)
            done = not found or await self._commit(found)
            if done and (self.dry or not any(misfit.again for misfit in found)):
                return
            await self.calls.pause(CONFLICT.delay(attempt + 1, RNG))

    async def _commit(self, found: Sequence[Misfit]) -> bool:
        """Count and mend these misfits if they still hold; return whether they do."""
        compares = dict.fromkeys(compare for misfit in found for compare in misfit.compares)
        words: list[Arg] = []
        for command, key, member, value in compares:
            words += (command, key, member, int(value is not None), value or b"")
        for write in () if self.dry else [write for misfit in found for write in misfit.writes]:
            words += (len(write), *write)
        if not await self.calls.run(COMMIT, len(compares), *words):
            return False
        self.misfits += len(found)
        self.examples += [misfit.what for misfit in found[: MOST_EXAMPLES - len(self.examples)]]
        return True


def _audited(id: str, values: Sequence[bytes | None]) -> AuditedJob:
    job = AuditedJob(id, dict(zip(PARTS, values, strict=True)))
    if job.parts["job"] is None:
        return job
    try:
        job.head = head_of(job.parts["job"])
        if job.parts["card"] is None:
            job.wrong = "has no card"
        elif job.head.state == "inflight" and job.parts["claim"] is None:
            job.wrong = "is claimed, and its claim is missing"
        else:
            job.record = compose(id, Parts(**job.parts), job.head)  # type: ignore[arg-type]
    except (ValueError, KeyError) as error:
        job.wrong = f"cannot be read ({error})"
    return job


def head_is(job: AuditedJob | None, id: str) -> Compare:
    """The comparison that a job is as it was read, or still not there."""
    return "HGET", "job", id, None if job is None else job.parts["job"]
