"""From samples to statements: medians, ratios of turns that followed each other, floors met or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.model import Measure


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
    """What a measure came to."""
    ours = _values(measure, result, "ours")
    if not ours:
        yield Row(measure.key, measure.title, "failed", "", margin=0.0, note=result["absent"].get("ours", ""))
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
    if len(measure.sides) == 1 and not measure.limits:
        yield Row(measure.key, measure.title, shown, "")


def _values(measure: Measure, result: dict[str, Any], name: str) -> list[float]:
    return [sample[measure.value] for sample in result["samples"].get(name, [])]


def _bounds(measure: Measure, result: dict[str, Any], shown: str) -> Iterator[Row]:
    for value, most in measure.limits.items():
        found = median(sample[value] for sample in result["samples"]["ours"])
        is_main = value == measure.value
        yield Row(
            measure.key,
            measure.title,
            shown if is_main else f"{found:+.1f} {measure.unit}",
            "" if is_main else "second half against the first (flat)",
            floor=f"≤ {most:g} {measure.unit}",
            margin=most / max(found, 1e-9) if found > 0 else float("inf"),
            note=_tail(result) if value == "p50" else "",
        )


def _tail(result: dict[str, Any]) -> str:
    return f"p99 {median(sample['p99'] for sample in result['samples']['ours']):.1f} ms"


def _compared(measure: Measure, name: str, shown: str, ours: list[float], theirs: list[float]) -> Row:
    pairs = [mine / other for mine, other in zip(ours, theirs, strict=False)]
    floor = measure.floors.get(name)
    ratio = median(pairs)
    return Row(
        measure.key,
        measure.title,
        shown,
        measure.sides[name].label,
        amount(median(theirs), measure.unit),
        ratio,
        f"{min(pairs):.2f} – {max(pairs):.2f}" if len(pairs) > 1 else "",
        "" if floor is None else f"≥ {floor:g} ×",
        None if floor is None else ratio / floor,
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
        floor="" if floor is None else f"≥ {floor:g} ×",
        note=f"not measured: {why}",
    )


def amount(value: float, unit: str) -> str:
    """A value with its unit, with as many digits as mean something."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"
