"""From samples to statements: medians, ratios of turns that followed each other, floors met or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.model import COUNT, Measure

# Values that are bounded beside a measure's own, and what they are.
BESIDE = {
    "growth": "second half against the first (flat)",
    "server": "all processes of the server",
    "conflicts": "swaps for claims that were refused",
}
UNITS = {"conflicts": "%"}  # of those that have another than their measure
WHOLE = (COUNT, "bytes")


@dataclass(frozen=True)
class Row:
    """Ours beside one other side, or beside a bound of its own."""

    key: str
    title: str
    ours: str
    label: str
    theirs: str = ""
    ratio: float | None = None
    spread: str = ""
    floor: str = ""
    margin: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the floor was reached: `margin` is how many times over."""
        return None if self.margin is None else self.margin >= 1


def rows(measure: Measure, result: dict[str, Any]) -> Iterator[Row]:
    """The result of a measure."""
    ours = _values(measure, result, "ours")
    if not ours:
        yield Row(measure.key, measure.title, "failed", "", margin=0.0, note=result["absent"].get("ours", ""))
        yield from _without_ours(measure, result)
        return
    shown = amount(median(ours), measure.unit)
    yield from _bounds(measure, result, shown)
    for name in measure.sides:
        if name == "ours":
            continue
        theirs = _values(measure, result, name)
        if theirs:
            yield _compared(measure, name, shown, ours, theirs)
        else:
            yield _absent(measure, name, shown, median(ours), result["absent"].get(name, "not measured"))
    if len(measure.sides) == 1 and not measure.limits and not measure.least:
        yield Row(measure.key, measure.title, shown, "")


def _without_ours(measure: Measure, result: dict[str, Any]) -> Iterator[Row]:
    for name, side in measure.sides.items():
        theirs = _values(measure, result, name)
        if name != "ours":
            shown = amount(median(theirs), measure.unit) if theirs else ""
            note = "" if theirs else f"not measured: {result['absent'].get(name, '')}"
            yield Row(measure.key, measure.title, "failed", side.label, shown, note=note)


def _values(measure: Measure, result: dict[str, Any], name: str) -> list[float]:
    return [sample[measure.value] for sample in result["samples"].get(name, [])]


def _bounds(measure: Measure, result: dict[str, Any], shown: str) -> Iterator[Row]:
    for value, most in measure.limits.items():
        found = _median(result, value)
        is_main, unit = value == measure.value, UNITS.get(value, measure.unit)
        yield Row(
            measure.key,
            measure.title,
            shown if is_main else f"{found:+.1f} {measure.unit}" if value == "growth" else amount(found, unit),
            "" if is_main else BESIDE[value],
            floor=f"≤ {most:g} {unit}",
            margin=most / max(found, 1e-9) if found > 0 else float("inf"),
            note=_note(result, value),
        )
    for value, least in measure.least.items():
        margin = _median(result, value) / least
        floor, note = f"≥ {least:g} {measure.unit}", _note(result, value)
        yield Row(measure.key, measure.title, shown, "", floor=floor, margin=margin, note=note)


def _median(result: dict[str, Any], value: str) -> float:
    return float(median(sample[value] for sample in result["samples"]["ours"]))


def _note(result: dict[str, Any], value: str) -> str:
    if value == "p50":
        return f"p99 {_median(result, 'p99'):.1f} ms"
    if value == "kept":
        return f"first {_median(result, 'first'):,.0f}, last {_median(result, 'last'):,.0f} jobs/s"
    return ""


def _compared(measure: Measure, name: str, shown: str, ours: list[float], theirs: list[float]) -> Row:
    pairs = [mine / other for mine, other in zip(ours, theirs, strict=False) if other]  # some take no CPU when idle
    floor = measure.floors.get(name)
    ratio = median(pairs) if pairs else None
    return Row(
        measure.key,
        measure.title,
        shown,
        measure.sides[name].label,
        amount(median(theirs), measure.unit),
        ratio,
        f"{min(pairs):.2f} – {max(pairs):.2f}" if len(pairs) > 1 else "",
        _floor(measure, floor),
        None if floor is None or not ratio else floor / ratio if measure.smaller_is_better else ratio / floor,
    )


def _absent(measure: Measure, name: str, shown: str, ours: float, why: str) -> Row:
    """A side that could not take its turns. A number from elsewhere is shown, but proves nothing: no verdict."""
    side, floor = measure.sides[name], measure.floors.get(name)
    return Row(
        measure.key,
        measure.title,
        shown,
        side.label,
        "" if side.known is None else f"({amount(side.known, measure.unit)} elsewhere)",
        None if side.known is None else ours / side.known,
        floor=_floor(measure, floor),
        note=f"not measured: {why}",
    )


def _floor(measure: Measure, floor: float | None) -> str:
    return "" if floor is None else f"{'≤' if measure.smaller_is_better else '≥'} {floor:g} ×"


def amount(value: float, unit: str) -> str:
    """A value with its unit, with as many digits as mean something."""
    digits = 0 if value >= 100 or unit in WHOLE else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"
