"""Several processes on one file: no lock errors, no job lost or doubled, wake-ups, forks (D12, X1)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from taskharbor.core.job import NewJob
from taskharbor.driver import Group
from taskharbor.drivers.sqlite import SqliteDriver

T = datetime(2026, 3, 1, tzinfo=UTC)
FAR_TOO_LONG = 60.0

COMMON = """
import asyncio, json, os, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from taskharbor.core.job import NewJob
from taskharbor.core.transition import Ack
from taskharbor.driver import Group
from taskharbor.drivers import from_url
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.errors import HarborError
T, MINUTE = datetime(2026, 3, 1, tzinfo=UTC), timedelta(minutes=1)
path = Path(sys.argv[1])
def group(*ids):
    return Group(jobs=tuple(NewJob(id=id, type="t", queue="q", payload=b"{}") for id in ids))
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", COMMON + script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=FAR_TOO_LONG)
    assert process.returncode == 0, err
    assert err == ""
    return json.loads(out)


HAMMER = """
async def main(name):
    driver = await SqliteDriver.open(path)
    done = []
    for n in range(15):
        await asyncio.gather(*(driver.enqueue([group(f"{name}.{n}.{m}")], T) for m in range(4)))
        jobs = await driver.reserve(["q"], T, MINUTE, 5, name)
        acks = [Ack(id=job.id, token=job.lease.token, keep_until=T) for job in jobs]
        assert await driver.settle(acks, T) == ["ok"] * len(acks)
        done += [job.id for job in jobs]
    await driver.close()
    print(json.dumps(done))
asyncio.run(main(sys.argv[2]))
"""


def test_eight_processes_make_and_share_one_file(tmp_path: Path) -> None:
    """D12, I: all open (and make) the file at once; no process gets a lock error, every job is run exactly once."""
    processes = [start(HAMMER, tmp_path / "jobs.db", name) for name in range(8)]
    done = Counter(id for process in processes for id in end(process))

    async def rest() -> list[str]:
        driver = await SqliteDriver.open(tmp_path / "jobs.db")
        counts = await driver.counts(T)
        await driver.close()
        return [f"{it.queue} {it.done} {it.ready + it.done} {it.claimed}" for it in counts]

    assert set(done.values()) == {1}
    assert asyncio.run(rest()) == [f"q {len(done)} {8 * 15 * 4} 0"]


TELL = """
async def main():
    driver = await SqliteDriver.open(path)
    print("open", flush=True)
    sys.stdin.readline()
    await driver.enqueue([group("a")], T)
    await driver.close()
asyncio.run(main())
"""


def test_a_commit_of_another_process_is_noticed(tmp_path: Path) -> None:
    """D13: both kinds of waiting end long before their timeout."""

    async def scene() -> None:
        driver = await SqliteDriver.open(tmp_path / "jobs.db")
        process = start(TELL, tmp_path / "jobs.db")
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "open\n"
        waiting = [
            asyncio.ensure_future(driver.wait_for_work(["q"], FAR_TOO_LONG)),
            asyncio.ensure_future(driver.wait_for_end("x", FAR_TOO_LONG)),
        ]
        await asyncio.sleep(0)
        # Not through `communicate`, which would wait for the end in this thread.
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        async with asyncio.timeout(FAR_TOO_LONG / 2):
            await asyncio.gather(*waiting)
        assert (await driver.get(["a"]))[0] is not None
        await asyncio.to_thread(process.communicate)
        await driver.close()

    asyncio.run(scene())


def test_a_commit_before_the_wait_began_is_noticed_too(tmp_path: Path) -> None:
    """D13: nothing is lost between an empty reserve and the first look-out."""

    async def scene() -> None:
        one, other = [await SqliteDriver.open(tmp_path / "jobs.db") for _ in range(2)]
        await other.enqueue([Group(jobs=(NewJob(id="a", type="t", queue="q", payload=b""),))], T)
        async with asyncio.timeout(FAR_TOO_LONG / 2):
            await one.wait_for_work(["q"], FAR_TOO_LONG)
        await one.close()
        await other.close()

    asyncio.run(scene())


FORK = """
async def tried(act):
    try:
        await act
    except HarborError as error:
        return [type(error).__name__, str(error)]
    return ["fine", ""]

async def in_child(driver):
    found = {
        "get": await tried(driver.get(["a"])),
        "enqueue": await tried(driver.enqueue([group("child")], T)),
        "reserve": await tried(driver.reserve(["q"], T, MINUTE, 1, "w")),
        "wait": await tried(driver.wait_for_work(["q"], 60)),
        "close": await tried(driver.close()),
        "reopen": await tried(from_url(f"sqlite:///{path}")),
        "other file": await tried(from_url(f"sqlite:///{path}.other")),
    }
    return found

async def opened():
    driver = await SqliteDriver.open(path)
    await driver.enqueue([group("a")], T)
    return driver

loop = asyncio.new_event_loop()
driver = loop.run_until_complete(opened())
read, write = os.pipe()
child = os.fork()
if child == 0:
    found = asyncio.new_event_loop().run_until_complete(in_child(driver))
    os.write(write, json.dumps(found).encode())
    del driver
    import gc
    gc.collect()
    sys.exit(0)
_, status = os.waitpid(child, 0)
found = json.loads(os.read(read, 100_000))
found["status"] = status

async def afterwards():
    await driver.enqueue([group("b")], T)
    found["jobs"] = [job.id for job in await driver.reserve(["q"], T, MINUTE, 9, "w")]
    found["intact"] = await driver._read(lambda db: db.pragma("integrity_check"))
    await driver.close()

loop.run_until_complete(afterwards())
loop.close()

# Closed before the fork: nothing was inherited.
child = os.fork()
if child == 0:
    reopened = asyncio.run(SqliteDriver.open(path))
    loop = asyncio.new_event_loop()
    ok = loop.run_until_complete(reopened.get(["a"]))[0] is not None
    loop.run_until_complete(reopened.close())
    os._exit(0 if ok else 1)
found["closed before"] = os.waitpid(child, 0)[1]
print(json.dumps(found))
"""


def test_a_forked_child_refuses_and_the_parent_goes_on(tmp_path: Path) -> None:
    """P1: SQLite's locks do not survive a fork, so the child gets an error with the fix, and touches nothing."""
    found = end(start(FORK, tmp_path / "jobs.db"))
    for verb in ("get", "enqueue", "reserve", "wait", "reopen"):
        assert found[verb][0] == "DriverForked", (verb, found[verb])
        assert "only after the fork, call harbor.close() before it" in found[verb][1]
    assert found["close"] == ["fine", ""]
    assert found["other file"] == ["fine", ""]
    assert (found["status"], found["jobs"], found["intact"]) == (0, ["a", "b"], "ok")
    assert found["closed before"] == 0


LEAVE = """
async def main():
    driver = await SqliteDriver.open(path)
    await driver.enqueue([group("a")], T)
    waiting = asyncio.ensure_future(driver.wait_for_work(["q"], 60))
    await asyncio.sleep(0)
    waiting.cancel()
asyncio.run(main())
print(json.dumps("left"))
"""


def test_a_process_may_end_without_closing(tmp_path: Path) -> None:
    """X1: nothing hangs, and what was committed is there."""
    assert end(start(LEAVE, tmp_path / "jobs.db")) == "left"

    async def found() -> bool:
        driver = await SqliteDriver.open(tmp_path / "jobs.db")
        [job] = await driver.get(["a"])
        await driver.close()
        return job is not None

    assert asyncio.run(found())
