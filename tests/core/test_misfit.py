"""Calls that do not fit a task: the error names the parameter, what it wants and what it got."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from taskharbor.core.codec import Signature
from taskharbor.core.misfit import closest, misbound
from taskharbor.errors import WrongArguments


@dataclass
class Item:
    sku: str
    count: int = 1


def add(a: int, b: int = 0, *, note: str = "") -> None: ...
def nothing() -> None: ...
def by_name(*, x: int, y: int) -> None: ...
def placed(a: int, /, b: int) -> None: ...
def one(x: int) -> None: ...
def star(*xs: int, **more: str) -> None: ...
def led(a: int, *rest: int) -> None: ...
def mixed(a: int, /, **more: int) -> None: ...
def mail(to: str, cc: list[str], when: datetime | None = None) -> None: ...
def table(x: dict[str, list[int]]) -> None: ...
def buy(item: Item, others: list[Item] | None = None) -> None: ...


def refusal(handler: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The message about a call."""
    with pytest.raises(WrongArguments) as caught:
        Signature("shop.task", handler).encode(args, kwargs)
    said = str(caught.value)
    assert said.startswith("task shop.task")
    return said.removeprefix("task shop.task").removeprefix(":").strip()


@pytest.mark.parametrize(
    ("handler", "args", "kwargs", "says"),
    [
        (add, (), {}, "needs 'a': it takes a, b, note"),
        (by_name, (), {}, "needs 'x' and 'y': it takes x, y"),
        (led, (), {}, "needs 'a': it takes a, *rest"),
        (mixed, (), {"a": 1}, "needs 'a': it takes a, **more"),
        (add, (1, 2, 3), {}, "takes at most 2 arguments by position (a, b), got 3"),
        (one, (1, 2), {}, "takes at most one argument by position (x), got 2"),
        (nothing, (1,), {}, "takes no arguments"),
        (by_name, (1,), {}, "takes no arguments by position, only by name: x, y"),
        (add, (1,), {"nte": "x"}, "has no parameter 'nte' (did you mean 'note'?): it takes a, b, note"),
        (add, (1,), {"colour": "x"}, "has no parameter 'colour': it takes a, b, note"),
        (nothing, (), {"x": 1}, "has no parameter 'x': it takes no arguments"),
        (add, (1,), {"a": 2}, "got 'a' twice: by position and by name"),
        (placed, (), {"a": 1, "b": 2}, "takes 'a' by position only, not by name"),
    ],
)
def test_a_call_that_cannot_be_made_is_refused_by_the_parameters_name(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    """X5: missing, too many, unknown, twice."""
    assert refusal(handler, *args, **kwargs) == says


def test_any_other_refusal_has_pythons_own_message() -> None:
    """X5: such as a name that is not text."""
    odd: Any = {1: 2}
    error = TypeError("keywords must be strings")
    assert misbound(inspect.signature(star), (), odd, error) == "cannot be called like this: keywords must be strings"
    assert "has no parameter 1" in misbound(inspect.signature(add), (), odd, error)


@pytest.mark.parametrize(
    ("handler", "args", "kwargs", "says"),
    [
        (add, ("1",), {}, "parameter a wants int, got str"),
        (add, (True,), {}, "parameter a wants int, got bool"),
        (add, (None,), {}, "parameter a wants int, got None"),
        (add, (1.5,), {}, "parameter a wants int, got float"),
        (add, ([],), {}, "parameter a wants int, got list"),
        (add, ({},), {}, "parameter a wants int, got dict"),
        (add, (1,), {"note": 5}, "parameter note wants str, got int"),
        (star, ("1",), {}, "parameter *xs wants int, got str"),
        (star, (), {"x": 1}, "parameter **more wants str, got int"),
        (mail, ("a", "b"), {}, "parameter cc wants list[str], got str"),
        (mail, ("a", ["b", 3]), {}, "parameter cc wants list[str]: cc[1] must be str, got int"),
        (mail, ("a", [], 5.5), {}, "parameter when wants datetime.datetime | None, got float"),
        (mail, ("a", [], "x"), {}, "parameter when wants datetime.datetime | None: Invalid RFC3339 encoded datetime"),
        (table, ({"a": [1, "b"]},), {}, "parameter x wants dict[str, list[int]]: x[...][1] must be int, got str"),
        (buy, ("x",), {}, "parameter item wants Item, got str"),
        (mail, (Item("a"), []), {}, "parameter to wants str, got Item"),
        (add, (Decimal(1),), {}, "parameter a wants int, got Decimal"),
        (buy, ({"count": 1},), {}, "parameter item wants Item: Object missing required field `sku`"),
        (buy, ({"sku": "a", "count": "3"},), {}, "parameter item wants Item: item.count must be int, got str"),
        (buy, (Item("a", "3"),), {}, "parameter item wants Item: item.count must be int, got str"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_another_type_is_refused_by_what_its_parameter_wants(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    """X5, P3: what it wants and what it got, in the words of Python; the value itself may be a secret."""
    assert refusal(handler, *args, **kwargs) == says


def test_an_item_inside_a_list_is_found() -> None:
    """X5: with the path to it."""
    said = refusal(buy, Item("a"), [Item("b"), {"count": 1}])
    assert said.startswith("parameter others wants list[")
    assert said.endswith(": Object missing required field `sku` (at others[1])")


def test_a_signature_knows_its_parameters() -> None:
    """P1: so that an option of the job among the arguments can be distinguished from an argument."""
    assert list(Signature("task", add).parameters) == ["a", "b", "note"]
    assert Signature("task", star).takes_any_name
    assert not Signature("task", add).takes_any_name


def test_a_mistyped_name_has_a_guess() -> None:
    """X5: or none."""
    assert closest("dealy", ["delay", "queue"]) == "delay"
    assert closest("colour", ["delay", "queue"]) is None
