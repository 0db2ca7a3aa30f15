"""Where failures are collected: values of any type, and FailedSteps in their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Generic, TypedDict, TypeVar, cast

import msgspec
import pytest
from msgspec import Meta, Struct
from pydantic import BaseModel
from typing_extensions import TypeAliasType

from taskharbor.core.codec import Signature, Undecodable, decode_value, encode_value
from taskharbor.core.collecting import FailedStep, collected, one_of, readable
from taskharbor.core.compatibility import fits
from taskharbor.core.misfit import shown_type
from taskharbor.errors import ConfigError, WrongArguments

T = TypeVar("T")
DAY = date(2026, 1, 2)
DEAD = FailedStep("dead", "dlq", "Boom: x")


@dataclass
class Report:
    day: date
    size: int = 0


class Row(Struct):
    day: date


class Tagged(Struct, tag="tagged"):
    day: date


class Table(TypedDict):
    day: date


class Model(BaseModel):
    day: date


@dataclass
class Loose:
    inside: object


@dataclass
class Box(Generic[T]):
    inside: T


Page = TypeAliasType("Page", Report | FailedStep)
OBJECTS = [Report(DAY), Row(DAY), Tagged(DAY), Table(day=DAY), Model(day=DAY)]
KINDS = [(type(value) if not isinstance(value, dict) else Table, value) for value in OBJECTS]


def taking(kind: Any) -> Signature:
    """The signature of a handler that takes such a thing."""

    def handler(x): ...  # type: ignore[no-untyped-def]

    handler.__annotations__["x"] = kind
    return Signature("task", handler)


def there_and_back(kind: Any, value: Any) -> Any:
    """A value as the handler is given it."""
    signature = taking(kind)
    ((found,), _) = signature.decode(signature.encode((value,), {}))
    return found


@pytest.mark.parametrize(("kind", "value"), KINDS, ids=lambda each: getattr(each, "__name__", ""))
def test_objects_and_failed_steps_are_distinguished(kind: Any, value: Any) -> None:
    """K4, P3: whatever kind of object it is, and wherever the two may stand."""
    either, some, fixed, named, box, noted = cast(
        "tuple[Any, ...]", (kind | FailedStep, list, tuple, Mapping, Box, Annotated)
    )
    places = [
        (either, value),
        (either, DEAD),
        (some[either], [value, DEAD, value]),
        (some[some[either]], [[value], [], [DEAD]]),
        (fixed[either, ...], (DEAD, value)),
        (fixed[int, either], (1, DEAD)),
        (named[str, either], {"a": DEAD, "b": value}),
        (some[either | None], [None, DEAD, value]),
        (some[either] | None, None),
        (noted[some[either], "of a day"], [DEAD, value]),
        (some[noted[either, "of a day"]], [DEAD, value]),
        (box[either], Box(DEAD)),
    ]
    for place, held in places:
        assert there_and_back(place, held) == held


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (dict[str, date] | FailedStep, [{"a": DAY}, {}, DEAD]),
        (Any | FailedStep, [1, None, {"a": [1]}, DEAD]),
        (int | date | None | FailedStep, [1, DAY, None, DEAD]),
        (list[Report | FailedStep] | FailedStep, [[Report(DAY), DEAD], DEAD]),
        (list[Any | FailedStep] | FailedStep, [["a", DEAD], DEAD]),
        (Report | Annotated[FailedStep, "why"], [Report(DAY), DEAD]),
        (Annotated[int | FailedStep, Meta(gt=0)], [1, DEAD]),
        (Page, [Report(DAY), DEAD]),
        (Annotated[Page, "aliased"], [Report(DAY), DEAD]),
        (FailedStep | None, [None, DEAD]),
        (FailedStep, [DEAD]),
    ],
)
def test_a_failed_step_may_stand_in_for_anything(kind: Any, values: list[Any]) -> None:
    """K4, P3: also for plain JSON, and by another name."""
    assert there_and_back(list[kind], values) == values
    assert [there_and_back(kind, value) for value in values] == values


def test_what_needs_no_telling_apart_is_left_to_msgspec() -> None:
    """P3: the very type that was written."""
    for kind in (int, None, list[int], Report | None, int | FailedStep, list[date | FailedStep], "Report", Box[int]):
        assert readable(kind) is kind


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (object, Any),
        (list[object], list[Any]),
        (dict[str, object] | None, dict[str, Any] | None),
        (Annotated[list[object], "said"], Annotated[list[Any], "said"]),
    ],
)
def test_object_accepts_anything(written: Any, read: Any) -> None:
    """P3: as Any does, wherever it stands."""
    assert readable(written) == read
    for value in (5, "text", None, [1, {"a": 2.5}], {"b": [None]}):
        assert there_and_back(object, value) == value
        assert there_and_back(object | int, value) == value
        assert there_and_back(list[object], [value]) == [value]
        assert there_and_back(Loose, Loose(value)) == Loose(value)
        assert decode_value(encode_value(value), object) == value


def test_objects_beside_failed_steps_are_read_as_strictly_as_ever() -> None:
    """F9, P3: and the reason says where."""
    signature = taking(list[Report | FailedStep])
    wrong = {
        '{"day":"2026-01-02","size":"1"}': "x[1].size must be int, got str",
        '{"day":"today"}': "Invalid RFC3339 encoded date (at x[1].day)",
        '{"taskharbor":"other"}': "Object missing required field `day` (at x[1])",
        '{"taskharbor":"failed_step","id":1}': "x[1].id must be str, got int",
        "5": "x[1] must be dict, got int",
        "null": "x[1] must be dict, got None",
    }
    for given, reason in wrong.items():
        with pytest.raises(Undecodable) as refused:
            signature.decode(b'{"v":1,"args":{"x":[{"day":"2026-01-02"},%s]}}' % given.encode())
        wants = f"parameter x wants {shown_type(list[Report | FailedStep])}"
        assert str(refused.value) == f"the arguments do not fit the signature: {wants}: {reason}"
    with pytest.raises(WrongArguments, match=r"Expected `int` >= 1 \(at x\[0\]\)"):
        there_and_back(list[Annotated[int | FailedStep, Meta(gt=0)]], [0])


def test_two_kinds_of_objects_are_still_one_too_many() -> None:
    """X5: where the task is declared."""
    with pytest.raises(ConfigError, match=r"cannot be decoded from JSON: Type unions may not contain more than one"):
        taking(list[Report | Row | FailedStep])


def test_a_handler_may_have_them_anywhere() -> None:
    """K4, P3: with defaults, by name, and in any number."""

    def handler(a: Report | FailedStep = DEAD, *rest: Report | FailedStep, b: Row | FailedStep = DEAD) -> None: ...

    signature = Signature("task", handler)
    assert signature.decode(signature.encode((), {})) == ((DEAD,), {})
    args = (Report(DAY), DEAD, Report(DAY))
    assert signature.decode(signature.encode(args, {"b": Row(DAY)})) == (args, {"b": Row(DAY)})
    payload = signature.encode_rest(Report, (DEAD,), {"b": DEAD})
    assert msgspec.json.decode(payload)["args"].keys() == {"rest", "b"}


def test_a_result_may_hold_failed_steps_too() -> None:
    """K4, P3: by the return annotation; what cannot be read at all is plain JSON."""
    raw = encode_value([Report(DAY), DEAD])
    assert decode_value(raw, list[Report | FailedStep]) == [Report(DAY), DEAD]
    assert decode_value(raw, list[Report | Row | FailedStep]) == msgspec.json.decode(raw)


@pytest.mark.parametrize(
    ("given", "taken", "expected"),
    [
        (list[Report], list[Report | FailedStep], True),
        (list[Report | FailedStep], list[Report], False),
        (FailedStep, Report | FailedStep, True),
        (Report | FailedStep, dict[str, Any], True),
        (list[Model], list[Model | FailedStep], True),
        (list[str], list[Report | FailedStep], False),
        (list[Report | FailedStep], list[int], False),
        (Report | FailedStep, list[Report | FailedStep], False),
        (list[list[Report | FailedStep]], list[Report | FailedStep], False),
    ],
)
def test_unions_with_failed_steps_are_understood(given: Any, taken: Any, expected: bool) -> None:
    """K3, K4: there has to be room for both."""
    assert fits(given, taken) is expected


def test_a_failure_may_stand_in_the_place_of_a_result() -> None:
    """K4: the parameter that takes it must accept it."""
    assert collected(int) == int | FailedStep
    assert fits(list[collected(int)], list[int | FailedStep])  # type: ignore[misc]
    assert fits(collected(Report), Any)
    assert fits(collected(Report), dict[str, Any] | Report)
    for taken in (int, Report, Row, list[int]):
        assert not fits(collected(taken), taken)
        assert not fits(list[collected(taken)], list[taken])  # type: ignore[misc,valid-type]
    assert not fits(collected(int), str | FailedStep)
    assert fits(FailedStep, FailedStep)
    assert one_of([]) is Any
