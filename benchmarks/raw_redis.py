"""The limit on Redis: the least that a correct leased queue asks of it, with redis-py and hiredis on one connection.

Jobs have unique ids and are in line by the time they are due, then by id. A claim of 100 and an ack of 100 are two
scripts. The claim takes jobs whose lease has lapsed before those in line, writes a token and moves them to a sorted set
by expiry; the ack compares token and expiry, and removes what it may. Enqueuing publishes a hint, as waking needs it.

`kept` is the same queue with a memory: an ack moves the ids to a sorted set by when they may go, and payloads stay.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import redis
import redis.asyncio

from benchmarks.app import arrived, ready
from benchmarks.clock import LONGEST, Sample, arepeat, payload, rate
from benchmarks.server_redis import client

BATCH = 100
LEASE = 30_000_000
LINE, INFLIGHT, PAYLOAD, TOKEN, CHANNEL = (f"{{bench}}:{it}" for it in ("line", "inflight", "payload", "token", "wake"))
KEYS = (LINE, INFLIGHT, PAYLOAD, TOKEN, "{bench}:ended")

# KEYS: line, payload, channel. ARGV: when it is due, id, payload.
ENQUEUE = """
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('PUBLISH', KEYS[3], '')
"""
# The same for many: ARGV goes on with id and payload of each.
ENQUEUE_MANY = """
local line = {}
for i = 2, #ARGV, 2 do
    line[i - 1], line[i] = ARGV[1], ARGV[i]
end
redis.call('ZADD', KEYS[1], unpack(line))
redis.call('HSET', KEYS[2], unpack(ARGV, 2))
redis.call('PUBLISH', KEYS[3], '')
"""
# KEYS: all. ARGV: now, expiry, token, how many. Returns ids and payloads.
CLAIM = """
local most = tonumber(ARGV[4])
local ids = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'LIMIT', 0, most)
if #ids < most then
    local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, most - #ids)
    if #due > 0 then
        redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #due - 1)
        for i = 1, #due do ids[#ids + 1] = due[i] end
    end
end
if #ids == 0 then return {ids, ids} end
local leases, tokens = {}, {}
for i = 1, #ids do
    leases[2 * i - 1], leases[2 * i] = ARGV[2], ids[i]
    tokens[2 * i - 1], tokens[2 * i] = ids[i], ARGV[3]
end
redis.call('ZADD', KEYS[2], unpack(leases))
redis.call('HSET', KEYS[4], unpack(tokens))
return {ids, redis.call('HMGET', KEYS[3], unpack(ids))}
"""
# KEYS: all. ARGV: now, token, ids. Returns how many were still ours.
ACK = """
local tokens = redis.call('HMGET', KEYS[4], unpack(ARGV, 3))
local leases = redis.call('ZMSCORE', KEYS[2], unpack(ARGV, 3))
local now, mine = tonumber(ARGV[1]), {}
for i = 1, #tokens do
    if tokens[i] == ARGV[2] and leases[i] and tonumber(leases[i]) > now then mine[#mine + 1] = ARGV[i + 2] end
end
if #mine > 0 then
    redis.call('ZREM', KEYS[2], unpack(mine))
    redis.call('HDEL', KEYS[4], unpack(mine))
    redis.call('HDEL', KEYS[3], unpack(mine))
end
return #mine
"""
REMOVE = "    redis.call('HDEL', KEYS[3], unpack(mine))\n"
REMEMBER = """
    local ended, until_then = {}, string.format('%.0f', now + 86400e6)
    for i = 1, #mine do ended[2 * i - 1], ended[2 * i] = until_then, mine[i] end
    redis.call('ZADD', KEYS[5], unpack(ended))
"""


class Raw:
    """A connection that knows its scripts."""

    def __init__(self, connection: Any, shas: Sequence[str]) -> None:
        self._run = connection.evalsha
        self._enqueue, self._enqueue_many, self._claim, self._ack = shas

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, kept: bool = False) -> AsyncGenerator[Raw]:
        """With its scripts loaded."""
        scripts = (ENQUEUE, ENQUEUE_MANY, CLAIM, ACK.replace(REMOVE, REMEMBER) if kept else ACK)
        connection: Any
        async with redis.asyncio.Redis.from_url(url, single_connection_client=True) as connection:
            yield cls(connection, [await connection.script_load(script) for script in scripts])

    async def enqueue(self, content: bytes) -> None:
        """One job."""
        await self._run(self._enqueue, 3, LINE, PAYLOAD, CHANNEL, now(), new_id(), content)

    async def enqueue_many(self, contents: Sequence[bytes], batch: int = BATCH) -> None:
        """Jobs in batches, made within the time, as they would be."""
        due = now()
        for first in range(0, len(contents), batch):
            words = [word for content in contents[first : first + batch] for word in (new_id(), content)]
            await self._run(self._enqueue_many, 3, LINE, PAYLOAD, CHANNEL, due, *words)

    async def turn(self, batch: int = BATCH, act: Callable[[bytes], None] | None = None) -> int:
        """Claim a batch, do what is to be done with each payload, acknowledge it; how many there were."""
        token, at = secrets.token_bytes(8), now()
        ids, payloads = await self._run(self._claim, len(KEYS), *KEYS, at, at + LEASE, token, batch)
        if act is not None:
            for content in payloads:
                act(content)
        if ids and await self._run(self._ack, len(KEYS), *KEYS, now(), token, *ids) != len(ids):
            raise RuntimeError("a lease was lost")
        return len(ids)


def now() -> int:
    """Microseconds."""
    return time.time_ns() // 1000


def new_id() -> bytes:
    """An id that sorts by its time."""
    return time.time_ns().to_bytes(8, "big") + secrets.token_bytes(8)


def enqueue_single(url: str, seconds: float) -> Sample:
    """One script after another."""

    async def main() -> Sample:
        async with Raw.open(url) as raw:
            return await arepeat(seconds, lambda number: raw.enqueue(payload(number)))

    return asyncio.run(main())


def enqueue_batch(url: str, jobs: int, times: int = 3) -> Sample:
    """Many, a hundred to a script, a few times."""

    async def main() -> Sample:
        async with Raw.open(url) as raw:
            payloads = [payload(number) for number in range(jobs)]
            begun = time.perf_counter()
            for _ in range(times):
                await raw.enqueue_many(payloads)
            return rate(jobs * times, time.perf_counter() - begun)

    return asyncio.run(main())


def drain(url: str, jobs: int, batch: int = BATCH, kept: bool = False) -> Sample:
    """Claim and acknowledge until nothing is left."""

    async def main() -> Sample:
        async with Raw.open(url, kept) as raw:
            await raw.enqueue_many([payload(number) for number in range(jobs)])
            done, begun = 0, time.perf_counter()
            while time.perf_counter() < begun + LONGEST and (taken := await raw.turn(batch)):
                done += taken
            return rate(done, time.perf_counter() - begun)

    return asyncio.run(main())


def memory(url: str, jobs: int) -> Sample:
    """The growth of the server's memory for each job that waits."""

    async def main() -> None:
        async with Raw.open(url) as raw:
            await raw.enqueue_many([payload(number) for number in range(jobs)])

    before = used(url)
    asyncio.run(main())
    return {"bytes": (used(url) - before) / jobs, "jobs": jobs}


def used(url: str) -> int:
    """The bytes that the server has in use, but for its buffers."""
    with client(url) as asked:
        found = asked.info("memory")
    return int(found["used_memory"] - found["mem_clients_normal"] - found["mem_aof_buffer"])


# latency


async def send(url: str, pauses: Iterable[float]) -> None:
    """Enqueue jobs that say when they were sent."""
    async with Raw.open(url) as raw:
        for pause in pauses:
            await asyncio.sleep(pause)
            await raw.enqueue(b"%f" % time.monotonic())


async def listen(url: str) -> None:
    """SUBSCRIBE on one connection, claim and acknowledge on another, for ever."""
    hints: Any = redis.asyncio.Redis.from_url(url).pubsub()
    await hints.subscribe(CHANNEL)
    async with Raw.open(url) as raw:
        ready()
        while True:
            while await raw.turn(act=lambda content: arrived(float(content))):
                pass
            await hints.get_message(timeout=None)


if __name__ == "__main__":
    asyncio.run(listen(sys.argv[1]))
