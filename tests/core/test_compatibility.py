"""Whether a result can be an argument."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest

from taskharbor.core.compatibility import fits


@dataclass
class Point:
    x: int


class Row(TypedDict):
    x: int


class Pair(NamedTuple):
    x: int


class Colour(Enum):
    RED = "red"


class Custom:
    pass


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (int, int),
        (int, float),
        (float, int),
        (int, int | None),
        (str | None, str),
        (str, datetime),
        (UUID, str),
        (bytes, str),
        (list[int], list[float]),
        (list[int], set[int]),
        (tuple[int, ...], list[int]),
        (tuple[int, str], list[int]),
        (Pair, tuple[int]),
        (Point, dict[str, int]),
        (Row, Point),
        (Any, int),
        (int, Any),
        (Decimal, int),
        (Colour, int),
        (Custom, int),
        (int, Custom),
        (list[Any], list[int]),
        (Annotated[int, msgspec.Meta(gt=5)], int),
        (int, Annotated[int, msgspec.Meta(gt=5)]),
        (Annotated[int, msgspec.Meta(extra={"a": 1})], Annotated[int, msgspec.Meta(extra={"a": 1})]),
        (Annotated[int, ["no hash"]], int),
        (str, bytes | str),
        ("not a type", int),
    ],
)
def test_what_may_fit_is_let_through(given: Any, taken: Any) -> None:
    """K3: in doubt it is the worker who finds out."""
    assert fits(given, taken)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (str, int),
        (int, str),
        (None, int),
        (bool, int),
        (bytes, int),
        (list[str], list[int]),
        (list[int], int),
        (int, list[int]),
        (Point, str),
        (dict[str, int], list[int]),
        (date, int),
        (timedelta, bool),
        (int | None, str | list[str]),
        (Pair, Point),
        (Annotated[int, msgspec.Meta(gt=5)], str),
        (list[list[int]], list[int]),
        (Annotated[int, msgspec.Meta(extra={"a": 1})], str),
        (str, Annotated[int, msgspec.Meta(extra={"a": 1})]),
        (Annotated[int, ["no hash"]], str),
    ],
)
def test_what_cannot_fit_is_refused(given: Any, taken: Any) -> None:
    """K3: no value of the one is ever read as the other."""
    assert not fits(given, taken)
