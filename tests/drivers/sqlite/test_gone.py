"""The file deleted, moved or replaced while it is open: an error, never work that no other process sees (X9)."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import apsw
import pytest

from taskharbor import Harbor
from taskharbor.core.job import NewJob
from taskharbor.driver import Group
from taskharbor.drivers.sqlite import SqliteDriver, files
from taskharbor.drivers.sqlite.files import Files, identity
from taskharbor.errors import DriverClosed, StoreGone

T = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
FAR_TOO_LONG = 60.0
P = ParamSpec("P")


def group(*ids: str) -> Group:
    return Group(jobs=tuple(NewJob(id=id, type="t", queue="q", payload=b"{}") for id in ids))


async def make_store(path: Path, *ids: str) -> None:
    driver = await SqliteDriver.open(path)
    await driver.enqueue([group(*ids)], T)
    await driver.close()


async def stored(path: Path, *ids: str) -> list[bool]:
    driver = await SqliteDriver.open(path)
    try:
        return [job is not None for job in await driver.get(ids)]
    finally:
        await driver.close()


def awaited(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """An async test, in real time: the thread of the driver knows no other."""

    @wraps(test)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(FAR_TOO_LONG):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return wrapped


def delete(path: Path) -> None:
    path.unlink()


def delete_all(path: Path) -> None:
    for each in path.parent.glob("*"):
        each.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


def replace(path: Path) -> None:
    path.with_name("other.db").replace(path)


def move_back(path: Path) -> None:
    path.with_name("moved.db").rename(path)


def list_of(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def turn_link(path: Path) -> None:
    """The name was a link to the file, and is one to another file now."""
    path.with_name("link").symlink_to("other.db")
    path.with_name("link").replace(path)


def delete_log(path: Path) -> None:
    Path(f"{path.resolve()}-wal").unlink()


# The file that is missed, by the name under which it was looked for.
NAMED = r"(jobs\.db|real\.db-wal)"
TAKEN: list[Callable[[Path], None]] = [delete, delete_all, delete_log, move, move_folder, replace, turn_link]
taken = pytest.mark.parametrize("take_away", TAKEN, ids=[each.__name__ for each in TAKEN])


async def opened(tmp_path: Path, *ids: str) -> tuple[Path, SqliteDriver]:
    """A store with these jobs, by the name of a link, and another one beside it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "jobs.db"
    path.symlink_to("real.db")
    (folder / "real.db").touch()
    await make_store(folder / "other.db", "other")
    driver = await SqliteDriver.open(path)
    await driver.enqueue([group(*ids)], T)
    return path, driver


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call looks at the files."""
    monkeypatch.setattr(files, "LOOK_EVERY", 0.0)


@pytest.fixture
def every_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocking writes look at the files, however short ago the last one did."""
    monkeypatch.setattr(files, "A_MOMENT", 0.0)


@taken
@awaited
async def test_every_acknowledged_write_is_visible_to_others(take_away: Callable[[Path], None], tmp_path: Path) -> None:
    """X9: the very first write after it is refused, and everything from then on."""
    path, driver = await opened(tmp_path, "a")
    take_away(path)
    with pytest.raises(StoreGone, match=rf"{NAMED} was (deleted or moved|replaced).*put the right file in its place"):
        await driver.enqueue([group("b")], T)
    with pytest.raises(StoreGone):
        await driver.get(["a"])
    with pytest.raises(StoreGone):
        await driver.wait_for_work(["q"], FAR_TOO_LONG)
    with pytest.raises(StoreGone):
        driver.within(object())
    await driver.close()
    with pytest.raises(DriverClosed):
        await driver.get(["a"])


@pytest.mark.usefixtures("at_once")
@taken
@awaited
async def test_a_reader_finds_out_too(take_away: Callable[[Path], None], tmp_path: Path) -> None:
    """X9: also if only the log is gone, in which others would write elsewhere."""
    path, driver = await opened(tmp_path, "a")
    take_away(path)
    with pytest.raises(StoreGone):
        await driver.get(["a"])
    await driver.close()


@awaited
async def test_all_files_are_looked_at_from_time_to_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X9: at most every half second, which is within seconds."""
    path, driver = await opened(tmp_path)
    known = driver._thread._files
    assert known is not None
    delete_log(path)
    monkeypatch.setattr(files, "LOOK_EVERY", FAR_TOO_LONG)
    assert known.wrong_now_and_then() is None
    monkeypatch.undo()
    assert files.LOOK_EVERY <= 1
    monkeypatch.setattr(files, "LOOK_EVERY", 0.0)
    assert "real.db-wal was deleted" in (known.wrong_now_and_then() or "")
    await driver.close()


def test_blocking_writes_share_a_look_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X9: the first write after it is refused, which is within seconds."""
    path = tmp_path / "jobs.db"
    harbor = Harbor(f"sqlite:///{path}")

    @harbor.task
    def work() -> None: ...

    work.enqueue()
    assert files.A_MOMENT <= 0.01
    monkeypatch.setattr(files, "A_MOMENT", FAR_TOO_LONG)
    path.unlink()
    work.enqueue()
    monkeypatch.setattr(files, "A_MOMENT", 0.0)
    with pytest.raises(StoreGone):
        work.enqueue()
    harbor.close()


@pytest.mark.usefixtures("at_once")
@taken
@awaited
async def test_a_caller_that_only_waits_is_woken(take_away: Callable[[Path], None], tmp_path: Path) -> None:
    """X9: without any call."""
    path, driver = await opened(tmp_path, "a")
    waiting = [
        asyncio.ensure_future(driver.wait_for_work(["q"], FAR_TOO_LONG)),
        asyncio.ensure_future(driver.wait_for_end("a", FAR_TOO_LONG)),
    ]
    await asyncio.sleep(0)
    take_away(path)
    async with asyncio.timeout(FAR_TOO_LONG / 2):
        await asyncio.gather(*waiting)
    with pytest.raises(StoreGone):
        await driver.next_due(["q"])
    await driver.close()


@awaited
async def test_requests_that_were_on_their_way_are_refused(tmp_path: Path) -> None:
    """X9: all callers of a batch."""
    path, driver = await opened(tmp_path, "a")
    delete(path)
    asked = [driver.enqueue([group("b")], T), driver.get(["a"]), driver.reserve(["q"], T, MINUTE, 1, "w")]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(answers[0], StoreGone)
    assert isinstance(answers[2], StoreGone)
    await driver.close()


@awaited
async def test_a_transaction_of_the_applications_is_refused(tmp_path: Path) -> None:
    """X9, D13 (Within): at the moment of the call."""
    path, driver = await opened(tmp_path)
    connection = apsw.Connection(str(path))
    with connection:
        await driver.within(connection).enqueue([group("a")], T)
    replace(path)
    with connection, pytest.raises(StoreGone):
        driver.within(connection)
    connection.close()
    await driver.close()


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("noticed", [False, True])
@awaited
async def test_the_log_of_another_file_is_left_alone(noticed: bool, tmp_path: Path) -> None:
    """X9: SQLite would remove it by its name when the old file is closed, with all that was committed to it."""
    path, driver = await opened(tmp_path, "a")
    delete_all(path)
    new = await SqliteDriver.open(path)
    await new.enqueue([group("b")], T)
    if noticed:
        with pytest.raises(StoreGone):
            await driver.get(["a"])
    await driver.close()
    assert Path(f"{path}-wal") in list_of(path.parent)
    await new.enqueue([group("c")], T)
    assert await stored(path, "a", "b", "c") == [False, True, True]
    await new.close()


@pytest.mark.usefixtures("at_once")
@awaited
async def test_a_moved_file_has_all_that_was_acknowledged(tmp_path: Path) -> None:
    """X9: the log is written into it before it is let go."""
    path = tmp_path / "jobs.db"
    driver = await SqliteDriver.open(path)
    await driver.enqueue([group("a")], T)
    move(path)
    with pytest.raises(StoreGone):
        await driver.get(["a"])
    await driver.close()
    assert await stored(path.with_name("moved.db"), "a") == [True]
    move_back(path)
    assert await stored(path, "a") == [True]


@awaited
async def test_a_new_file_can_be_opened_afterwards(tmp_path: Path) -> None:
    """X9: by the same process, while the old driver is still there."""
    path, driver = await opened(tmp_path, "a")
    replace(path)
    with pytest.raises(StoreGone):
        await driver.pause("q", True)
    assert await stored(path, "other") == [True]
    await driver.close()
    assert await stored(path, "other") == [True]


@pytest.mark.usefixtures("at_once")
@awaited
async def test_the_name_of_a_descriptor_is_not_a_path(tmp_path: Path) -> None:
    """X9: the file is minded where it is, also when the descriptor is closed."""
    path = tmp_path / "jobs.db"
    await make_store(path)
    descriptor = os.open(path, os.O_RDWR)
    driver = await SqliteDriver.open(Path(f"/dev/fd/{descriptor}"))
    await driver.enqueue([group("a")], T)
    assert await driver.get(["b"]) == [None]
    delete(path)
    with pytest.raises(StoreGone, match=r"jobs\.db was deleted"):
        await driver.get(["a"])
    await driver.close()
    os.close(descriptor)


@awaited
async def test_what_cannot_be_looked_at_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X9: such as a folder that may no longer be searched."""
    path = tmp_path / "jobs.db"
    await make_store(path)
    db = apsw.Connection(str(path))
    known = Files(path, identity(path), db)

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(files, "identity", refused)
    assert known.wrong() is None
    assert not known.is_away()
    db.close()


@awaited
async def test_a_file_replaced_while_it_is_opened_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X9: the two cannot be distinguished."""
    path = tmp_path / "jobs.db"
    await make_store(path)
    await make_store(path.with_name("other.db"))
    connect = apsw.Connection

    def meanwhile(*args: object, **options: object) -> apsw.Connection:
        db = connect(*args, **options)  # type: ignore[arg-type]
        path.with_name("other.db").replace(path)
        return db

    monkeypatch.setattr(apsw, "Connection", meanwhile)
    with pytest.raises(StoreGone, match="while it was being opened"):
        await SqliteDriver.open(path)


@taken
@awaited
async def test_an_idle_worker_ends_with_an_error(
    take_away: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """X9: within seconds, by itself, with an ERROR that names the file."""
    path, driver = await opened(tmp_path)
    await driver.close()
    harbor = Harbor(f"sqlite:///{path}")
    await harbor.adriver()
    working = asyncio.ensure_future(harbor.arun_worker())
    await asyncio.sleep(0)
    take_away(path)
    with pytest.raises(StoreGone):
        await working
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert any(re.search(f"{NAMED} was", each) for each in said)
    assert any(each.startswith("upkeep.failed: farewell: ") for each in said)
    await harbor.aclose()


@awaited
async def test_a_working_worker_ends_with_an_error(tmp_path: Path) -> None:
    """X9: the outcome of its run is not accepted."""
    path, driver = await opened(tmp_path)
    await driver.close()
    harbor = Harbor(f"sqlite:///{path}")
    began, go_on = asyncio.Event(), asyncio.Event()

    @harbor.task
    async def work() -> None:
        began.set()
        await go_on.wait()

    job = await work.aenqueue()
    working = asyncio.ensure_future(harbor.arun_worker())
    await began.wait()
    replace(path)
    go_on.set()
    with pytest.raises(StoreGone):
        await working
    with pytest.raises(StoreGone):
        await job.aresult(timeout=1)
    await harbor.aclose()
    assert await stored(path, "other", job.id) == [True, False]


@pytest.mark.usefixtures("every_write")
def test_blocking_callers_get_the_error(tmp_path: Path) -> None:
    """X9: who enqueues, and who waits for a result."""
    path = tmp_path / "jobs.db"
    harbor = Harbor(f"sqlite:///{path}")

    @harbor.task
    def work() -> None: ...

    job = work.enqueue()
    path.unlink()
    with pytest.raises(StoreGone):
        work.enqueue()
    with pytest.raises(StoreGone):
        job.result(timeout=FAR_TOO_LONG)
    harbor.close()
