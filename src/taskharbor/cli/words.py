"""Filter words on the command line."""

from __future__ import annotations

from collections.abc import Sequence

import click

from taskharbor.core.filter import KNOWN_WORDS, WORDS
from taskharbor.core.states import Shown

WORDS_HELP = """
WORDS narrow the list; all of them must hold:

\b
  mail.*            tasks by name, * matches anything (also task:mail.*)
  queue:mail        a queue
  state:dlq,ready   scheduled, ready, waiting, claimed, running, lapsed,
                    done, dlq, cancelled
  tag:vip           a tag
  error:Timeout     part of the last error; case matters
  reason:crash_*    why it is in the dead-letter queue
  group:1f0c2ab3d4  dead jobs of one cause, as `dlq groups` lists them
  workflow:ID       the jobs of a workflow
  worker:host:*     held, or run last, by a worker
  since:1h          created within the last hour; until:1h before that
"""


def is_word(text: str) -> bool:
    """Whether this is a filter word and not an id: it names a field, or has a star."""
    name, colon, _ = text.partition(":")
    return "*" in text or bool(colon and name in ("state", *WORDS))


def as_word(error: click.NoSuchOption) -> str | None:
    """The filter word that was written as an option, if the command takes such words."""
    name = error.option_name.lstrip("-")
    takes_words = error.ctx is not None and WORDS_HELP.strip().partition("\n")[0] in (error.ctx.command.help or "")
    return f"{name}:…" if takes_words and name in ("state", *WORDS) else None


def nothing_matches(words: Sequence[str], no_jobs: str) -> str:
    """The answer when no job matches, with a hint if a bare word may not be meant as the name of a task."""
    word = next((text for text in words if not is_word(text) and "." not in text), None)
    if word is None or any(character.isdigit() for character in word):
        return f"{no_jobs} match."
    state = "dlq" if word in ("dead", "failed") else word
    if state in [*Shown]:
        return f"{no_jobs} match: did you mean state:{state}?"
    return (
        f"{no_jobs} match. {word} is read as the whole name of a task: the jobs of a queue are queue:{word}, a part of "
        f"a name is '*{word}*'."
    )


def ids_or_words(given: Sequence[str], verb: str) -> tuple[list[str], list[str]]:
    """Split into ids and words; one of the two is empty."""
    words = [text for text in given if is_word(text)]
    ids = [text for text in given if not is_word(text)]
    if not given or "" in given:
        raise click.UsageError(f"say which jobs to {verb}: ids, or filter words such as queue:mail ('*' matches all)")
    if words and ids:
        meant = f"filter words are {KNOWN_WORDS}" if ":" in ids[0] else f"a task is written task:{ids[0]}"
        raise click.UsageError(f"{ids[0]!r} is read as an id and {words[0]!r} as a filter word: give either; {meant}")
    return ids, words
