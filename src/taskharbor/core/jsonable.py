"""Values to JSON and back, with the path to the part of a value that JSON cannot carry (P3, X5).

msgspec does the work; Pydantic models are supported through the hooks, if the program has imported Pydantic at all.
Code of user types runs during encoding and decoding and may raise anything.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

import msgspec
from msgspec import UNSET, Struct

from taskharbor.core.text import kind_of, message_of
from taskharbor.errors import NotEncodable

DEEPEST_PATH = 32


def to_json(value: Any, root: str) -> bytes:
    """Encode a value as JSON, or raise `NotEncodable` with the path from `root` to the part that cannot be stored."""
    try:
        raw = _encoder.encode(value)
    except Exception as error:
        raise NotEncodable(f"{root}{_path_to_fault(value)} cannot be stored as JSON: {message_of(error)}") from error
    # msgspec writes NaN and the infinities as null, without an error
    if b"null" in raw and (path := _path_to_odd_float(value)) is not None:
        raise NotEncodable(f"{root}{path} cannot be stored as JSON, which has no NaN and no infinity")
    return raw


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """A JSON decoder for a type, Pydantic models included."""
    return msgspec.json.Decoder(kind, dec_hook=_dec_hook)


class Hooked(type):
    """A placeholder type for the hook: one of `parts`, which `read` chooses from plain JSON."""

    parts: tuple[Any, ...]
    read: Callable[[Any], Any]

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def _enc_hook(value: Any) -> Any:
    if _is_model(value):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    raise NotImplementedError(
        f"{kind_of(value)} has no JSON form; pass plain values, a dataclass, a msgspec Struct or a Pydantic model"
    )


def _dec_hook(kind: Any, value: Any) -> Any:
    if kind is object:
        return value
    if isinstance(kind, Hooked):
        return kind.read(value)
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return cast("Any", kind).model_validate_json(_encoder.encode(value))
    raise TypeError(
        f"{getattr(kind, '__qualname__', kind)} cannot be made from JSON: "
        "use a dataclass, a msgspec Struct or a Pydantic model"
    )


def _is_model(value: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


_encoder = msgspec.json.Encoder(enc_hook=_enc_hook)


def _path_to_fault(value: Any) -> str:
    """The path to the innermost part that cannot be encoded, as far as it can be found."""
    path = ""
    for _ in range(DEEPEST_PATH):  # a value may contain itself
        found = next(((step, inner) for step, inner in _children(value) if _fails(inner)), None)
        if found is None:
            break
        path, value = path + found[0], found[1]
    return path


def _fails(value: Any) -> bool:
    try:
        _encoder.encode(value)
    except Exception:
        return True
    return False


def _path_to_odd_float(value: Any) -> str | None:
    pending = [("", value)]
    while pending:
        path, part = pending.pop()
        if isinstance(part, float) and not math.isfinite(part):
            return path
        pending += [(path + step, inner) for step, inner in _children(part)]
    return None


def _children(value: Any) -> list[tuple[str, Any]]:
    try:
        return [(step, inner) for step, inner in _parts(value) if inner is not UNSET]
    except Exception:  # an object that cannot be inspected: the path ends here
        return []


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        items = cast("Iterable[tuple[Any, Any]]", value.items())
        return ((f".{key}" if isinstance(key, str) else f"[{key!r}]", inner) for key, inner in items)
    if isinstance(value, list | tuple | set | frozenset):
        return ((f"[{index}]", inner) for index, inner in enumerate(cast("Collection[Any]", value)))
    if isinstance(value, Struct):
        return ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
    if is_dataclass(value):
        return ((f".{part.name}", getattr(value, part.name)) for part in fields(value))
    if _is_model(value):
        return _parts(_enc_hook(value))
    return ()
