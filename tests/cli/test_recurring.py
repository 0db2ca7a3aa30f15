"""`taskharbor recurring`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from click.testing import _NamedTextIOWrapper

from servers.nats import NatsServer
from servers.postgres import PostgresServer
from servers.valkey import ValkeyServer
from taskharbor import Harbor
from taskharbor.core.schedule import Schedule
from taskharbor.driver import Schedules, Swap, WorkerRecord, capability

from .desk import Desk, in_terminal, unpainted, until
from .test_watch import beat

DECLARED = """

@harbor.recurring(name="monthly", cron="30 2 1 * *", tz="Europe/Berlin", arguments={"days": 30}, jitter=60)
@harbor.recurring(cron="0 3 * * *", tz="Europe/Berlin")
def report(days: int = 1) -> int:
    return days

@harbor.recurring(every=3600, mode="fixed_delay")
def poll() -> None: ...
"""


def act(url: str, action: Callable[[Harbor], Awaitable[Any]]) -> Any:
    """Act as an operator by other means than the command line."""

    async def acted() -> Any:
        async with Harbor(url).open() as harbor:
            return await action(harbor)

    return asyncio.run(acted())


def create(url: str, name: str, task: str = "shop.welcome", **when: Any) -> None:
    """A recurring task made at run time."""
    act(url, lambda harbor: harbor.admin.recurring.acreate(name, task, **when))


def swap(url: str, change: Callable[[Schedule | None], Schedule]) -> None:
    """Change the one schedule of a store, past every rule."""

    async def swapped(harbor: Harbor) -> None:
        store = capability(await harbor.adriver(), Schedules)
        seen = next(iter(await store.schedules()), None)
        then = change(seen)
        assert await store.swap_schedules([Swap(name=then.name, seen=seen, then=then)], datetime.now(UTC)) == [True]

    act(url, swapped)


def definition_of(seen: Schedule | None) -> bytes:
    """The definition in a schedule, if there is one."""
    assert seen is not None
    return seen.definition


@pytest.fixture(params=["sqlite", "postgres", "redis", "nats"])
def url(request: pytest.FixtureRequest, desk: Desk) -> str:
    """An empty store."""
    if request.param == "sqlite":
        return desk.url
    if request.param == "redis":
        valkey: ValkeyServer = request.getfixturevalue("valkey")
        return valkey.url(namespace=valkey.new_namespace())
    if request.param == "nats":
        nats: NatsServer = request.getfixturevalue("nats")
        return nats.url(namespace=nats.new_namespace())
    server: PostgresServer = request.getfixturevalue("postgres")
    address = server.url(server.new_database())
    desk.good("migrate", address)
    return address


def declare(desk: Desk, url: str) -> None:
    """Have a worker store the declarations of the application."""
    with (desk.folder / "shop.py").open("a", encoding="utf-8") as shop:
        shop.write(DECLARED)
    with desk.process("worker", "shop:harbor", "--url", url) as worker:
        worker.says("recurring.declared: shop.report")
        until(lambda: len(act(url, lambda harbor: harbor.admin.recurring.alist())) == 3)


def test_what_code_declares_is_listed(desk: Desk, url: str) -> None:
    """N2, N5: by name, in words, with the next run; nothing has run yet."""
    declare(desk, url)
    monthly, poll, report = desk.json("recurring", "ls", "--url", url)
    assert [task["name"] for task in (monthly, poll, report)] == ["monthly", "shop.poll", "shop.report"]
    assert (monthly["task"], monthly["cron"], monthly["tz"]) == ("shop.report", "30 2 1 * *", "Europe/Berlin")
    assert (poll["every"], poll["mode"], poll["cron"]) == (3600.0, "fixed_delay", None)
    assert not report["paused"]
    assert report["in_code"]
    assert report["overdue"] is report["last_run"] is report["last_job_id"] is report["last_state"] is None
    assert datetime.fromisoformat(report["next_run"]).astimezone(ZoneInfo("Europe/Berlin")).hour == 3
    head, *rows = desk.good("recurring", "ls", "--url", url).splitlines()
    assert head.split() == ["NAME", "TASK", "WHEN", "NEXT", "AT", "LAST", "STATE"]
    assert "1 hour after each run" in rows[1]
    assert rows[2].startswith("shop.report  shop.report  At 03:00 every day, Europe/Berlin time  ")
    assert rows[2].split()[-4] == "in"
    assert rows[2].split()[-1] == report["next_run"]


def test_a_run_by_hand(desk: Desk, url: str) -> None:
    """N4, N5: it prints the id as an enqueue does; a second one waits for the first, which is exit 1."""
    create(url, "hello", arguments={"user_id": 7}, every=3600)
    text = desk.good("recurring", "run", "hello", "--url", url)
    id = text.removesuffix(" created\n")
    job = desk.json("jobs", "show", id, "--url", url)
    assert (job["task"], job["arguments"], job["headers"]["schedule"]) == ("shop.welcome", {"user_id": 7}, "hello")
    (task,) = desk.json("recurring", "ls", "--url", url)
    assert (task["last_job_id"], task["last_state"]) == (id, "ready")
    assert id in desk.bad(1, "recurring", "run", "hello", "--url", url)
    act(url, lambda harbor: harbor.admin.jobs.acancel(id))
    again = desk.json("recurring", "run", "hello", "--url", url)
    assert again["created"]
    assert again["id"] != id


def test_pause_and_resume(desk: Desk, url: str) -> None:
    """N5: both may be repeated; the list and the times show it."""
    create(url, "hello", every=3600)
    for _ in range(2):
        assert desk.good("recurring", "pause", "hello", "--url", url) == "hello is paused.\n"
    assert "  paused" in desk.good("recurring", "ls", "--url", url)
    assert "  taskharbor recurring resume hello\n" in desk.good("recurring", "show", "hello", "--url", url)
    assert "taskharbor recurring resume hello" in desk.good("recurring", "next", "hello", "--url", url)
    assert desk.json("recurring", "pause", "hello", "--url", url)["paused"]
    for _ in range(2):
        assert desk.good("recurring", "resume", "hello", "--url", url).startswith("hello is resumed, next 20")
    assert not desk.json("recurring", "resume", "hello", "--url", url)["paused"]


def test_remove(desk: Desk, url: str) -> None:
    """C, N5: only after a yes; its jobs stay, and what code declares may come back."""
    create(url, "hello", every=3600)
    id = desk.json("recurring", "run", "hello", "--url", url)["id"]
    assert "--yes" in desk.bad(2, "recurring", "rm", "hello", "--url", url)
    assert desk.good("recurring", "rm", "hello", "--yes", "--url", url) == "Removed hello. Its jobs stay.\n"
    assert desk.json("jobs", "show", id, "--url", url)["state"] == "ready"
    assert desk.json("recurring", "ls", "--url", url) == []
    declare(desk, url)
    result = desk.run("recurring", "rm", "monthly", "--yes", "--json", "--url", url)
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"name": "monthly", "removed": True})
    assert "stores monthly again" in result.stderr
    assert [task["name"] for task in desk.json("recurring", "ls", "--url", url)] == ["shop.poll", "shop.report"]


def test_a_terminal_is_asked(desk: Desk) -> None:
    """C: a yes removes, a no does not."""
    create(desk.url, "hello", every=3600)
    code, text = in_terminal(desk.folder, 80, "recurring", "rm", "hello", "--url", desk.url, given="n\n")
    assert code == 1
    assert "Remove hello (Every hour)? [y/N]" in text
    assert len(desk.json("recurring", "ls", "--url", desk.url)) == 1
    code, text = in_terminal(desk.folder, 80, "recurring", "rm", "hello", "--url", desk.url, given="y\n")
    assert (code, "Removed hello." in text) == (0, True)
    assert desk.json("recurring", "ls", "--url", desk.url) == []


def test_the_question_is_not_part_of_the_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """C: it is the question that every act asks, on stderr: stdout is JSON and nothing else."""
    create(desk.url, "hello", every=3600)
    monkeypatch.setattr(_NamedTextIOWrapper, "isatty", lambda wrapper: wrapper.name == "<stdin>")
    result = desk.run("recurring", "rm", "hello", "--json", "--url", desk.url, given="y\n")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"name": "hello", "removed": True})
    assert result.stderr.startswith("Remove hello (Every hour)? [y/N]")


def test_an_empty_list(desk: Desk) -> None:
    """C: none is not an error, and the output says how to declare one."""
    desk.enqueue("shop.welcome", "user_id=1")
    assert desk.good("recurring", "ls", "--url", desk.url).startswith("No recurring tasks yet: a worker stores those")
    assert desk.json("recurring", "ls", "--url", desk.url) == []


def test_next_times_show_how_clocks_change(desk: Desk) -> None:
    """N2: by the clocks of the zone, with their offset, and in UTC."""
    create(desk.url, "hello", cron="30 2 * * *", tz="Europe/Berlin")
    times = desk.json("recurring", "next", "hello", "-n", "366", "--url", desk.url)
    assert len(times) == 366
    assert {time["local"][10:] for time in times} == {"T02:30:00+01:00", "T02:30:00+02:00", "T03:00:00+02:00"}
    assert all(datetime.fromisoformat(time["at"]) == datetime.fromisoformat(time["local"]) for time in times)
    head, *rows = desk.good("recurring", "next", "hello", "-n", "366", "--url", desk.url).splitlines()
    assert head.split() == ["Europe/Berlin", "UTC", "WHEN"]
    (skipped,) = (row for row in rows if "03:00:00" in row)
    assert skipped.startswith("Sun ")
    assert "03:00:00 +0200" in skipped
    assert "T01:00:00Z" in skipped


def test_next_times_in_utc_need_no_second_column(desk: Desk) -> None:
    """N2: intervals have no zone; five times by default."""
    create(desk.url, "hello", every=0.5)
    head, *rows = desk.good("recurring", "next", "hello", "--url", desk.url).splitlines()
    assert head.split() == ["UTC", "WHEN"]
    assert len({row.split()[0] for row in rows}) == 5
    assert "0 is not in the range" in desk.bad(2, "recurring", "next", "hello", "-n", "0", "--url", desk.url)


def test_of_a_delay_only_the_next_is_known(desk: Desk) -> None:
    """N2: and while a run goes on, not even that."""
    create(desk.url, "hello", every=3600, mode="fixed_delay")
    *_, note = desk.good("recurring", "next", "hello", "--url", desk.url).splitlines()
    assert note == "1 hour after each run: the next time is known when that one has ended."
    id = desk.json("recurring", "run", "hello", "--url", desk.url)["id"]
    note = desk.good("recurring", "next", "hello", "--url", desk.url)
    assert note == f"1 hour after each run: the next time is known when job {id} has ended.\n"
    assert "after its last run" in desk.good("recurring", "ls", "--url", desk.url)
    assert "after its last run" in desk.good("recurring", "show", "hello", "--url", desk.url)
    assert desk.json("recurring", "next", "hello", "--url", desk.url) == []
    desk.good("recurring", "pause", "hello", "--url", desk.url)
    assert "is paused" in desk.good("recurring", "next", "hello", "--url", desk.url)
    assert (
        desk.good("recurring", "resume", "hello", "--url", desk.url) == "hello is resumed, next after its last run.\n"
    )


def test_one_that_no_worker_sees_to(desk: Desk) -> None:
    """N5: what was due long ago says so, everywhere, and asks the right question."""
    create(desk.url, "hello", every=3600)
    due = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    swap(desk.url, lambda seen: Schedule(name="hello", definition=definition_of(seen), slot=due))
    question = "overdue by 3 h: does a worker know shop.welcome?"
    text = desk.good("recurring", "ls", "--url", desk.url)
    assert "  overdue by 3 h  " in text
    assert text.endswith(f"\nhello is {question}\n")
    assert question in desk.good("recurring", "show", "hello", "--url", desk.url)
    assert question in desk.good("recurring", "next", "hello", "--url", desk.url)
    (task,) = desk.json("recurring", "ls", "--url", desk.url)
    assert 3 * 3600 <= task["overdue"] < 4 * 3600
    desk.good("recurring", "pause", "hello", "--url", desk.url)
    assert "overdue" not in desk.good("recurring", "ls", "--url", desk.url)


def test_without_a_worker_nothing_is_due_now(desk: Desk) -> None:
    """N5: the time for a worker to come is given only while one is alive."""
    create(desk.url, "hello", every=3600)
    due = datetime.now(UTC) - timedelta(seconds=9)
    swap(desk.url, lambda seen: Schedule(name="hello", definition=definition_of(seen), slot=due))
    assert "  overdue by " in desk.good("recurring", "ls", "--url", desk.url)
    now = datetime.now(UTC)
    alive = WorkerRecord(id="a:1", host="a", pid=1, queues=("default",), slots=2, busy=0, started_at=now, seen_at=now)
    asyncio.run(beat(desk, alive))
    assert "  now  " in desk.good("recurring", "ls", "--url", desk.url)


def test_ticks_that_are_caught_up_in_turn_are_not_overdue(desk: Desk) -> None:
    """N4: ticks that are made up for one after the other wait for the run before."""
    create(desk.url, "hello", every=3600, catch_up="all")
    id = desk.json("recurring", "run", "hello", "--url", desk.url)["id"]
    due = datetime.now(UTC) - timedelta(hours=3)
    waits: dict[str, Any] = {"slot": due, "last_job_id": id, "last_slot": due}
    swap(desk.url, lambda seen: Schedule(name="hello", definition=definition_of(seen), **waits))
    assert "overdue" not in desk.good("recurring", "ls", "--url", desk.url)
    act(desk.url, lambda harbor: harbor.admin.jobs.acancel(id))
    assert "overdue" in desk.good("recurring", "ls", "--url", desk.url)


def test_everything_about_one(desk: Desk) -> None:
    """C, N4: what it does about missed ticks and overlaps, and what it is called with."""
    create(desk.url, "a", arguments={"user_id": 7}, every=600, catch_up="all", max_catch_up=5, jitter=60)
    shown = desk.json("recurring", "show", "a", "--url", desk.url)
    assert (shown["catch_up"], shown["max_catch_up"], shown["overlap"], shown["jitter"]) == ("all", 5, "skip", 60)
    assert (shown["arguments"], shown["in_code"], shown["anchor"]) == ({"user_id": 7}, False, "2001-01-01T00:00:00Z")
    text = desk.good("recurring", "show", "a", "--url", desk.url)
    for line in (
        "task                 shop.welcome",
        "when                 Every 10 minutes",
        "missed ticks         are caught up, at most 5",
        "while a run goes on  the next waits for it",
        "jitter               up to 1 min",
        "declared             at run time",
        '  "user_id": 7',
    ):
        assert line in text.splitlines()
    create(desk.url, "b", cron="@daily", catch_up="skip", overlap="allow")
    text = desk.good("recurring", "show", "b", "--url", desk.url)
    for line in ("cron                 @daily", "missed ticks         are left out"):
        assert line in text.splitlines()
    assert "the next runs in parallel" in text
    assert desk.json("recurring", "show", "b", "--url", desk.url)["anchor"] is None


def test_a_last_run_that_is_forgotten(desk: Desk) -> None:
    """X8: a schedule outlives the records of its jobs."""
    create(desk.url, "hello", every=3600)
    id = desk.json("recurring", "run", "hello", "--url", desk.url)["id"]

    async def forget(harbor: Harbor) -> None:
        await harbor.admin.jobs.acancel(id)
        await harbor.admin.jobs.adelete(id)

    act(desk.url, forget)
    assert f"{id}  gone" in desk.good("recurring", "show", "hello", "--url", desk.url)
    assert desk.json("recurring", "show", "hello", "--url", desk.url)["last_state"] is None
    desk.good("recurring", "run", "hello", "--url", desk.url)


def test_one_of_a_newer_version_can_be_removed(desk: Desk) -> None:
    """X5: it cannot be read here, and says so; removing it needs no reading."""
    swap(desk.url, lambda _: Schedule(name="later", definition=b'{"version": 99}', slot=None))
    assert "upgrade" in desk.bad(2, "recurring", "show", "later", "--url", desk.url)
    assert desk.good("recurring", "rm", "later", "--yes", "--url", desk.url) == "Removed later. Its jobs stay.\n"
    assert "there is none" in desk.bad(1, "recurring", "show", "later", "--url", desk.url)


@pytest.mark.parametrize("command", ["show", "next", "run", "pause", "resume", "rm"])
def test_no_such_recurring_task(desk: Desk, command: str) -> None:
    """C: exit 1, and it names those that there are."""
    create(desk.url, "hello", every=3600)
    create(desk.url, "world", every=3600)
    for words in ([], ["--json"]):
        complaint = desk.bad(1, "recurring", command, "nobody", *words, "--url", desk.url)
        assert complaint == "there is no recurring task 'nobody'; there is hello, world"


def test_no_store(desk: Desk) -> None:
    """C: exit 3; a look makes no file."""
    assert "there is no store" in desk.bad(3, "recurring", "ls", "--url", desk.url)
    assert not (desk.folder / "jobs.db").exists()


def test_tables_fit_the_terminal(desk: Desk) -> None:
    """C: as other tables."""
    create(desk.url, "a.rather.long.name.for.one", cron="15,45 8-18/2 * 1,6 fri", tz="America/New_York")
    create(desk.url, "b", every=3600)
    desk.good("recurring", "run", "b", "--url", desk.url)
    for width in (44, 80, 120):
        code, text = in_terminal(desk.folder, width, "recurring", "ls", "--url", desk.url)
        assert code == 0
        assert max(len(line) for line in unpainted(text).splitlines()) <= width
        assert ("STATE" in text, "AT" in unpainted(text).split()) == (
            width >= 80,
            width >= 120,
        )  # the words of a rule matter more
