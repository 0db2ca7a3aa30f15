"""Arguments and results as JSON, by the handler's own signature (P3, R4, R5, F9).

A payload is `{"v": 1, "args": {name: value}}`: arguments by name, defaults left to the code that runs. The version lets
later releases read what earlier ones wrote. Whatever is encoded is decoded once more before it is stored, so what does
not fit the signature is refused at the enqueue and not found by a worker an hour later.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import astuple

from taskharbor.core.jsonable import decoder, to_json
from taskharbor.core.text import message_of
from taskharbor.errors import ConfigError, NotEncodable, PayloadTooLarge

VERSION = 1
PAYLOAD_LIMIT = 512 * 1024
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Undecodable(Exception):
    """Bytes that are no payload of this task; the message says why."""


class _AnyEnvelope(Struct):
    v: int
    args: msgspec.Raw | UnsetType = UNSET


class Signature:
    """A handler's parameters as a codec: bind, encode and check at the enqueue, decode at the run."""

    def __init__(self, name: str, handler: Callable[..., Any]) -> None:
        self.name = name
        self._call, hints = _inspected(name, handler)
        self._parameters = self._call.parameters
        self.returns: Any = hints.get("return", Any)
        self._open = {p.kind: p.name for p in self._parameters.values() if p.kind in _OPEN}
        self._bare = [p.name for p in self._parameters.values() if p.kind is p.POSITIONAL_ONLY or self._leads(p)]
        self._plain = not self._open and not self._bare
        self._whole = self._plain and all(map(_is_needed_in_place, self._parameters.values()))
        try:
            self._struct = _struct(self._parameters.values(), hints)
            self._envelope: Callable[..., Any] = msgspec.defstruct("Envelope", [("v", int), ("args", self._struct)])
            self._decoder = decoder(self._envelope)
        except Exception as error:
            raise ConfigError(f"task {name}: its parameters cannot be decoded from JSON: {error}") from error

    def _leads(self, parameter: inspect.Parameter) -> bool:
        return parameter.kind in _POSITIONAL and inspect.Parameter.VAR_POSITIONAL in self._open

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int = PAYLOAD_LIMIT) -> bytes:
        """The payload of a call, or an error that names the argument and the fix."""
        try:
            if not self._plain:
                args, kwargs = (), self._call.bind(*args, **kwargs).arguments
            bound = self._struct(*args, **kwargs)
        except TypeError as error:
            raise NotEncodable(f"task {self.name}: {error}") from None
        try:
            payload = to_json(self._envelope(VERSION, bound), "$")
            checked_size(payload, limit, f"the arguments of {self.name}")
            self._decoder.decode(payload)
        except PayloadTooLarge:
            raise
        except Exception as error:  # also whatever a user's type raises while it is read back
            raise NotEncodable(f"task {self.name}: {_readable(error)}") from error
        return payload

    def decode(self, payload: bytes) -> Arguments:
        """Positional and keyword arguments for the handler, or `Undecodable` with the reason (F9)."""
        try:
            envelope = self._decoder.decode(payload)
        except Exception as error:  # msgspec's errors, and whatever a user's type raises while validating
            raise Undecodable(_why_undecodable(payload, error)) from None
        if envelope.v != VERSION:
            raise Undecodable(_wrong_version(envelope.v))
        return (astuple(envelope.args), {}) if self._whole else self._spread(envelope.args)

    def _spread(self, values: Any) -> Arguments:
        named = {name: value for name in self._parameters if (value := getattr(values, name)) is not UNSET}
        if self._plain:
            return (), named
        # an argument left out keeps its place, or the next one would slip into it
        args = [named.pop(name, self._parameters[name].default) for name in self._bare]
        if (rest := self._open.get(inspect.Parameter.VAR_POSITIONAL)) is not None:
            args += named.pop(rest, ())
        if (more := self._open.get(inspect.Parameter.VAR_KEYWORD)) is not None:
            named.update(named.pop(more, {}))
        return tuple(args), named


def _is_needed_in_place(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind in _POSITIONAL


def encode_named(arguments: Mapping[str, Any], limit: int = PAYLOAD_LIMIT) -> bytes:
    """A payload from named arguments, without knowing the signature."""
    return checked_size(encode_value({"v": VERSION, "args": dict(arguments)}), limit, "the arguments")


def encode_value(value: Any) -> bytes:
    """Any value as JSON, or `NotEncodable` with the path to what cannot be stored."""
    return to_json(value, "$")


def decode_value(raw: bytes, kind: Any = Any) -> Any:
    """A stored value as the given type; as plain JSON where the type cannot be decoded."""
    try:
        return decoder(kind).decode(raw)
    except Exception:
        return msgspec.json.decode(raw)


def checked_size(raw: bytes, limit: int, what: str) -> bytes:
    """The bytes, or `PayloadTooLarge` (R4)."""
    if len(raw) > limit:
        raise PayloadTooLarge(
            f"{what} take {len(raw):,} bytes, the limit is {limit:,}: "
            "store the data elsewhere and pass a reference to it, or raise Harbor(payload_limit=…)"
        )
    return raw


def _inspected(name: str, handler: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    try:
        return inspect.signature(handler), get_type_hints(handler, include_extras=True)
    except Exception as error:  # annotations are evaluated here
        raise ConfigError(
            f"task {name}: its signature cannot be read ({error}); define or import its types at module level"
        ) from error


def _struct(parameters: Iterable[inspect.Parameter], hints: Mapping[str, Any]) -> Callable[..., Any]:
    """A msgspec struct with the handler's parameters: its constructor binds a call at C speed."""
    placed: list[Any] = []
    named: list[Any] = []
    for parameter in parameters:
        kind = hints.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_POSITIONAL:
            kind = list.__class_getitem__(kind)
        elif parameter.kind is parameter.VAR_KEYWORD:
            kind = dict.__class_getitem__((str, kind))
        optional = parameter.default is not parameter.empty or parameter.kind in _OPEN
        entry = (parameter.name, Union[kind, UnsetType], UNSET) if optional else (parameter.name, kind)  # noqa: UP007
        (placed if parameter.kind in _POSITIONAL else named).append(entry)
    by_name = msgspec.defstruct("Named", named, kw_only=True, forbid_unknown_fields=True)
    return msgspec.defstruct("Arguments", placed, bases=(by_name,), forbid_unknown_fields=True)


def _readable(error: Exception) -> str:
    return message_of(error).replace(" - at `$.args`", "").replace("$.args", "arguments")


def _why_undecodable(payload: bytes, error: Exception) -> str:
    try:
        version = msgspec.json.decode(payload, type=_AnyEnvelope).v
    except Exception as broken:
        return f"the payload is no job payload: {broken}"
    if version != VERSION:
        return _wrong_version(version)
    return f"the arguments do not fit the signature: {_readable(error)}"


def _wrong_version(version: int) -> str:
    return f"the payload has envelope version {version}, this release reads version {VERSION}"
