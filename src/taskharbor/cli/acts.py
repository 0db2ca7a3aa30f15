"""Commands that act on jobs, given by ids or by filter words: cancel, delete, replay, dead-letter.

With words, they first show how many jobs match, and ask; `delete` always asks. `harbor.admin` acts, in batches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

import click

from taskharbor.admin.bulk import MOST, Act, Bulk, Progress
from taskharbor.cli.bulk import DELETE, MISSING, REPLAY, Answers, Asked, Wording, act_options, carry_out
from taskharbor.cli.ids import meant, whole_ids
from taskharbor.cli.target import ask, here
from taskharbor.cli.words import WORDS_HELP, ids_or_words
from taskharbor.core.filter import Filter
from taskharbor.harbor import Harbor

IDS_HELP = (
    "Name jobs by their ids (endings of UUIDs are enough), or give filter words for all that match. Here a word needs "
    "a colon or a star: task:mail.send.\n"
)
CANCEL = Wording(
    "cancel",
    "cancel",
    "cancelled",
    {"cancelled": "Cancelled {}.", "requested": "Asked {} to stop: claimed by a worker."},
    {"finished": "it has ended already", "missing": MISSING},
)
DEAD_LETTER = Wording(
    "dead_letter",
    "dead-letter",
    "dead-lettered",
    {"dead": "Dead-lettered {}.", "requested": "Asked {} to stop and be dead-lettered: claimed by a worker."},
    {"finished": "it has ended already", "missing": MISSING},
)


@click.command("cancel", help=f"Cancel jobs that wait, and ask those that run to stop.\n\n{IDS_HELP}{WORDS_HELP}")
@click.argument("given", nargs=-1, metavar="[ID]... | [WORD]...")
@act_options(MOST)
def cancel_jobs(**asked: Any) -> None:
    perform(
        CANCEL,
        Asked(**asked),
        lambda harbor: harbor.admin.jobs.acancel_all,
        lambda harbor, ids, progress: harbor.admin.jobs.acancel(ids, progress=progress),
    )


@click.command("delete", help=f"Delete jobs that have ended, for good.\n\n{IDS_HELP}{WORDS_HELP}")
@click.argument("given", nargs=-1, metavar="[ID]... | [WORD]...")
@act_options(MOST)
def delete_jobs(**asked: Any) -> None:
    perform(
        DELETE,
        Asked(**asked),
        lambda harbor: harbor.admin.jobs.adelete_all,
        lambda harbor, ids, progress: harbor.admin.jobs.adelete(ids, progress=progress),
    )


@click.command("dead-letter", help=f"Move jobs that have not ended to the dead-letter queue.\n\n{IDS_HELP}{WORDS_HELP}")
@click.argument("given", nargs=-1, metavar="[ID]... | [WORD]...")
@act_options(MOST)
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is kept with the jobs, and groups them.")
def dead_letter_jobs(reason: str, **asked: Any) -> None:
    perform(
        DEAD_LETTER,
        Asked(**asked),
        lambda harbor: partial(harbor.admin.jobs.adead_letter_all, reason=reason),
        lambda harbor, ids, progress: harbor.admin.jobs.adead_letter(ids, reason=reason, progress=progress),
    )


@click.command("replay", help=f"Run dead and cancelled jobs again.\n\n{IDS_HELP}{WORDS_HELP}")
@click.argument("given", nargs=-1, metavar="[ID]... | [WORD]...")
@act_options(MOST)
def replay_jobs(**asked: Any) -> None:
    perform(
        REPLAY,
        Asked(**asked),
        lambda harbor: harbor.admin.jobs.areplay_all,
        lambda harbor, ids, progress: harbor.admin.jobs.areplay(ids, progress=progress),
    )


ToMatching = Callable[[Harbor], Callable[..., Awaitable[Bulk]]]
ToNamed = Callable[[Harbor, Sequence[str], Progress | None], Awaitable[Sequence[str]]]


def perform(wording: Wording, asked: Asked, to_matching: ToMatching, to_named: ToNamed) -> None:
    """Find the jobs, and act on them."""
    ids, words = ids_or_words(asked.given, wording.verb)
    harbor, where = here().store(), Filter()
    if words:
        found, where = ask(harbor, lambda harbor: _matching(harbor, words, asked.limit, to_matching))
    else:
        found = ask(harbor, lambda harbor: whole_ids(harbor, ids))

    def previewed() -> Answers:
        act = cast("Act", wording.act)
        return dict(zip(found, ask(harbor, lambda harbor: harbor.admin.jobs.apreview(act, found)), strict=True))

    def act(progress: Progress | None) -> Answers:
        if not words:
            return dict(zip(found, ask(harbor, lambda harbor: to_named(harbor, found, progress)), strict=True))
        done = ask(harbor, lambda harbor: to_matching(harbor)(where, among=found, progress=progress))
        answers = {id: answer for answer, ids in done.answers.items() for id in ids}
        return {id: answers[id] for id in found}

    carry_out(wording, asked, harbor, found, act, matching=bool(words), preview=previewed)


async def _matching(harbor: Harbor, words: Sequence[str], limit: int, look: ToMatching) -> tuple[list[str], Filter]:
    where = await meant(harbor, words)
    return (await look(harbor)(where, limit=limit, dry_run=True)).matched, where
