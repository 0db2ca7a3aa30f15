"""A history as text: one line per event, jobs and tokens by short names, times in seconds of the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from taskharbor.testing.history import (
    Answer,
    Asked,
    Began,
    Called,
    ClaimEntry,
    Ended,
    Event,
    Final,
    JobEntry,
    KeptEntry,
    Made,
    Named,
    Noted,
    Raised,
    Renew,
    Returned,
    Said,
    SettleEntry,
    SwapEntry,
    Want,
)


class _Names:
    """Short names, given in the order of appearance."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, kind: str, long: str) -> str:
        if long not in self._names:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[long] = f"{kind}{self._counts[kind]}"
        return self._names[long]


def readable(events: Iterable[Event], jobs: Collection[str] | None = None) -> str:
    """The history as text; only events of these jobs, if any are named."""
    names = _Names()
    calls: dict[tuple[str, int], Called] = {}
    lines: list[str] = []
    for event in events:
        if isinstance(event, Called):
            calls[event.who, event.number] = event
        text = _told(event, calls, names, jobs)
        if text is not None:
            lines.append(text)
    return "\n".join(lines)


def _told(
    event: Event, calls: dict[tuple[str, int], Called], names: _Names, jobs: Collection[str] | None
) -> str | None:
    at = f"{event.at / 1e6:12.6f}"
    match event:
        case Called():
            items = [_asked(item, names) for item in event.items if _concerns(item, jobs)]
            hidden = jobs is not None and (not items or isinstance(event.items[0], Want))
            what = f"{event.verb} #{event.number}{': ' if items else ''}{', '.join(items)}"
            return None if hidden else f"{at}  {event.who:<12} {what}"
        case Returned():
            pairs = _answered(calls[event.who, event.number], event.answers, names, jobs)
            hidden = jobs is not None and not pairs
            return None if hidden else f"{at}  {event.who:<12}   … #{event.number} → {', '.join(pairs) or 'nothing'}"
        case Raised():
            called = calls[event.who, event.number]
            hidden = jobs is not None and not any(_concerns(item, jobs) for item in called.items)
            doubt = ", perhaps done" if event.unknown else ""
            return None if hidden else f"{at}  {event.who:<12}   … #{event.number} → {event.error}{doubt}"
        case Began() | Ended():
            if jobs is not None and event.id not in jobs:
                return None
            what = "begins" if isinstance(event, Began) else "ends"
            return f"{at}  {event.who:<12} {names('job', event.id)} v{event.version} {what}"
        case Noted():
            return f"{at}  {event.who:<12} ({event.text})"
        case Final():
            shown = [last for last in event.jobs if jobs is None or last.id in jobs]
            return "\n".join(
                f"{at}  in the end   {names('job', last.id)} is {last.state}, v{last.version}, "
                f"{last.attempts} attempts, {last.crashes} crashes"
                for last in shown
            )


def _concerns(item: Asked | Answer, jobs: Collection[str] | None) -> bool:
    if isinstance(item, SwapEntry):
        return jobs is None or (item.job is not None and item.job.id in jobs)
    return jobs is None or isinstance(item, Want) or getattr(item, "id", None) in jobs


def _asked(item: Asked, names: _Names) -> str:
    match item:
        case JobEntry():
            due = "" if item.run_at is None else f" at {_clock(item.run_at)}"
            return f"{names('job', item.id)}{due}{f' key {item.key}' if item.key else ''}"
        case Want():
            return f"up to {item.limit} of {'/'.join(sorted(set(item.queues)))}"
        case Renew():
            return f"{names('job', item.id)} by {names('token', item.token)}"
        case SettleEntry():
            more = f" + {len(item.jobs)} jobs" if item.jobs else ""
            return f"{item.to} {names('job', item.id)} by {names('token', item.token)}, attempts {item.attempts}{more}"
        case Named():
            return names("job", item.id)
        case SwapEntry():
            slot = "" if item.slot is None else f" at {_clock(item.slot)}"
            made = "" if item.job is None else f" makes {names('job', item.job.id)}"
            return f"schedule {item.id}{slot}{made}"


def _answered(called: Called, answers: Iterable[Answer], names: _Names, jobs: Collection[str] | None) -> list[str]:
    texts: list[str] = []
    for number, answer in enumerate(answers):
        item = called.items[number] if number < len(called.items) else None
        about = answer if isinstance(answer, ClaimEntry | Made) or item is None else item
        if _concerns(about, jobs):
            texts.append(_answer(answer, names))
    return texts


def _answer(answer: Answer, names: _Names) -> str:
    match answer:
        case Made():
            return f"{names('job', answer.id)}{'' if answer.created else ' (known)'}"
        case ClaimEntry():
            until = _clock(answer.expires_at)
            return f"{names('job', answer.id)} v{answer.version} under {names('token', answer.token)} until {until}"
        case KeptEntry():
            return f"until {_clock(answer.expires_at)}{', cancel asked for' if answer.cancel_requested else ''}"
        case Said():
            return answer.word


def _clock(micros: int) -> str:
    """A driver's time, as seconds within its day."""
    return f"{micros / 1e6 % 86400:.3f}"
