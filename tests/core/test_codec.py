"""Arguments by signature: what a worker's handler sees is what a plain call would have given it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from datetime import UTC, date
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.codec import Arguments, Signature, decode_value, encode_named, encode_value
from taskharbor.core.states import State
from taskharbor.core.wiring import Wiring, filled, wired
from taskharbor.driver import Parent
from taskharbor.errors import WrongArguments

from . import handlers
from .handlers import Colour, Options, Order, Pair, Point, Rank, Team, User

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

integers = st.integers()
floats = st.floats(allow_nan=False, allow_infinity=False)
decimals = st.decimals(allow_nan=False)
points = st.builds(Point, integers, floats, st.lists(st.text(), max_size=2))
orders = st.builds(Order, st.uuids(), st.dictionaries(st.text(), points, max_size=2), st.none() | decimals)
users = st.builds(User, name=st.text(), born=st.none() | st.dates(), userId=st.uuids())
json_values = st.recursive(
    st.none() | st.booleans() | integers | floats | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


ADA = User(name="Ada", born=date(1815, 12, 10), userId=UUID(int=1))


def there_and_back(handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments of a call after a journey through the store."""
    signature = Signature("task", handler)
    return signature.decode(signature.encode(args, kwargs))


def calls_of(handler: Callable[..., Any], *args: st.SearchStrategy[Any], **kwargs: st.SearchStrategy[Any]) -> Any:
    """Calls with these kinds of arguments."""
    return st.tuples(st.just(handler), st.tuples(*args), st.fixed_dictionaries(kwargs))


calls: dict[str, st.SearchStrategy[Call]] = {
    "plain": calls_of(
        handlers.plain, integers, st.text(), flag=st.booleans(), share=floats | st.integers(-(2**53), 2**53)
    ),
    "scalars": calls_of(
        handlers.scalars,
        st.datetimes() | st.datetimes(timezones=st.just(UTC)),
        st.dates(),
        st.times(),
        st.timedeltas(),
        key=st.uuids(),
        price=decimals,
        raw=st.binary(),
    ),
    "enums": calls_of(handlers.enums, st.sampled_from(Colour), st.sampled_from(Rank), word=st.sampled_from("ab")),
    "boxes": calls_of(
        handlers.boxes,
        st.lists(integers, max_size=3),
        st.sets(st.text(), max_size=3),
        fixed=st.tuples(integers, st.text()),
        many=st.lists(floats, max_size=3).map(tuple),
        table=st.dictionaries(integers, st.frozensets(integers, max_size=3), max_size=3),
    ),
    "nested": calls_of(
        handlers.nested,
        st.none() | st.dictionaries(st.text(), st.none() | st.lists(st.none() | integers, max_size=2), max_size=2),
        options=st.fixed_dictionaries({}, optional={"depth": integers, "names": st.lists(st.text(), max_size=2)}),
        pair=st.builds(Pair, integers, st.text()),
    ),
    "objects": calls_of(handlers.objects, points, orders, points=st.none() | st.lists(points, max_size=2)),
    "models": calls_of(
        handlers.models,
        st.builds(Team, members=st.lists(users, max_size=2), lead=st.none() | users),
        st.lists(users, max_size=2),
        by_name=st.dictionaries(st.text(), users, max_size=2),
        maybe=st.none() | users,
    ),
    "bare": calls_of(handlers.bare, json_values, other=json_values),
    "open": calls_of(
        handlers.open_ended, integers, decimals, decimals, flag=st.booleans(), first=st.sampled_from(Colour)
    ),
}


@pytest.mark.parametrize("name", calls)
@given(data=st.data())
def test_a_handler_sees_what_a_plain_call_would_give_it(name: str, data: st.DataObject) -> None:
    """P3: every kind of value that the contract names, decoded by the signature."""
    handler, args, kwargs = data.draw(calls[name])
    decoded_args, decoded_kwargs = there_and_back(handler, args, kwargs)
    assert handler(*decoded_args, **decoded_kwargs) == handler(*args, **kwargs)


@pytest.mark.parametrize("name", ["plain", "objects", "models", "boxes"])
@given(data=st.data())
def test_values_come_back_as_their_own_types(name: str, data: st.DataObject) -> None:
    """P3: a tuple is not a list and a model is not a dict, also where the two compare equal."""
    handler, args, kwargs = data.draw(calls[name])
    seen = handler(*args, **kwargs)
    decoded_args, decoded_kwargs = there_and_back(handler, args, kwargs)
    for parameter, value in handler(*decoded_args, **decoded_kwargs).items():
        assert type(value) is type(seen[parameter]) or {type(value), type(seen[parameter])} == {int, float}


@st.composite
def signatures(draw: st.DrawFn) -> inspect.Signature:
    """Any signature Python allows, with integers as defaults."""
    kinds = draw(st.lists(st.sampled_from(list(inspect._ParameterKind)), max_size=5).map(sorted))
    parameters: list[inspect.Parameter] = []
    optional = False
    for place, kind in enumerate(kinds):
        if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            if parameters and parameters[-1].kind is kind:
                continue
            parameters.append(inspect.Parameter(f"p{place}", kind))
            continue
        optional = draw(st.booleans()) or (optional and kind is not inspect.Parameter.KEYWORD_ONLY)
        default = place + 100 if optional else inspect.Parameter.empty
        parameters.append(inspect.Parameter(f"p{place}", kind, default=default))
    return inspect.Signature(parameters)


def handler_of(signature: inspect.Signature) -> Callable[..., Any]:
    """A handler with that signature, which returns what it saw."""

    def handler(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    handler.__signature__ = signature  # type: ignore[attr-defined]
    handler.__annotations__ = {}
    return handler


@given(
    signatures(),
    st.lists(st.integers(0, 9), max_size=6).map(tuple),
    st.dictionaries(st.sampled_from(["p0", "p1", "p2", "p3", "p4", "other"]), st.integers(0, 9), max_size=4),
)
def test_a_call_is_refused_or_arrives_as_python_itself_would_have_it(
    signature: inspect.Signature, args: tuple[int, ...], kwargs: dict[str, int]
) -> None:
    """P3, X5: positional-only, keyword-only, *args, **kwargs and defaults, for any signature and any call."""
    handler = handler_of(signature)
    try:
        seen = handler(*args, **kwargs)
    except TypeError:
        with pytest.raises(WrongArguments, match=r"^task task"):
            there_and_back(handler, args, kwargs)
    else:
        decoded_args, decoded_kwargs = there_and_back(handler, args, kwargs)
        assert handler(*decoded_args, **decoded_kwargs) == seen


@given(
    signatures(),
    st.lists(st.integers(0, 9), max_size=6).map(tuple),
    st.dictionaries(st.sampled_from(["p0", "p1", "p2", "p3", "p4", "other"]), st.integers(0, 9), max_size=4),
)
def test_a_call_whose_first_argument_comes_later_is_the_same_call(
    signature: inspect.Signature, args: tuple[int, ...], kwargs: dict[str, int]
) -> None:
    """K3, P3: with the result of another step in its place, for any signature that has a place for it."""
    handler, later = handler_of(signature), Signature("task", handler_of(signature))
    try:
        seen = handler(7, *args, **kwargs)
        assert later.first is not None
    except (TypeError, AssertionError):
        with pytest.raises(WrongArguments, match=r"^task task"):
            later.encode_rest(int, args, kwargs)
    else:
        payload = wired(later.encode_rest(int, args, kwargs), Wiring(takes=0))
        parent = Parent("p", "hold", True, State.DONE, b"7", None, 1)
        decoded_args, decoded_kwargs = later.decode(filled(payload, later.first, [parent]))
        assert handler(*decoded_args, **decoded_kwargs) == seen


def test_what_comes_next_needs_a_place_for_the_result() -> None:
    """K3, X5: the error names the parameter and the types, and says what to write."""

    def nothing() -> None: ...
    def by_name(*, x: int) -> None: ...
    def number(x: int, y: str) -> None: ...

    for handler in (nothing, by_name):
        with pytest.raises(WrongArguments, match=r"has no first parameter for the result.*write def task\(result, …\)"):
            Signature("app.task", handler).encode_rest(int, (), {})
    with pytest.raises(WrongArguments, match=r"takes x: int, but the step before it gives list\[str\]$"):
        Signature("task", number).encode_rest(list[str], ("y",), {})
    with pytest.raises(WrongArguments, match=r"^task task needs 'y': it takes x, y$"):
        Signature("task", number).encode_rest(int, (), {})
    with pytest.raises(WrongArguments, match=r"^task task: parameter y wants str, got int$"):
        Signature("task", number).encode_rest(int, (5,), {})
    with pytest.raises(WrongArguments, match=r"^task task: x is the result of the steps before it: leave it out"):
        Signature("task", number).encode_rest(int, (), {"x": 1, "y": "y"})


def test_an_argument_left_out_before_a_given_one_keeps_its_place() -> None:
    """P3: `gaps(b=5)` does not become `gaps(5)`."""
    assert handlers.gaps(*there_and_back(handlers.gaps, (), {"b": 5})[0]) == {"a": 1, "b": 5, "rest": ()}


def test_the_envelope_names_its_version_and_its_arguments() -> None:
    """R5: arguments by name; defaults are left to the code that runs."""
    signature = Signature("task", handlers.gaps)
    assert json.loads(signature.encode((7,), {})) == {"v": 1, "args": {"a": 7}}
    assert json.loads(signature.encode((1, 2, 3), {})) == {"v": 1, "args": {"a": 1, "b": 2, "rest": [3]}}


def test_a_default_is_that_of_the_code_that_runs() -> None:
    """R5: a job enqueued before a deploy gets the new default."""

    def before(a: int, b: int = 2) -> Any:
        return a, b

    def after(a: int, b: int = 3) -> Any:
        return a, b

    args, kwargs = Signature("task", after).decode(Signature("task", before).encode((1,), {}))
    assert after(*args, **kwargs) == (1, 3)


@given(st.dictionaries(st.sampled_from(["number", "text", "flag", "share"]), integers, max_size=4))
def test_named_arguments_make_the_same_payload(named: dict[str, int]) -> None:
    """C: `taskharbor enqueue` needs no signature."""
    assert json.loads(encode_named(named)) == {"v": 1, "args": named}


def test_a_pydantic_model_is_stored_under_its_aliases_without_its_computed_fields() -> None:
    """P3: so that a model with an alias, strict types or forbidden extras can be read back."""
    payload = Signature("task", handlers.models).encode((Team(members=[]), [], {"ada": ADA}), {})
    stored = json.loads(payload)["args"]["by_name"]["ada"]
    assert stored == {"name": "Ada", "born": "1815-12-10", "userId": "00000000-0000-0000-0000-000000000001"}


@given(json_values)
def test_a_plain_result_comes_back(value: Any) -> None:
    """R4: results without a type are plain JSON."""
    assert decode_value(encode_value(value)) == value


@given(orders, st.none() | users)
def test_a_result_comes_back_as_the_type_that_was_promised(order: Order, user: User | None) -> None:
    """P3: by the return annotation."""
    assert decode_value(encode_value(order), Order) == order
    assert decode_value(encode_value(user), User | None) == user
    assert decode_value(encode_value({"a": [user]}), dict[str, list[User | None]]) == {"a": [user]}


def test_the_signature_knows_what_the_handler_returns() -> None:
    """P3: or says nothing about it."""

    def typed() -> Decimal:
        return Decimal(1)

    assert Signature("task", typed).returns is Decimal
    assert Signature("task", handlers.bare).returns is Any


class Fussy:
    """A type that JSON cannot make."""


@pytest.mark.parametrize("kind", [int, Fussy, User, Options, list[int]])
def test_a_result_that_does_not_fit_its_type_is_given_as_it_is(kind: Any) -> None:
    """P3: the annotation was changed since; the stored value can still be read."""
    assert decode_value(b'{"depth": "deep"}', kind) == {"depth": "deep"}
