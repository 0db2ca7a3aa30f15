"""Types whose values may be replaced by a FailedStep, where failures are collected (K4).

msgspec cannot decode a union of two object types. A FailedStep has a tag, so such a union is decoded in two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

import msgspec
from msgspec import Struct

from taskharbor.core.jsonable import Hooked, decoder

_FIELD, _TAG = "taskharbor", "failed_step"


class FailedStep(Struct, frozen=True, gc=False, tag_field=_FIELD, tag=_TAG):
    """Takes the place of the result of a failed or cancelled step, where failures are collected (K4).

    `state` is dlq or cancelled, or the state after a later replay.
    """

    id: str
    state: str
    error: str | None = None


def one_of(kinds: Sequence[Any]) -> Any:
    """The union of these types; Any if they have none."""
    try:
        return Union[tuple(kinds)]  # noqa: UP007
    except TypeError:  # unhashable, in some versions of Python
        return Any


def collected(kind: Any) -> Any:
    """The type of a result that may be a FailedStep instead."""
    return one_of((kind, FailedStep))


def reader(kind: Any) -> msgspec.json.Decoder[Any]:
    """A decoder of a type that may contain FailedSteps."""
    try:
        return decoder(kind)
    except Exception:
        return decoder(readable(kind))


def readable(kind: Any) -> Any:
    """The type in a form that msgspec can decode, with every union that contains a FailedStep replaced.

    `object` is read as `Any`: both accept every value, but msgspec treats the first as a custom class.
    """
    if kind is object:
        return Any
    plain, metadata = _unwrapped(kind)
    origin, parts = get_origin(plain), get_args(plain)
    read = tuple(map(readable, parts))
    is_union = origin in (Union, UnionType)
    if any(one is not other for one, other in zip(parts, read, strict=True)):
        kind = _annotated(Union[read] if is_union else origin[read], metadata)  # noqa: UP007
    others = [part for part in read if _unwrapped(part)[0] is not FailedStep]
    if is_union and 0 < len(others) < len(read) and (Any in others or not _is_read(kind)):
        return _distinguished(_annotated(Union[tuple(others)], metadata))  # noqa: UP007
    return kind


def _unwrapped(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Resolve `type X = …` and Annotated to the type they name."""
    kind = getattr(kind, "__value__", kind)
    if get_origin(kind) is not Annotated:
        return kind, ()
    plain, *metadata = get_args(kind)
    return getattr(plain, "__value__", plain), tuple(metadata)


def _annotated(kind: Any, metadata: tuple[Any, ...]) -> Any:
    return cast("Any", Annotated)[kind, *metadata] if metadata else kind


def _is_read(kind: Any) -> bool:
    try:
        decoder(kind)
    except Exception:  # annotations may be anything
        return False
    return True


def _distinguished(other: Any) -> Hooked:
    """Decode a FailedStep or another value, depending on the tag."""
    decode = decoder(other).decode

    def read(value: Any) -> Any:
        is_failed = isinstance(value, dict) and cast("dict[str, Any]", value).get(_FIELD) == _TAG
        try:
            return msgspec.convert(value, FailedStep) if is_failed else decode(msgspec.json.encode(value))
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None  # so that msgspec adds the path

    return Hooked("Collected", (), {"parts": (other, FailedStep), "read": staticmethod(read)})
