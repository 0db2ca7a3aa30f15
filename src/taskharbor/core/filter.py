"""Job filters for lists, dead letters and bulk actions, written as words like `state:dlq task:mail.*`.

A text value may use `*` for anything. Every driver must choose exactly the records that `matches` accepts.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.core.job import JobRecord
from taskharbor.core.shown import shown
from taskharbor.core.states import Shown
from taskharbor.errors import ConfigError

WORDS = ("queue", "task", "error", "reason", "group", "tag", "workflow", "worker", "since", "until")
KNOWN_WORDS = ", ".join(f"{name}:" for name in ("state", *WORDS))
FIELDS = {"group": "fingerprint", "workflow": "workflow_id"}
TEXTS = ("error", "reason")  # parts of any text; the others are names and times
_SEVERAL = re.compile(rf"\s(?:state|{'|'.join(WORDS)}):")
_HINTS = {"overrun": "; runs past their timeout are running"} | dict.fromkeys(("dead", "failed"), "; dead jobs are dlq")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class Filter(Struct, frozen=True, kw_only=True):
    """Conditions that must all hold; an empty one matches everything. `since` and `until` refer to creation.

    `worker` is the one that holds the job, or that ran it last.
    """

    states: tuple[Shown, ...] = ()
    queue: str | None = None
    task: str | None = None
    error: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    tag: str | None = None
    workflow_id: str | None = None
    worker: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def matches(self, job: JobRecord, now: datetime) -> bool:
        """Whether the record meets every condition at `now`."""
        return (
            (not self.states or shown(job, now) in self.states)
            and _fits(self.queue, job.queue)
            and _fits(self.task, job.type)
            and (self.error is None or self.error in (job.last_error or ""))
            and _fits(self.reason, job.dlq_reason)
            and (self.fingerprint is None or job.fingerprint == self.fingerprint)
            and (self.tag is None or self.tag in job.tags)
            and (self.workflow_id is None or job.workflow_id == self.workflow_id)
            and _fits(self.worker, job.worker)
            and (self.since is None or job.created_at >= self.since)
            and (self.until is None or job.created_at < self.until)
        )


def _fits(pattern: str | None, text: str | None) -> bool:
    if pattern is None:
        return True
    if text is None:
        return False
    if "*" not in pattern:
        return text == pattern
    first, *inner, last = map(re.escape, pattern.split("*"))
    steps = "".join(f"(?>.*?{part})" for part in inner)  # atomic groups do not backtrack, so many stars stay cheap
    return re.fullmatch(f"{first}{steps}.*{last}", text, re.DOTALL) is not None


def parse(words: tuple[str, ...], now: datetime) -> Filter:
    """Parse words like `state:dlq queue:mail since:1h`; a bare word is a task pattern."""
    found: dict[str, object] = {}
    states: list[Shown] = []
    for word in words:
        name, colon, value = word.partition(":")
        if name not in TEXTS and _SEVERAL.search(word):
            raise ConfigError(f"{word!r} is several words in one: leave out the quotes around them")
        if not colon:
            name, value = "task", word
        if name == "state":
            states += [_state(part) for part in value.split(",")]
            continue
        if name not in WORDS:
            raise ConfigError(f"unknown filter word {word!r}: use {KNOWN_WORDS}")
        field = FIELDS.get(name, name)
        if field in found:
            raise ConfigError(f"{word!r} repeats {name}: only state: may be given several times")
        found[field] = _ago(value, now) if name in ("since", "until") else value
    return replace(Filter(states=tuple(states)), **found)


def _ago(text: str, now: datetime) -> datetime:
    try:
        return now - duration(text)
    except OverflowError:
        raise ConfigError(f"{text!r} ago is before the calendar begins") from None


def duration(text: str) -> timedelta:
    """Parse a length of time such as `90s`, `15m`, `1h`, `7d`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if found is None:
        raise ConfigError(f"{text!r} is not a length of time: write a number and s, m, h, d or w, such as 15m")
    try:
        return timedelta(seconds=float(found[1]) * UNITS[found[2]])
    except OverflowError as error:
        raise ConfigError(f"{text!r} is too long") from error


def _state(text: str) -> Shown:
    try:
        return Shown(text)
    except ValueError:
        raise ConfigError(f"unknown state {text!r}: use one of {', '.join(Shown)}{_HINTS.get(text, '')}") from None
