"""`taskharbor jobs`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from taskharbor.core.decide import token_of
from taskharbor.core.job import Progress
from taskharbor.core.transition import Ack
from taskharbor.driver import Report

from .desk import Desk

BRIEF = {
    "id", "task", "queue", "state", "priority", "attempts", "max_attempts", "crashes", "lease_version", "created_at",
    "due_at", "started_at", "completed_at", "failed_at", "last_error", "dlq_reason", "worker", "claimed_at", "tags",
    "idempotency_key", "overrun_since",
}  # fmt: skip
FULL = BRIEF | {
    "arguments", "payload_base64", "result", "run_at", "expires_at", "timeout", "max_crashes", "unknown_put_backs",
    "lease", "progress", "stop_requested_at", "stop_reason", "settled_at", "took_seconds", "key_expires_at",
    "headers", "failures", "workflow_id",
    "unmet_dependencies", "fingerprint", "original_id", "replays", "keep_until", "why",
    "result_base64",
}  # fmt: skip


@pytest.fixture
def busy(desk: Desk) -> Desk:
    """A store with a done job, a dead one, one in line and one for later."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", "done", "--tag", "vip")
    desk.enqueue("shop.explode", "text=no such user", "--id", "dead")
    desk.drain()
    desk.enqueue("shop.welcome", "user_id=2", "--id", "ready")
    desk.enqueue("shop.welcome", "user_id=3", "--id", "later", "--delay", "1h")
    return desk


def listed(desk: Desk, *words: str) -> list[str]:
    """The ids that the list has for these words."""
    return [job["id"] for job in desk.json("jobs", "ls", *words, "--url", desk.url)]


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ([], ["later", "ready", "dead", "done"]),
        (["state:dlq"], ["dead"]),
        (["state:done,scheduled"], ["later", "done"]),
        (["shop.*"], ["later", "ready", "dead", "done"]),
        (["task:*.explode"], ["dead"]),
        (["queue:mail", "state:ready"], ["ready"]),
        (["tag:vip"], ["done"]),
        (["error:no such"], ["dead"]),
        (["reason:max_*"], ["dead"]),
        (["since:1h"], ["later", "ready", "dead", "done"]),
        (["until:1h"], []),
        (["--limit", "2"], ["later", "ready"]),
        (["--after", "ready"], ["dead", "done"]),
    ],
)
def test_words_narrow_the_list(busy: Desk, words: list[str], ids: list[str]) -> None:
    """C: the words of the filter; the newest first."""
    result = busy.run("jobs", "ls", *words, "--json", "--url", busy.url)
    assert result.exit_code == 0
    assert listed(busy, *words) == ids


@pytest.mark.parametrize("word", ["colour:red", "state:happy", "since:yesterday"])
def test_an_unknown_word(busy: Desk, word: str) -> None:
    """X5: exit 2."""
    assert word.partition(":")[2] in busy.bad(2, "jobs", "ls", word, "--url", busy.url)


@pytest.mark.parametrize("words", [["jobs", "ls"], ["dlq", "purge"], ["jobs", "cancel"]], ids=" ".join)
def test_a_word_that_is_written_as_an_option(busy: Desk, words: list[str]) -> None:
    """X5: not an option with a similar name."""
    said = "No such option '--state': write it as a word, state:… (see"
    assert busy.bad(2, *words, "--state", "dlq", "--url", busy.url).startswith(said)
    assert "write it" not in busy.bad(2, "enqueue", "--task", "x", "--url", busy.url)


def test_progress_is_shown_until_the_job_is_done(desk: Desk) -> None:
    """C: the last report of a run is older than its end."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", "long")

    async def run() -> None:
        async with desk.harbor.open() as harbor:
            driver, now, lease = await harbor.adriver(), datetime.now(UTC), timedelta(minutes=1)
            (job,) = await driver.reserve(["mail"], now, lease, 1, "web-1")
            await driver.extend_lease([Report(job.id, token_of(job), now, Progress(0.9, "9 of 10"))], now, lease)
            assert "90% 9 of 10" in await asyncio.to_thread(desk.good, "jobs", "show", "long", "--url", desk.url)
            await driver.settle([Ack(id=job.id, token=token_of(job), keep_until=now + lease)], now)

    asyncio.run(run())
    assert "90%" not in desk.good("jobs", "show", "long", "--url", desk.url)


def test_runs_past_their_timeout_are_listed(desk: Desk) -> None:
    """C, F5: lists show them as overruns, among the running jobs; the word that one would try says so."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", "hangs", "--timeout", "5")

    async def run() -> None:
        async with desk.harbor.open() as harbor:
            driver, now, lease = await harbor.adriver(), datetime.now(UTC), timedelta(minutes=1)
            (job,) = await driver.reserve(["mail"], now, lease, 1, "web-1")
            await driver.extend_lease([Report(job.id, token_of(job), now - timedelta(seconds=9), None)], now, lease)

    asyncio.run(run())
    (job,) = desk.json("jobs", "ls", "state:running", "--url", desk.url)
    assert (job["state"], job["overrun_since"] > job["started_at"]) == ("running", True)
    assert " overrun " in desk.good("jobs", "ls", "--url", desk.url)
    assert desk.bad(2, "jobs", "ls", "state:overrun", "--url", desk.url).endswith("past their timeout are running")


def test_the_fields_of_a_list(busy: Desk) -> None:
    """C: stable names; times in ISO 8601, UTC."""
    for job in busy.json("jobs", "ls", "--url", busy.url):
        assert set(job) == BRIEF
        assert job["created_at"].endswith("Z")
        assert datetime.fromisoformat(job["created_at"]).tzinfo is not None


def test_the_list_for_people(busy: Desk) -> None:
    """C: plain aligned text where stdout is not a terminal."""
    head, *rows = busy.good("jobs", "ls", "--url", busy.url).splitlines()
    assert head.split() == ["ID", "TASK", "QUEUE", "STATE", "FAILURES", "WHEN", "ERROR"]
    assert [row.split()[0] for row in rows] == ["later", "ready", "dead", "done"]
    assert all(row[head.index("TASK") :].startswith("shop.") for row in rows)
    assert rows[2].endswith("ValueError: no such user")


def test_a_longer_list_says_how_to_go_on(busy: Desk) -> None:
    """C: on stderr, so that stdout stays a table."""
    result = busy.run("jobs", "ls", "--limit", "2", "--url", busy.url)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 3)
    assert "--after ready" in result.stderr
    everything = len(listed(busy))
    assert len(busy.json("jobs", "ls", "--limit", str(everything - 1), "--url", busy.url)) == everything - 1
    busy.good("jobs", "ls", "--limit", str(everything), "--url", busy.url)  # nothing is left to say
    dead = len(busy.json("dlq", "ls", "--url", busy.url))
    assert dead
    busy.good("dlq", "ls", "--limit", str(dead), "--url", busy.url)


def test_an_empty_list(busy: Desk) -> None:
    """C: nothing found is not an error."""
    assert busy.good("jobs", "ls", "queue:nothing", "--url", busy.url) == "No jobs match.\n"
    assert listed(busy, "queue:nothing") == []


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("lapsed", ": did you mean state:lapsed?"),
        ("dead", ": did you mean state:dlq?"),
        (
            "mail",
            (
                ". mail is read as the whole name of a task: the jobs of a queue are queue:mail, "
                "a part of a name is '*mail*'."
            ),
        ),
        ("shop.nothing", "."),
        ("*nothing*", "."),
        ("f5a2-01", "."),
    ],
)
def test_an_empty_list_by_a_bare_word(busy: Desk, word: str, said: str) -> None:
    """C, X5: a bare word is a task; states, and parts of names, are written in another way."""
    assert busy.good("jobs", "ls", "queue:nothing", word, "--url", busy.url) == f"No jobs match{said}\n"


def test_one_job_in_full(busy: Desk) -> None:
    """C, Q1, F10: every field, and each failure with its traceback."""
    job = busy.json("jobs", "show", "dead", "--url", busy.url)
    assert set(job) == FULL
    assert (job["state"], job["attempts"], job["dlq_reason"]) == ("dlq", 2, "max_attempts")
    assert job["arguments"] == {"text": "no such user"}
    assert [failure["attempt"] for failure in job["failures"]] == [1, 2]
    for failure in job["failures"]:
        assert (failure["type"], failure["message"]) == ("ValueError", "no such user")
        assert "in explode" in failure["traceback"]
        assert failure["worker"]


def test_one_job_for_people(busy: Desk) -> None:
    """C: state, times, arguments, result, failures."""
    done = busy.good("jobs", "show", "done", "--url", busy.url)
    for text in ("shop.welcome  done", "Times", "completed", '"user_id": 1', "Result", '"en:1"', "vip"):
        assert text in done
    dead = busy.good("jobs", "show", "dead", "--url", busy.url)
    for text in ("dlq (max_attempts)", "attempts", "2 of 2", "Failure 1: ValueError", "Failure 2: ValueError"):
        assert text in dead


def test_no_such_job(busy: Desk) -> None:
    """C: exit 1."""
    assert "there is no job nobody in sqlite:////" in busy.bad(1, "jobs", "show", "nobody", "--url", busy.url)
    assert "there is no job nobody" in busy.bad(1, "jobs", "show", "nobody", "--json", "--url", busy.url)
    assert "the id is empty" in busy.bad(2, "jobs", "show", "", "--url", busy.url)


def test_a_job_that_is_done_shows_no_error_in_lists(desk: Desk) -> None:
    """C: after a good replay the old one is history, which its page and the JSON keep."""
    desk.enqueue("shop.once", "file=seen", "--id", "mended")
    desk.drain()
    assert "the first time" in desk.good("jobs", "ls", "--url", desk.url)
    desk.good("dlq", "replay", "mended", "--url", desk.url)
    assert "the first time" in desk.good("jobs", "ls", "--url", desk.url)
    desk.drain()
    assert "the first time" not in desk.good("jobs", "ls", "--url", desk.url)
    assert "the first time" in desk.good("jobs", "show", "mended", "--url", desk.url)
    (job,) = desk.json("jobs", "ls", "--url", desk.url)
    assert (job["state"], job["last_error"]) == ("done", "ValueError: the first time")


def test_what_a_job_says_cannot_steer_the_terminal(desk: Desk) -> None:
    """X5: control characters in stored text are shown, not sent."""
    desk.enqueue("shop.explode", 'text="\\u001b[31mred\\u0007\\u202e"', "--id", "evil")
    desk.drain()
    for words in (["jobs", "ls"], ["jobs", "show", "evil"], ["dlq", "ls"]):
        text = desk.good(*words, "--url", desk.url)
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
        assert "\\x1b[31mred" in text


def test_a_complaint_cannot_steer_the_terminal_either(desk: Desk) -> None:
    """X5: such as one that names an id from elsewhere."""
    desk.enqueue("shop.welcome", "user_id=1")
    told = desk.bad(1, "jobs", "show", "\x1b[31mred", "--url", desk.url)
    assert "there is no job \\x1b[31mred" in told
    assert "\x1b" not in told


def test_jobs_are_cancelled_by_id(busy: Desk) -> None:
    """C, T3: what waits is; one that has ended or is not there makes it an error, without stopping it."""
    result = busy.run("jobs", "cancel", "ready", "done", "nobody", "later", "--url", busy.url)
    assert (result.exit_code, result.stdout) == (1, "Cancelled ready.\nCancelled later.\n")
    assert "done was not cancelled: it has ended already" in result.stderr
    assert "nobody was not cancelled: there is no such job" in result.stderr
    assert listed(busy, "state:cancelled") == ["later", "ready"]
    again = busy.run("jobs", "cancel", "ready", "--json", "--url", busy.url)
    assert (again.exit_code, '"finished"' in again.stdout) == (1, True)


def test_cancel_wants_ids(busy: Desk) -> None:
    """C: without any, it is a wrong use."""
    assert busy.run("jobs", "cancel", "--url", busy.url).exit_code == 2


def test_endings_of_ids_are_taken_for_the_whole(busy: Desk) -> None:
    """C: wherever an id is taken; several that match are named, and none is changed."""
    one = "0198c5d2-0000-7000-8000-0000deadbeef"
    other = "0198c5d2-0000-7000-8000-0001deadbeef"
    busy.enqueue("shop.welcome", "user_id=4", "--id", one)
    assert one in busy.good("jobs", "show", "deadbeef", "--url", busy.url)
    assert listed(busy, "--after", "deadbeef")[0] == "later"
    busy.enqueue("shop.welcome", "user_id=4", "--id", other)
    complaint = busy.bad(2, "jobs", "cancel", "deadbeef", "--url", busy.url)
    assert f"is the ending of 2 job ids: {other}, {one}" in complaint
    assert busy.good("jobs", "cancel", "0deadbeef", "--url", busy.url) == f"Cancelled {one}.\n"
    assert "there is no job nobody" in busy.bad(1, "jobs", "ls", "--after", "nobody", "--url", busy.url)


def test_a_claim_without_a_run_does_not_count_as_a_run(desk: Desk) -> None:
    """C, F8: the worker does not know the task; what to do names the likeliest causes first."""
    desk.run("enqueue", "shop.welcom", "--id", "typo", "--url", desk.url)
    desk.enqueue("shop.merge", "results=[]")
    desk.drain()
    text = desk.good("jobs", "show", "typo", "--url", desk.url)
    assert "last claimed by  " in text
    assert "last run by" not in text
    assert "  look for a typo in the name; make the workers import the task's module (--include MODULE)" in text


def test_what_to_do_can_be_pasted(desk: Desk) -> None:
    """C: the application is in the command, unless pyproject.toml names it."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", "one")
    show = ("jobs", "show", "one", "--url", desk.url)
    assert "  taskharbor worker MODULE:HARBOR\n" in desk.good(*show)
    assert "  taskharbor worker shop:harbor\n" in desk.good(*show, "-A", "shop:harbor")
    desk.pyproject(app="shop:harbor")
    assert "  taskharbor worker\n" in desk.good(*show)
    assert desk.json(*show)["why"]["fix"] == "taskharbor worker"


def test_an_id_in_place_of_a_word_lists_its_job(busy: Desk) -> None:
    """C: also its ending, as lists show it; what names neither a task nor a job matches nothing."""
    id = busy.enqueue("shop.welcome", "user_id=5")
    busy.enqueue("shop.welcome", "user_id=6")
    assert listed(busy, id[-8:]) == listed(busy, id) == [id]
    assert listed(busy, "dead") == ["dead"]
    assert listed(busy, "shop.wellcome") == listed(busy, "00000000") == listed(busy, "queue:dead") == []


def test_a_crash_loop_accuses_no_worker_that_only_noticed_it(desk: Desk) -> None:
    """C, F6: the one that dead-lettered the job did not run it."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", "killer", "--max-crashes", "1")

    async def claim() -> None:
        async with desk.harbor.open() as harbor:
            driver = await harbor.adriver()
            await driver.reserve(["mail"], harbor.admin.now(), timedelta(microseconds=1), 1, "web-1")

    asyncio.run(claim())
    desk.drain()
    for group in ("jobs", "dlq"):
        page = desk.good(group, "show", "killer", "--url", desk.url)
        assert "dead-lettered by" in page
        assert ", which did not run it" in page
        assert "last claimed by" not in page


def test_the_list_says_which_jobs_crash_and_which_no_worker_knows(desk: Desk) -> None:
    """C, F6, F8: neither is a failure, so the column of failures shows nothing of it."""
    for id in ("crashing", "new"):
        desk.run("enqueue", "shop.new", "--id", id, "--queue", id, "--url", desk.url)

    async def claim() -> None:
        async with desk.harbor.open() as harbor:
            driver = await harbor.adriver()
            for _ in range(3):
                await driver.reserve(["crashing"], harbor.admin.now(), timedelta(microseconds=1), 1, "web-1")
            await harbor.adrain(["new"])

    asyncio.run(claim())
    text = desk.good("jobs", "ls", "--url", desk.url)
    (crashing,) = (line for line in text.splitlines() if line.startswith("crashing"))
    (new,) = (line for line in text.splitlines() if line.startswith("new"))
    assert crashing.endswith("  crashes in a row: 2/5")
    assert new.endswith("  no worker knows the task: put back 1/30")


def test_an_id_that_a_caller_gave_has_no_ending(desk: Desk) -> None:
    """C: an act takes no job but the one that was named."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", "daily-report-2026-01-01")
    for text in ("report-2026-01-01", "2026-01-01", "26-01-01"):
        assert f"{text} was not cancelled: there is no such job" in desk.bad(
            1, "jobs", "cancel", text, "--url", desk.url
        )
    assert listed(desk, "state:ready") == ["daily-report-2026-01-01"]


def test_the_last_worker_is_shown_in_every_state(busy: Desk) -> None:
    """R1, T2: worker, claim, start and duration, also of runs that were over in a moment."""
    for id in ("done", "dead"):
        job = busy.json("jobs", "show", id, "--url", busy.url)
        assert job["worker"] is not None
        assert job["claimed_at"] <= job["started_at"] <= job["settled_at"]
        assert job["took_seconds"] >= 0
        text = busy.good("jobs", "show", id, "--url", busy.url)
        assert f"last run by  {job['worker']}" in text
        assert "last run took" in text
        assert "  started" not in text.partition("Times")[0]
    assert "last run" not in busy.good("jobs", "show", "later", "--url", busy.url)
    assert "last claimed" not in busy.good("jobs", "show", "later", "--url", busy.url)
    busy.good("dlq", "replay", "dead", "--url", busy.url)
    again = busy.json("jobs", "show", "dead", "--url", busy.url)
    assert again["state"] == "ready"
    assert again["worker"] is not None
