"""Arguments and results as JSON, by the handler's own signature (P3, R4, R5, F9).

A payload is `{"v": 1, "args": {name: value}}`: arguments by name, defaults left to the code that runs. The version lets
later releases read what earlier ones wrote. Whatever is encoded is decoded once more before it is stored, so what does
not fit the signature is refused at the enqueue and not found by a worker an hour later.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType

from taskharbor.errors import ConfigError, NotEncodable, PayloadTooLarge

VERSION = 1
PAYLOAD_LIMIT = 512 * 1024
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Undecodable(Exception):
    """Bytes that are no payload of this task; the message says why."""


class _AnyEnvelope(Struct):
    v: int
    args: msgspec.Raw | UnsetType = UNSET


def _enc_hook(value: Any) -> Any:
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"{type(value).__module__}.{type(value).__qualname__} has no JSON form")


def _dec_hook(kind: Any, value: Any) -> Any:
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return kind.model_validate(value)  # type: ignore[attr-defined]
    raise TypeError(
        f"a {getattr(kind, '__qualname__', kind)} cannot be made from JSON: use a dataclass, a msgspec Struct or a Pydantic model"
    )


_encoder = msgspec.json.Encoder(enc_hook=_enc_hook)


class Signature:
    """A handler's parameters as a codec: bind, encode and check at the enqueue, decode at the run."""

    def __init__(self, name: str, handler: Callable[..., Any]) -> None:
        self.name = name
        self._parameters = inspect.signature(handler).parameters
        hints = _hints(name, handler)
        self.returns: Any = hints.get("return", Any)
        self._open = {p.kind: p.name for p in self._parameters.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        self._bare = [p.name for p in self._parameters.values() if p.kind is p.POSITIONAL_ONLY or self._leads(p)]
        self._struct = _struct(name, self._parameters, hints)
        envelope = msgspec.defstruct("Envelope", [("v", int), ("args", self._struct)])
        self._envelope: Callable[..., Any] = envelope
        try:
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(envelope, dec_hook=_dec_hook)
        except TypeError as error:
            raise ConfigError(f"task {name}: its parameters cannot be decoded from JSON: {error}") from error

    def _leads(self, parameter: inspect.Parameter) -> bool:
        return parameter.kind in _POSITIONAL and inspect.Parameter.VAR_POSITIONAL in self._open

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int = PAYLOAD_LIMIT) -> bytes:
        """The payload of a call, or an error that names the argument and the fix."""
        try:
            bound = self._struct(**self._gathered(args, kwargs)) if self._open else self._struct(*args, **kwargs)
        except TypeError as error:
            raise NotEncodable(f"task {self.name}: {error}") from None
        try:
            payload = _encoder.encode(self._envelope(VERSION, bound))
            self._decoder.decode(payload)
        except msgspec.ValidationError as error:
            raise NotEncodable(f"task {self.name}: {_readable(error)}") from None
        except Exception as error:  # user types take part in encoding and may raise anything
            where = _path_of(msgspec.structs.asdict(bound)) or ""
            raise NotEncodable(
                f"task {self.name}: argument {where or '?'} cannot be stored as JSON: {error}"
            ) from error
        return checked_size(payload, limit, f"the arguments of {self.name}")

    def decode(self, payload: bytes) -> Arguments:
        """Positional and keyword arguments for the handler, or `Undecodable` with the reason (F9)."""
        try:
            envelope = self._decoder.decode(payload)
        except Exception as error:  # msgspec's errors, and whatever a user's type raises while validating
            raise Undecodable(_why_undecodable(payload, error)) from None
        if envelope.v != VERSION:
            raise Undecodable(f"the payload has envelope version {envelope.v}, this release reads version {VERSION}")
        return self._spread(envelope.args)

    def _gathered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = inspect.Signature(list(self._parameters.values())).bind(*args, **kwargs)
        return dict(bound.arguments)

    def _spread(self, values: Any) -> Arguments:
        named = {name: value for name in self._parameters if (value := getattr(values, name)) is not UNSET}
        if not self._open and not self._bare:
            return (), named
        args = [named.pop(name) for name in self._bare if name in named]
        if (rest := self._open.get(inspect.Parameter.VAR_POSITIONAL)) is not None:
            args += named.pop(rest, ())
        if (more := self._open.get(inspect.Parameter.VAR_KEYWORD)) is not None:
            named.update(named.pop(more, {}))
        return tuple(args), named


def encode_named(arguments: Mapping[str, Any], limit: int = PAYLOAD_LIMIT) -> bytes:
    """A payload from named arguments, without knowing the signature."""
    return checked_size(encode_value({"v": VERSION, "args": dict(arguments)}), limit, "the arguments")


def encode_value(value: Any) -> bytes:
    """Any value as JSON, or `NotEncodable` with the path to what cannot be stored."""
    try:
        return _encoder.encode(value)
    except Exception as error:  # user types take part in encoding and may raise anything
        raise NotEncodable(f"{_path_of(value, '$') or '$'} cannot be stored as JSON: {error}") from error


def decode_value(raw: bytes, kind: Any = Any) -> Any:
    """A stored value as the given type; as plain JSON where the type cannot be decoded."""
    try:
        return msgspec.json.decode(raw, type=kind, dec_hook=_dec_hook)
    except (TypeError, msgspec.ValidationError):
        return msgspec.json.decode(raw)


def checked_size(raw: bytes, limit: int, what: str) -> bytes:
    """The bytes, or `PayloadTooLarge` (R4)."""
    if len(raw) > limit:
        raise PayloadTooLarge(
            f"{what} take {len(raw):,} bytes, the limit is {limit:,}: "
            "store the data elsewhere and pass a reference to it, or raise Harbor(payload_limit=…)"
        )
    return raw


def _hints(name: str, handler: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(handler, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"task {name}: an annotation cannot be resolved ({error}); define or import the type at module level"
        ) from error


def _struct(name: str, parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]) -> Callable[..., Any]:
    """A msgspec struct with the handler's parameters: its constructor binds a call at C speed."""
    placed: list[Any] = []
    named: list[Any] = []
    for parameter in parameters.values():
        kind = hints.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_POSITIONAL:
            kind = list.__class_getitem__(kind)
        elif parameter.kind is parameter.VAR_KEYWORD:
            kind = dict.__class_getitem__((str, kind))
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        entry = (parameter.name, Union[kind, UnsetType], UNSET) if optional else (parameter.name, kind)  # noqa: UP007
        (placed if parameter.kind in _POSITIONAL else named).append(entry)
    try:
        by_name = msgspec.defstruct("Named", named, kw_only=True, forbid_unknown_fields=True)
        return msgspec.defstruct("Arguments", placed, bases=(by_name,), forbid_unknown_fields=True)
    except TypeError as error:
        raise ConfigError(f"task {name}: {error}") from error


def _readable(error: Exception) -> str:
    return str(error).replace("$.args", "argument ").replace("argument .", "argument ")


def _why_undecodable(payload: bytes, error: Exception) -> str:
    try:
        version = msgspec.json.decode(payload, type=_AnyEnvelope).v
    except (msgspec.DecodeError, UnicodeDecodeError) as broken:
        return f"the payload is no job payload: {broken}"
    if version != VERSION:
        return f"the payload has envelope version {version}, this release reads version {VERSION}"
    return f"the arguments do not fit the signature: {_readable(error)}"


def _path_of(value: Any, path: str = "") -> str | None:
    """Where inside `value` the first thing sits that JSON cannot carry."""
    try:
        _encoder.encode(value)
    except Exception:
        for step, inner in _children(value):
            if (found := _path_of(inner, f"{path}{step}" if path else step.lstrip("."))) is not None:
                return found
        return path
    return None


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f".{key}" if isinstance(key, str) else f"[{key!r}]", inner) for key, inner in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{place}]", inner) for place, inner in enumerate(value)]
    if is_dataclass(value):
        return [(f".{part.name}", getattr(value, part.name)) for part in fields(value)]
    if isinstance(value, Struct):
        return [(f".{name}", getattr(value, name)) for name in value.__struct_fields__]
    return []
