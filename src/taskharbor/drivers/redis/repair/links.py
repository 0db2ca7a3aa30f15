"""Dependencies from both sides, and idempotency keys."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from taskharbor.drivers.redis.parts import head_of
from taskharbor.drivers.redis.repair.bites import Bites, Misfit
from taskharbor.drivers.redis.repair.jobs import marked

UP, DOWN = "up:", "down:"
_key = msgspec.msgpack.Decoder(tuple[str, bytes, msgspec.Raw]).decode


async def check(bites: Bites) -> None:
    """Edges that only one side knows, or whose job is not there; keys whose owner is not there."""
    async for key in bites.keys(UP, DOWN):
        if key.startswith(UP):
            await _above(bites, key.removeprefix(UP))
        else:
            await _below(bites, key.removeprefix(DOWN))
    async for names in bites.pages("HSCAN", "keys", 2):
        await bites.mend([name.decode() for name in names], lambda keys: _owners(bites, keys))


async def _above(bites: Bites, child: str) -> None:
    """The dependencies of a job: the other side must know them, and leave the end of that job to steps."""

    async def find(positions: Sequence[str]) -> list[Misfit]:
        head, *values = await bites.read([("HGET", "job", child), *(("HGET", f"{UP}{child}", it) for it in positions)])
        edges = [(it, value) for it, value in zip(positions, values, strict=True) if value is not None]
        if head is None:
            return [
                Misfit(
                    f"dependency {it} of job {child}, which is not there",
                    [("HGET", "job", child, None), ("HGET", f"{UP}{child}", it, value)],
                    [("HDEL", f"{UP}{child}", it), ("SREM", f"{DOWN}{_parent(value)}", f"{it} {child}")],
                )
                for it, value in edges
            ]
        return await _other_side(bites, child, edges)

    async for positions in bites.pages("HSCAN", f"{UP}{child}", 2):
        await bites.mend([position.decode() for position in positions], find)


async def _other_side(bites: Bites, child: str, edges: Sequence[tuple[str, bytes]]) -> list[Misfit]:
    parents = [_parent(value) for _, value in edges]
    replies = await bites.read(
        [(("SISMEMBER", f"{DOWN}{parent}", f"{it} {child}")) for (it, _), parent in zip(edges, parents, strict=True)]
        + [("HGET", "job", parent) for parent in parents]
    )
    found: list[Misfit] = []
    for (it, value), parent, known, head in zip(edges, parents, replies, replies[len(edges) :], strict=False):
        same = [("HGET", f"{UP}{child}", it, value), ("HGET", "job", parent, head)]
        mark = [] if head is None or (read := head_of(head)).cold else [marked(parent, read)]
        if not known or mark:
            known_now = [("SADD", f"{DOWN}{parent}", f"{it} {child}")]
            found.append(Misfit(f"job {parent} does not know that {child} waits for it", same, [*known_now, *mark]))
    return found


async def _below(bites: Bites, parent: str) -> None:
    """The jobs that wait for a job."""

    async def find(places: Sequence[str]) -> list[Misfit]:
        edges = [place.partition(" ") for place in places]
        values = await bites.read([("HGET", f"{UP}{child}", position) for position, _, child in edges])
        return [
            Misfit(
                f"job {parent} is waited for by {child}, which does not",
                [("HGET", f"{UP}{child}", position, value)],
                [("SREM", f"{DOWN}{parent}", f"{position} {child}")],
            )
            for (position, _, child), value in zip(edges, values, strict=True)
            if value is None or _parent(value) != parent
        ]

    async for places in bites.pages("SSCAN", f"{DOWN}{parent}", 1):
        await bites.mend([place.decode() for place in places], find)


def _parent(value: bytes) -> str:
    return value.decode().split(" ", 2)[2]


async def _owners(bites: Bites, keys: Sequence[str]) -> list[Misfit]:
    values = await bites.read([("HGET", "keys", key) for key in keys])
    owners = {key: (value, _key(value)[0]) for key, value in zip(keys, values, strict=True) if value is not None}
    replies = await bites.read(
        [("HGET", "job", owner) for _, owner in owners.values()]
        + [("ZCARD", f"flow:{owner}") for _, owner in owners.values()]
    )
    return [
        Misfit(
            f"the key {key!r} belongs to {owner}, which is not there",
            [("HGET", "keys", key, value), ("HGET", "job", owner, None), ("ZCARD", f"flow:{owner}", "", b"0")],
            [("HDEL", "keys", key), ("HDEL", "flowkeys", owner)],
        )
        for (key, (value, owner)), head, size in zip(owners.items(), replies, replies[len(owners) :], strict=False)
        if head is None and not size
    ]
