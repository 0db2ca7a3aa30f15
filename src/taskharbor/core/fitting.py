"""Whether what one task gives can be what the next one takes, as far as their annotations tell (K3).

Values travel as JSON, so it is forms of JSON that are compared: a `str` may well become a date. Only what cannot fit at
all is refused; a type that is not understood fits.
"""

from __future__ import annotations

from typing import Any

import msgspec.inspect as types

_TEXT = "text"
_WHOLE = "whole number"
_FORMS: dict[type, frozenset[str]] = {
    types.NoneType: frozenset({"null"}),
    types.BoolType: frozenset({"truth"}),
    types.IntType: frozenset({_WHOLE}),
    types.FloatType: frozenset({_WHOLE, "number"}),
    types.StrType: frozenset({_TEXT}),
    types.BytesType: frozenset({_TEXT}),
    types.ByteArrayType: frozenset({_TEXT}),
    types.DateTimeType: frozenset({_TEXT}),
    types.DateType: frozenset({_TEXT}),
    types.TimeType: frozenset({_TEXT}),
    types.TimeDeltaType: frozenset({_TEXT}),
    types.UUIDType: frozenset({_TEXT}),
    types.DictType: frozenset({"object"}),
    types.TypedDictType: frozenset({"object"}),
    types.DataclassType: frozenset({"object"}),
    types.StructType: frozenset({"object"}),
    types.NamedTupleType: frozenset({"list"}),
    types.TupleType: frozenset({"list"}),
}
_LISTS = (types.ListType, types.SetType, types.FrozenSetType, types.VarTupleType)


def fits(given: Any, taken: Any) -> bool:
    """Whether some value of the type `given` could be read as a `taken`."""
    try:
        return _meet(types.type_info(given), types.type_info(taken))
    except Exception:  # annotations may be anything
        return True


def _meet(given: types.Type, taken: types.Type) -> bool:
    if isinstance(given, types.Metadata):
        return _meet(given.type, taken)
    if isinstance(taken, types.Metadata):
        return _meet(given, taken.type)
    if isinstance(given, types.UnionType):
        return any(_meet(part, taken) for part in given.types)
    if isinstance(taken, types.UnionType):
        return any(_meet(given, part) for part in taken.types)
    if isinstance(given, _LISTS) and isinstance(taken, _LISTS):
        return _meet(given.item_type, taken.item_type)
    one, other = _forms(given), _forms(taken)
    return one is None or other is None or bool(one & other)


def _forms(kind: types.Type) -> frozenset[str] | None:
    """The forms of JSON that values of a type take; None if they are not known."""
    return frozenset({"list"}) if isinstance(kind, _LISTS) else _FORMS.get(type(kind))
