"""Whether the result type of one task is compatible with the parameter type of the next (K3).

Values travel as JSON, so JSON types are compared: a `str` may be read as a date. Rejected are only types that can never
match, and parameters that cannot take a FailedStep where one may arrive; an unknown type is compatible.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec.inspect as types

from taskharbor.core.collecting import FailedStep, readable
from taskharbor.core.jsonable import Hooked

_TIMES = (types.DateTimeType, types.DateType, types.TimeType, types.TimeDeltaType)
_TEXTS = (types.StrType, types.BytesType, types.ByteArrayType, types.UUIDType, *_TIMES)
_KINDS: dict[str, tuple[type, ...]] = {
    "null": (types.NoneType,),
    "truth": (types.BoolType,),
    "whole number": (types.IntType, types.FloatType),
    "text": _TEXTS,
    "object": (types.DictType, types.TypedDictType, types.DataclassType, types.StructType),
    "list": (types.NamedTupleType, types.TupleType),
}
_FORMS = {kind: frozenset({form}) for form, kinds in _KINDS.items() for kind in kinds}
_LISTS = (types.ListType, types.SetType, types.FrozenSetType, types.VarTupleType)


def fits(given: Any, taken: Any) -> bool:
    """Whether some value of type `given` could be read as `taken`."""
    try:
        return _fits(given, taken)
    except Exception:  # annotations may be anything, even unhashable
        return _fits.__wrapped__(given, taken)


@lru_cache(1024)
def _fits(given: Any, taken: Any) -> bool:
    try:
        return _meet(_understood(given), _understood(taken))
    except Exception:
        return True


def _meet(given: types.Type, taken: types.Type) -> bool:
    if isinstance(given, types.Metadata):
        return _meet(given.type, taken)
    if isinstance(taken, types.Metadata):
        return _meet(given, taken.type)
    if (parts := _parts(given)) is not None:
        chosen = list(parts)
        failed = [part for part in chosen if _is_failed(part)]  # a FailedStep may arrive, so it must be accepted
        others = [part for part in chosen if part not in failed]
        return all(_meet(part, taken) for part in failed) and any(_meet(part, taken) for part in others or failed)
    if (parts := _parts(taken)) is not None:
        return any(_meet(given, part) for part in parts)
    if isinstance(given, _LISTS) and isinstance(taken, _LISTS):
        return _meet(given.item_type, taken.item_type)
    if _is_failed(given) and isinstance(taken, types.StructType | types.DataclassType):
        return _is_failed(taken)
    one, other = _forms(given), _forms(taken)
    return one is None or other is None or bool(one & other)


def _understood(kind: Any) -> types.Type:
    try:
        return types.type_info(kind)
    except Exception:
        return types.type_info(readable(kind))


def _parts(kind: types.Type) -> Iterable[types.Type] | None:
    """The members of a union; None if the type is not one."""
    if isinstance(kind, types.UnionType):
        return kind.types
    if isinstance(kind, types.CustomType) and isinstance(kind.cls, Hooked):
        return map(_understood, kind.cls.parts)
    return None


def _is_failed(kind: types.Type) -> bool:
    return isinstance(kind, types.StructType) and kind.cls is FailedStep


def _forms(kind: types.Type) -> frozenset[str] | None:
    """The JSON types that values of a type have; None if unknown."""
    return frozenset({"list"}) if isinstance(kind, _LISTS) else _FORMS.get(type(kind))
