"""Handlers and types for the codec's tests. A handler returns what it saw, so that two calls can be compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, computed_field


class Colour(Enum):
    """Values of a kind that JSON knows nothing of."""

    RED = "red"
    BLUE = "blue"


class Rank(IntEnum):
    """A number with a name."""

    LOW = 1
    HIGH = 9


@dataclass
class Point:
    """A dataclass."""

    x: int
    y: float = 0.0
    marks: list[str] = field(default_factory=list)


class Order(Struct):
    """A msgspec struct that holds a dataclass."""

    id: UUID
    lines: dict[str, Point]
    total: Decimal | None = None


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: str


class Options(TypedDict, total=False):
    """A typed dict."""

    depth: int
    names: list[str]


class User(BaseModel):
    """A Pydantic model with whatever makes a round trip hard: alias, strictness, computed and forbidden fields."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    born: date | None = None
    user_id: UUID = Field(alias="userId")

    @computed_field
    def shout(self) -> str:
        """A field that is written but must not be read back."""
        return self.name.upper()


class Team(BaseModel):
    """Models inside a model."""

    members: list[User]
    lead: User | None = None


def plain(number: int, text: str, flag: bool, share: float) -> Any:
    return locals()


def scalars(when: datetime, day: date, clock: time, span: timedelta, key: UUID, price: Decimal, raw: bytes) -> Any:
    return locals()


def enums(colour: Colour, rank: Rank, word: Literal["a", "b"]) -> Any:
    return locals()


def boxes(
    some: list[int], unique: set[str], fixed: tuple[int, str], many: tuple[float, ...], table: dict[int, frozenset[int]]
) -> Any:
    return locals()


def nested(value: dict[str, list[int | None] | None] | None, options: Options, pair: Pair) -> Any:
    return locals()


def objects(point: Point, order: Order, points: list[Point] | None = None) -> Any:
    return locals()


def models(team: Team, users: list[User], by_name: dict[str, User], maybe: User | None = None) -> Any:
    return locals()


def bare(anything, /, other=None):  # type: ignore[no-untyped-def]
    return locals()


def open_ended(first: int, /, *rest: Decimal, flag: bool = False, **more: Colour) -> Any:
    return locals()


def gaps(a: int = 1, b: int = 2, *rest: int) -> Any:
    return locals()
