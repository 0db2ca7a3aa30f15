"""Settle: outcomes that concern one job by one script, the others by the step of the core (D7-D9, K2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from taskharbor.core.lease import Verdict
from taskharbor.core.steps import settle as steps
from taskharbor.core.tally import minute_of, tallies
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition, settle_kind
from taskharbor.drivers.redis.calls import RedisCalls
from taskharbor.drivers.redis.connection import Arg
from taskharbor.drivers.redis.drafts import counted, run
from taskharbor.drivers.redis.parts import EndPart, micros, pack
from taskharbor.drivers.redis.scripts import load
from taskharbor.drivers.shared.columns import split_token
from taskharbor.errors import DriverUnavailable

SETTLE = load("settle")
# Jobs that one step settles: a page that conflicts with claims is tried again as a whole.
PAGE = 100
Likeness = tuple[Arg, ...]


async def settle(calls: RedisCalls, transitions: Sequence[Transition], now: datetime) -> list[Verdict]:
    """Write outcomes."""
    done: Collection[int] = ()
    plain = [index for index, to in enumerate(transitions) if not to.new_jobs and not isinstance(to, Cancel)]
    if plain and len({to.id for to in transitions}) == len(transitions):
        done = await _settle_plain(calls, transitions, plain, now)
        if len(done) == len(transitions):
            return ["ok"] * len(done)
    verdicts: dict[int, Verdict] = dict.fromkeys(done, "ok")
    left = [index for index in range(len(transitions)) if index not in verdicts]
    for first in range(0, len(left), PAGE):
        page = left[first : first + PAGE]
        answers = await _settle_page(calls, [transitions[index] for index in page], now)
        verdicts |= dict(zip(page, answers, strict=True))
    return [verdicts[index] for index in range(len(transitions))]


async def _settle_page(calls: RedisCalls, page: Sequence[Transition], now: datetime) -> list[Verdict]:
    """Write a page by a step. A full server refuses outcomes with new jobs, which hold up no others."""
    try:
        return await run(calls, steps.settle, page, now)
    except DriverUnavailable:
        others = [to for to in page if not to.new_jobs]
        if others and len(others) < len(page):
            await run(calls, steps.settle, others, now)
        raise  # the caller tries again with all of them


async def _settle_plain(
    calls: RedisCalls, transitions: Sequence[Transition], plain: list[int], now: datetime
) -> list[int]:
    """Write the outcomes at these indexes that the script can decide; return the indexes written.

    The script writes all or none, so that totals fit: if it leaves some, it is called again without them.
    """
    while plain:
        alike: dict[Likeness, list[int]] = {}
        for index in plain:
            alike.setdefault(_likeness(transitions[index]), []).append(index)
        plain = [index for indexes in alike.values() for index in indexes]
        left = await calls.run(SETTLE, *_arguments(transitions, plain, alike, now))
        if not left:
            break
        misfits: set[int] = {plain[number - 1] for number in left}
        plain = [index for index in plain if index not in misfits]
    return plain


def _likeness(to: Transition) -> Likeness:
    """The fields that outcomes of one group share: token, state, crashes, and when it is pruned or runs again."""
    prefix, _, id = split_token(to.token)
    return (
        prefix if id == to.id else "",
        _STATES[type(to)],
        to.crashes,
        micros(to.run_at if isinstance(to, PutBack) else to.keep_until),
    )


def _arguments(
    transitions: Sequence[Transition],
    plain: Sequence[int],
    alike: Mapping[tuple[Arg, ...], Sequence[int]],
    now: datetime,
) -> list[Arg]:
    totals = tallies([transitions[index] for index in plain], now)
    words: list[Arg] = [micros(now), micros(minute_of(now)), len(totals)]
    for total in totals:
        words += counted(total)
    for shared, indexes in alike.items():
        words += (*shared, len(indexes))
        for index in indexes:
            to = transitions[index]
            words += (to.id, split_token(to.token)[1], pack(_end(to, now)))
    return words


_STATES: dict[type[Transition], str] = {Ack: "done", PutBack: "ready", Fail: "dlq"}


def _end(to: Transition, now: datetime) -> EndPart:
    is_over = not isinstance(to, PutBack)
    return EndPart(
        to.attempts,
        to.unknown_put_backs,
        to.last_error,
        to.failed_at,
        to.failures,
        to.started_at,
        now if is_over else None,
        to.keep_until if is_over else None,
        to.result if isinstance(to, Ack) else None,
        to.reason if isinstance(to, Fail) else None,
        to.fingerprint if isinstance(to, Fail) else None,
        to.token,
        settle_kind(to),
        now,
    )
