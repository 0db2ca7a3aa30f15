"""`taskharbor queues`."""

from __future__ import annotations

from taskharbor.manager import TaskManager

from .desk import Desk


def test_queues_are_listed_with_their_jobs(desk: Desk) -> None:
    """C: counts by state, the oldest due job, and the workers that listen."""
    desk.enqueue("shop.welcome", "user_id=1")
    desk.enqueue("shop.hang", "--delay", "1h")
    with TaskManager(desk.url) as tasks:
        tasks.submit(b"x")
    default, mail, theirs = desk.json("queues", "ls", "--url", desk.url)
    assert (default["queue"], default["scheduled"], default["oldest_due"], default["workers"]) == (
        "default",
        1,
        None,
        0,
    )
    assert (mail["queue"], mail["ready"], mail["paused"], mail["workers"]) == ("mail", 1, False, 0)
    assert mail["oldest_due"] is not None
    assert (theirs["queue"], theirs["workers"]) == ("taskharbor.tasks", None)
    head, *_, last = desk.good("queues", "ls", "--url", desk.url).splitlines()
    assert head.split() == ["QUEUE", "SCHEDULED", "READY", "OLDEST", "DUE", "WORKERS"]
    assert last.split()[-1] == "-"


def test_no_queues(desk: Desk) -> None:
    """C: nothing found is not an error."""
    desk.enqueue("shop.welcome", "user_id=1", "--id", "one")
    desk.good("jobs", "cancel", "one", "--url", desk.url)
    desk.good("jobs", "delete", "one", "--yes", "--url", desk.url)
    assert desk.good("queues", "ls", "--url", desk.url) == "No queues yet.\n"


def test_a_queue_is_paused_and_resumed(desk: Desk) -> None:
    """C, D3: the jobs of a paused queue are not handed out; every answer says what was and what is."""
    desk.enqueue("shop.welcome", "user_id=1")
    assert desk.good("queues", "pause", "mail", "--url", desk.url) == "mail is paused, with 1 due job.\n"
    assert desk.good("queues", "pause", "mail", "--url", desk.url) == "mail was paused already, with 1 due job.\n"
    assert "mail   paused" in desk.good("queues", "ls", "--url", desk.url)
    assert desk.drain() == 0
    assert desk.json("queues", "resume", "mail", "--url", desk.url) == [
        {"queue": "mail", "paused": False, "changed": True, "due": 1, "known": True, "similar": []}
    ]
    assert desk.good("queues", "resume", "mail", "--url", desk.url) == "mail was not paused.\n"
    assert desk.drain() == 1


def test_a_queue_without_jobs_may_be_paused(desk: Desk) -> None:
    """C: ahead of its jobs; a wrong name is noticed, with the names that it may be meant for."""
    desk.enqueue("shop.welcome", "user_id=1")
    hint = "No job or worker knows a queue male: did you mean mail?\n"
    assert desk.good("queues", "resume", "male", "--url", desk.url) == f"male was not paused.\n{hint}"
    assert desk.good("queues", "pause", "male", "--url", desk.url) == f"male is paused, with 0 due jobs.\n{hint}"
    assert desk.good("queues", "pause", "x", "--url", desk.url).endswith("\nNo job or worker knows a queue x.\n")
    assert "No job" not in desk.good("queues", "pause", "default", "-A", "shop:harbor")
    assert desk.good("queues", "resume", "male", "mail", "--url", desk.url) == (
        "male is resumed, with 0 due jobs.\nmail was not paused.\n"
    )


def test_wrong_uses(desk: Desk) -> None:
    """X5: exit 2 for a name that no queue may have."""
    desk.enqueue("shop.welcome", "user_id=1")
    desk.bad(2, "queues", "pause", "--url", desk.url)
    desk.bad(2, "queues", "resume", "", "--url", desk.url)
    assert "TaskManager" in desk.bad(2, "queues", "pause", "taskharbor.tasks", "--url", desk.url)


def test_the_beginning_of_a_name_finds_the_queue(desk: Desk) -> None:
    """X5: a long name that was cut in a table."""
    desk.enqueue("shop.welcome", "user_id=1", "--queue", "thumbnails-for-the-catalogue")
    text = desk.good("queues", "resume", "thumbnails", "--url", desk.url)
    assert text.endswith("did you mean thumbnails-for-the-catalogue?\n")
