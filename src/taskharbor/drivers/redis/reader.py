"""Reads for a step: jobs, edges, keys and sizes, each with the comparison that must still hold when the step commits.

A call reads a bounded number of jobs, because a long script holds up every worker. What was read in several calls is
of several moments; the commit compares all of it. The head of a job is read before its edges, or with them: a
step that adds an edge writes its parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from taskharbor.core.job import JobRecord
from taskharbor.core.keys import KeyRecord
from taskharbor.core.states import TERMINAL
from taskharbor.core.steps.needs import StoredEdge
from taskharbor.drivers.redis.calls import RedisCalls
from taskharbor.drivers.redis.connection import Arg
from taskharbor.drivers.redis.damage import compose
from taskharbor.drivers.redis.parts import PARTS, Head, Parts, head_of
from taskharbor.drivers.redis.scripts import load
from taskharbor.errors import StoreCorrupt

Compared = tuple[str, str, str]
LOOK = load("look")
AT_ONCE = 500
_key = msgspec.msgpack.Decoder(tuple[str, bytes, datetime | None]).decode
_keys = msgspec.msgpack.Decoder(list[str]).decode


class StoredJob(Struct, frozen=True):
    """A job as read."""

    record: JobRecord
    head: Head
    parts: Parts


class Reader:
    """The reads of one attempt at a step, and the comparisons that must still hold when it commits."""

    def __init__(self, calls: RedisCalls) -> None:
        self.calls = calls
        self.jobs: dict[str, StoredJob | None] = {}
        # By command, key and member, which may be empty; ZCARD takes none.
        self.compares: dict[Compared, bytes | None] = {}

    async def look(self, ids: Sequence[str], above: Sequence[str], below: Sequence[str]) -> list[StoredEdge]:
        """Read jobs, with edges above and below some and the jobs at their far ends; return the edges."""
        edges: list[StoredEdge] = []
        for first in range(0, max(len(ids), len(above), len(below)), AT_ONCE):
            lists = [names[first : first + AT_ONCE] for names in (ids, above, below)]
            words: list[Arg] = []
            for names in lists:
                words += (len(names), *names)
            reply = await self.calls.run(LOOK, *words)
            for id, stored in looked(reply):
                if id not in self.jobs:
                    self.jobs[id] = stored
                    self.compares["HGET", "job", id] = None if stored is None else stored.parts.job
            flat = reply[-1]
            edges += [_edge(*flat[n : n + 3]) for n in range(0, len(flat), 3)]
        return edges

    async def value(self, key: str, member: str) -> bytes | None:
        """The value of a member of a hash, which must stay as it is."""
        (found,) = await self.values(key, [member])
        return found

    async def values(self, key: str, members: Sequence[str]) -> list[bytes | None]:
        """The values of members of a hash, which must stay as they are."""
        unread = [name for name in dict.fromkeys(members) if ("HGET", key, name) not in self.compares]
        for first in range(0, len(unread), AT_ONCE):
            names = unread[first : first + AT_ONCE]
            found = await self.calls.command("HMGET", f"{self.calls.prefix}{key}", *names)
            self.compares |= {("HGET", key, name): value for name, value in zip(names, found, strict=True)}
        return [self.compares["HGET", key, name] for name in members]

    async def size(self, key: str) -> int:
        """The size of an index, which must stay as it is."""
        place = "ZCARD", key, ""
        if place not in self.compares:
            self.compares[place] = b"%d" % await self.calls.command("ZCARD", f"{self.calls.prefix}{key}")
        return int(self.compares[place] or 0)

    async def keys(self, keys: Sequence[str]) -> list[KeyRecord | None]:
        """Keys as stored."""
        found = zip(keys, await self.values("keys", keys), strict=True)
        return [None if value is None else KeyRecord(key, *_key(value)) for key, value in found]

    async def keys_of(self, workflows: Iterable[str]) -> list[str]:
        """The keys that these workflows have."""
        found = await self.values("flowkeys", list(workflows))
        return [key for value in found if value is not None for key in _keys(value)]

    async def unfinished(self, owners: Sequence[str]) -> dict[str, int]:
        """The number of unfinished jobs of each owner of a key, a job or a workflow."""
        found = await self.values("flowcounts", [f"open {owner}" for owner in owners])
        await self.look([owner for owner in dict.fromkeys(owners) if owner not in self.jobs], (), ())
        stored = [self.jobs[owner] for owner in owners]
        return {
            owner: int(number or 0) + int(job is not None and job.record.state not in TERMINAL)
            for owner, number, job in zip(owners, found, stored, strict=True)
        }

    async def kept_until(self, workflows: Iterable[str]) -> dict[str, datetime | None]:
        """Until when the last record of each workflow is kept; None while one of its jobs has not ended."""
        return {workflow: await self._kept_until(workflow) for workflow in workflows}

    async def _kept_until(self, workflow: str) -> datetime | None:
        if int(await self.value("flowcounts", f"open {workflow}") or 0):
            return None
        await self.size(f"flowends:{workflow}")
        found = await self.calls.command("ZREVRANGE", f"{self.calls.prefix}flowends:{workflow}", 0, 0)
        if not found:
            return None
        last = found[0].decode()
        await self.look([last], (), ())  # a score is not exact: a time without end is beyond every date
        stored = self.jobs[last]
        return None if stored is None else stored.record.keep_until

    async def members(self, workflow: str, most: int) -> list[JobRecord]:
        """The newest records of a workflow."""
        await self.size(f"flow:{workflow}")
        found = await self.calls.command("ZREVRANGE", f"{self.calls.prefix}flow:{workflow}", 0, most - 1)
        ids = [id.decode() for id in found]
        await self.look(ids, (), ())
        return [stored.record for id in ids if (stored := self.jobs[id]) is not None]


def looked(reply: Any) -> Iterator[tuple[str, StoredJob | None]]:
    """The jobs of a reply of the script `look`."""
    for id, *parts in zip(*reply[: 1 + len(PARTS)], strict=True):
        name = id.decode()
        if parts[0] is None:
            yield name, None
            continue
        stored = Parts(*parts)
        head = _head(name, stored)
        yield name, StoredJob(compose(name, stored, head), head, stored)


def _head(id: str, stored: Parts) -> Head:
    try:
        return head_of(stored.job)
    except ValueError as error:
        raise StoreCorrupt(f"job {id} is damaged (its head: {error}): delete its entry of the key job") from error


def _edge(child: bytes, position: bytes, value: bytes) -> StoredEdge:
    policy, satisfied, parent = value.decode().split(" ", 2)
    return StoredEdge(child.decode(), int(position), parent, policy, satisfied == "1")
