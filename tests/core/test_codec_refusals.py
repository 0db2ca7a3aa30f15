"""Values that cannot be stored are refused at the enqueue, payloads that cannot be read give a readable reason."""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct

from taskharbor.core.codec import PAYLOAD_LIMIT, Signature, Undecodable, checked_size, encode_named, encode_value
from taskharbor.errors import ConfigError, NotEncodable, PayloadTooLarge, WrongArguments

from . import handlers
from .handlers import Order, Point, Team, User

ID = UUID(int=7)
NAMES = ("plain", "scalars", "boxes", "nested", "objects", "models", "bare", "open_ended")
SIGNATURES = [Signature(name, getattr(handlers, name)) for name in NAMES]


def encoded(handler: Callable[..., Any], *args: Any, **kwargs: Any) -> bytes:
    """The payload of a call."""
    return Signature("task", handler).encode(args, kwargs)


class Broken(Exception):
    """An exception that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError


class Bomb(User):
    """A model that raises while it is written."""

    def model_dump(self, **_: Any) -> dict[str, Any]:
        raise Broken


class Trap(Struct):
    """A struct that raises while it is read, once it is armed."""

    armed: bool = False

    def __post_init__(self) -> None:
        if self.armed:
            raise Broken


def number(x: int) -> None: ...


def anything(x) -> None: ...  # type: ignore[no-untyped-def]


def maybe(x: float | None) -> None: ...


def trapped(x: Trap) -> None: ...


@pytest.mark.parametrize(
    ("handler", "value", "message"),
    [
        (anything, object(), "argument x cannot be stored as JSON: object has no JSON form; pass plain values, a data"),
        (anything, {"a": [1, {2: object()}]}, "argument x.a[1][2] cannot be stored as JSON: object has no"),
        (anything, (Point(1, marks=[object()]),), "argument x[0].marks[0] cannot be stored as JSON"),  # type: ignore[list-item]
        (anything, Order(object(), {}), "argument x.id cannot be stored as JSON"),  # type: ignore[arg-type]
        (anything, {(1, 2): 3}, "argument x cannot be stored as JSON: tuple has no JSON form"),
        (anything, {"a": "\ud800"}, "argument x.a cannot be stored as JSON: 'utf-8' codec can't encode"),
        (anything, Point, "argument x cannot be stored as JSON"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_path(handler: Callable[..., Any], value: Any, message: str) -> None:
    """X5, P3: the task, the argument and the reason."""
    with pytest.raises(NotEncodable, match=rf"^task task: {re.escape(message)}"):
        encoded(handler, value)


def test_what_cannot_be_stored_is_refused_with_what_is_wanted() -> None:
    """X5: if the parameter says so."""
    with pytest.raises(NotEncodable, match=r"^task task: argument x cannot .* \(parameter x wants int\)$"):
        encoded(number, object())


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("handler", [maybe, anything])
def test_what_json_has_no_number_for_is_refused(handler: Callable[..., Any], odd: float) -> None:
    """P3, X5: regression: NaN became null, and the handler was given None."""
    with pytest.raises(NotEncodable, match=r"argument x cannot be stored as JSON, which has no NaN and no infinity"):
        encoded(handler, odd)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [None, float("nan")]}, "$.a[1]"),
        ([Point(1, float("inf"))], "$[0].y"),
        ({"deep": [[[float("nan")]]]}, "$.deep[0][0][0]"),
    ],
)
def test_an_odd_number_is_found_inside_a_result(value: Any, path: str) -> None:
    """R4: a result that would come back as another value cannot be stored."""
    with pytest.raises(NotEncodable, match=rf"^{re.escape(path)} cannot be stored"):
        encode_value(value)


def test_null_beside_ordinary_numbers_is_fine() -> None:
    """P3: None is a value."""
    assert encode_value([None, 1.5, "null"]) == b'[null,1.5,"null"]'


def test_an_odd_number_in_a_model_is_found_in_what_the_model_writes() -> None:
    """P3: a model decides its own JSON form."""

    class Reading(User):
        value: float | None = None

    with pytest.raises(NotEncodable, match=r"^\$\.value cannot be stored"):
        encode_value(Reading.model_construct(name="a", user_id=None, value=float("nan")))


def test_a_value_that_contains_itself_is_refused() -> None:
    """X5: regression: looking for its path was a RecursionError."""
    knot: list[Any] = []
    knot += [knot, knot]
    why = "maximum recursion|Stack overflow"  # by version of Python
    with pytest.raises(NotEncodable, match=rf"argument x\[0\]\[0\]\[0\].* cannot be stored as JSON: ({why})"):
        encoded(anything, knot)


def test_arguments_left_out_are_not_blamed() -> None:
    """X5: the path leads to what was given."""

    def handler(a: Any = 1, *, b: Any) -> None: ...

    with pytest.raises(NotEncodable, match=r"argument b cannot be stored"):
        encoded(handler, b=object())


def test_user_types_may_raise_anything_while_they_are_written() -> None:
    """X5: even an exception without a message; regression: its `__str__` escaped."""
    bomb = Bomb.model_construct()
    with pytest.raises(NotEncodable, match=r"argument x cannot be stored as JSON: <Broken whose message"):
        encoded(anything, bomb)
    with pytest.raises(NotEncodable, match=r"argument users\[0\] cannot be stored"):
        encoded(handlers.models, Team(members=[]), [bomb], {})


def test_user_types_may_raise_anything_while_they_are_read() -> None:
    """F9, X5: at the enqueue already, since what is written is read once more."""
    trap = Trap()
    trap.armed = True
    with pytest.raises(WrongArguments, match="<Broken whose message cannot be shown"):
        encoded(trapped, trap)
    with pytest.raises(Undecodable, match="do not fit the signature: <Broken whose message cannot be shown"):
        Signature("task", trapped).decode(b'{"v":1,"args":{"x":{"armed":true}}}')


def test_an_object_that_cannot_be_looked_at_ends_the_path() -> None:
    """X5: a mapping that raises when it is read."""

    class Veiled(UserDict[str, int]):
        def __iter__(self) -> Iterator[str]:
            raise Broken

    with pytest.raises(NotEncodable, match=r"argument x\[0\] cannot be stored as JSON: .*Veiled has no JSON form"):
        encoded(anything, [Veiled()])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "not a job payload: Input data was truncated"),
        (b"null", "not a job payload: Expected `object`, got `null`"),
        (b"\xff", "not a job payload: JSON is malformed"),
        (b'{"args":{"x":1}}', "not a job payload: Object missing required field `v`"),
        (b'{"v":"1","args":{"x":1}}', "not a job payload: Expected `int`, got `str` - at `$.v`"),
        (b'{"v":1}', "the arguments do not fit the signature: Object missing required field `args`"),
        (b'{"v":1,"args":{"x":"1"}}', "the arguments do not fit the signature: parameter x wants int, got str"),
        (b'{"v":2,"args":{"x":1}}', "the payload has envelope version 2, this release reads version 1"),
        (b'{"v":2,"args":{"y":1}}', "the payload has envelope version 2, this release reads version 1"),
        (b'{"v":2,"ways":[]}', "the payload has envelope version 2, this release reads version 1"),
    ],
)
def test_an_unreadable_payload_has_a_readable_reason(payload: bytes, reason: str) -> None:
    """F9, R5: no payload, another version, or other arguments."""
    with pytest.raises(Undecodable, match=rf"^{re.escape(reason)}"):
        Signature("task", number).decode(payload)


def test_a_renamed_parameter_is_named() -> None:
    """F9: a deploy that changed the signature under waiting jobs."""

    def before(user: int) -> None: ...

    def after(user_id: int) -> None: ...

    with pytest.raises(Undecodable, match=r"^the arguments do not fit the signature: there is no parameter 'user'$"):
        Signature("task", after).decode(encoded(before, 5))
    with pytest.raises(Undecodable, match=r"^the arguments do not fit the signature: parameter 'user_id' is missing$"):
        Signature("task", after).decode(encode_named({}))


@pytest.mark.parametrize("bracket", [b"[", b'{"a":'])
def test_a_payload_of_brackets_is_undecodable(bracket: bytes) -> None:
    """F9: regression: deep nesting was a RecursionError."""
    for payload in (bracket * 100_000, b'{"v":1,"args":{"x":' + bracket * 100_000):
        with pytest.raises(Undecodable, match="not a job payload"):
            Signature("task", anything).decode(payload)


def is_read_or_undecodable(payload: bytes) -> None:
    """Whatever the bytes, a signature reads them or says `Undecodable`."""
    for signature in SIGNATURES:
        try:
            args, kwargs = signature.decode(payload)
        except Undecodable as refused:
            assert str(refused)  # noqa: PT017
        else:
            assert isinstance(args, tuple)
            assert isinstance(kwargs, dict)


@given(st.binary(max_size=64))
@example(b'{"v":1,"args":{"anything":"\\ud800"}}')
@example(b'{"v":1e400,"args":{}}')
@example(b'{"v":1,"args":{"anything":' + b"9" * 5000 + b"}}")
def test_any_bytes_are_read_or_undecodable(payload: bytes) -> None:
    """F9: never another exception."""
    is_read_or_undecodable(payload)


@given(st.data())
def test_a_damaged_payload_is_read_or_undecodable(data: st.DataObject) -> None:
    """F9: a good payload with bytes cut, changed or put in between."""
    whole = encoded(handlers.objects, Point(1, 2.5, ["a"]), Order(ID, {"é": Point(1)}))
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)))))
    is_read_or_undecodable(whole[:start] + data.draw(st.binary(max_size=3)) + whole[end:])


@given(
    st.dictionaries(
        st.sampled_from(["anything", "other", "first", "rest", "flag", "more", "team", "users", "number", "when"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
            max_leaves=4,
        ),
        max_size=4,
    )
)
def test_any_arguments_are_read_or_undecodable(arguments: dict[str, Any]) -> None:
    """F9: a good envelope around other arguments than the signature wants."""
    is_read_or_undecodable(encode_named(arguments))


def test_the_limit_is_exact() -> None:
    """R4: at the limit a payload is fine, one byte more is refused, with both sizes and the way out."""
    whole = encoded(anything, "x" * 100)
    assert Signature("task", anything).encode(("x" * 100,), {}, limit=len(whole)) == whole
    with pytest.raises(
        PayloadTooLarge, match=rf"the arguments of task take {len(whole)} bytes, the limit is {len(whole) - 1}: store"
    ):
        Signature("task", anything).encode(("x" * 100,), {}, limit=len(whole) - 1)


def test_the_limit_is_512_kibibytes_by_default() -> None:
    """R4: for named arguments as for calls."""
    assert PAYLOAD_LIMIT == 512 * 1024
    room = PAYLOAD_LIMIT - len(encode_named({"x": ""}))
    assert len(encode_named({"x": "y" * room})) == len(encoded(anything, "y" * room)) == PAYLOAD_LIMIT
    with pytest.raises(PayloadTooLarge, match="the arguments take 524,289 bytes, the limit is 524,288"):
        encode_named({"x": "y" * (room + 1)})
    with pytest.raises(PayloadTooLarge, match="the arguments of task take 524,289 bytes, the limit is 524,288"):
        encoded(anything, "y" * (room + 1))


def test_nothing_is_truncated() -> None:
    """R4: what fits comes back whole."""
    assert checked_size(b"12345", 5, "this") == b"12345"
    with pytest.raises(PayloadTooLarge, match="this take 5 bytes"):
        checked_size(b"12345", 4, "this")


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("Unseen", r"its signature cannot be read \(name 'Unseen' is not defined\); define or import its types"),
        ("list[", "its signature cannot be read"),
        (User | Team, r"parameter x: .*User \| .*Team cannot be decoded from JSON: Type unions may not contain more"),
        (5, "parameter x: 5 cannot be decoded from JSON"),
    ],
)
def test_a_signature_that_json_cannot_carry_is_a_config_error(annotation: Any, message: str) -> None:
    """X5: where the task is declared, not in a worker."""

    def handler(fine: int, x) -> None: ...  # type: ignore[no-untyped-def]

    handler.__annotations__["x"] = annotation
    with pytest.raises(ConfigError, match=f"^task mail: .*{message}"):
        Signature("mail", handler)


def test_a_handler_without_a_signature_is_a_config_error() -> None:
    """X5: some callables of C have none."""
    with pytest.raises(ConfigError, match=r"^task mail: its signature cannot be read"):
        Signature("mail", dict)


def test_a_type_that_json_cannot_make_is_found_at_the_enqueue() -> None:
    """X5: with the kinds of types that can be used."""

    class Opaque:
        pass

    def handler(x: Any) -> None: ...

    handler.__annotations__["x"] = Opaque
    with pytest.raises(WrongArguments, match=r"wants Opaque: .*Opaque cannot be made from JSON: use a dataclass"):
        encoded(handler, {"a": 1})
