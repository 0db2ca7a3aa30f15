"""A history as text: one line per event, jobs and tokens by short names, times in seconds of the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from taskharbor.testing import history


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


def readable(events: Iterable[history.Event], jobs: Collection[str] | None = None) -> str:
    """The history as text; only events of these jobs, if any are named."""
    names, listed = _Names(), list(events)
    calls = {(event.who, event.number): event for event in listed if isinstance(event, history.Called)}
    lines = (_line(event, calls, names, jobs) for event in listed)
    return "\n".join(line for line in lines if line is not None)


def _line(
    event: history.Event, calls: dict[tuple[str, int], history.Called], names: _Names, jobs: Collection[str] | None
) -> str | None:
    at = f"{event.at / 1e6:12.6f}"
    match event:
        case history.Called():
            items = [_asked(item, names) for item in event.items if _concerns(item, jobs)]
            hidden = jobs is not None and (not items or isinstance(event.items[0], history.Want))
            what = f"{event.verb} #{event.number}{': ' if items else ''}{', '.join(items)}"
            return None if hidden else f"{at}  {event.who:<12} {what}"
        case history.Returned():
            pairs = _answered(calls[event.who, event.number], event.answers, names, jobs)
            hidden = jobs is not None and not pairs
            return None if hidden else f"{at}  {event.who:<12}   … #{event.number} → {', '.join(pairs) or 'nothing'}"
        case history.Raised():
            called = calls[event.who, event.number]
            hidden = jobs is not None and not any(_concerns(item, jobs) for item in called.items)
            doubt = ", may be done" if event.unknown else ""
            return None if hidden else f"{at}  {event.who:<12}   … #{event.number} → {event.error}{doubt}"
        case history.Began() | history.Ended():
            if jobs is not None and event.id not in jobs:
                return None
            what = "begins" if isinstance(event, history.Began) else "ends"
            return f"{at}  {event.who:<12} {names('job', event.id)} v{event.version} {what}"
        case history.Noted():
            return f"{at}  {event.who:<12} ({event.text})"
        case history.Final():
            shown = [last for last in event.jobs if jobs is None or last.id in jobs]
            return "\n".join(
                f"{at}  in the end   {names('job', last.id)} is {last.state}, v{last.version}, "
                f"{last.attempts} attempts, {last.crashes} crashes"
                for last in shown
            )


def _concerns(item: history.Asked | history.Answer, jobs: Collection[str] | None) -> bool:
    if isinstance(item, history.SwapEntry):
        return jobs is None or (item.job is not None and item.job.id in jobs)
    return jobs is None or isinstance(item, history.Want) or getattr(item, "id", None) in jobs


def _asked(item: history.Asked, names: _Names) -> str:
    match item:
        case history.JobEntry():
            due = "" if item.run_at is None else f" at {_clock(item.run_at)}"
            return f"{names('job', item.id)}{due}{f' key {item.key}' if item.key else ''}"
        case history.Want():
            return f"up to {item.limit} of {'/'.join(sorted(set(item.queues)))}"
        case history.Renew():
            return f"{names('job', item.id)} by {names('token', item.token)}"
        case history.SettleEntry():
            more = f" + {len(item.jobs)} jobs" if item.jobs else ""
            return f"{item.to} {names('job', item.id)} by {names('token', item.token)}, attempts {item.attempts}{more}"
        case history.Named():
            return names("job", item.id)
        case history.SwapEntry():
            slot = "" if item.slot is None else f" at {_clock(item.slot)}"
            made = "" if item.job is None else f" makes {names('job', item.job.id)}"
            return f"schedule {item.id}{slot}{made}"


def _answered(
    called: history.Called, answers: Iterable[history.Answer], names: _Names, jobs: Collection[str] | None
) -> list[str]:
    texts: list[str] = []
    for number, answer in enumerate(answers):
        item = called.items[number] if number < len(called.items) else None
        about = answer if isinstance(answer, history.ClaimEntry | history.Made) or item is None else item
        if _concerns(about, jobs):
            texts.append(_answer(answer, names))
    return texts


def _answer(answer: history.Answer, names: _Names) -> str:
    match answer:
        case history.Made():
            return f"{names('job', answer.id)}{'' if answer.created else ' (known)'}"
        case history.ClaimEntry():
            until = _clock(answer.expires_at)
            return f"{names('job', answer.id)} v{answer.version} under {names('token', answer.token)} until {until}"
        case history.KeptEntry():
            return f"until {_clock(answer.expires_at)}{', cancel asked for' if answer.cancel_requested else ''}"
        case history.Word():
            return answer.word


def _clock(micros: int) -> str:
    """A driver's time, as seconds within its day."""
    return f"{micros / 1e6 % 86400:.3f}"
