"""Arguments and results as JSON, by the handler's own signature (P3, R4, R5, F9).

A payload is `{"v": 1, "args": {name: value}}`: arguments by name, defaults left to the code that runs. The version lets
later releases read what earlier ones wrote. Every payload is decoded again before it is stored, so arguments that do
not fit the signature are rejected at enqueue and not discovered by a worker an hour later.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import astuple

from taskharbor.core.collecting import readable, reader
from taskharbor.core.compatibility import fits
from taskharbor.core.jsonable import decoder, to_json
from taskharbor.core.misfit import POSITIONAL, misbound, misfit, shown_type
from taskharbor.errors import ConfigError, NotEncodable, PayloadTooLarge, WrongArguments

VERSION = 1
PAYLOAD_LIMIT = 512 * 1024
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Undecodable(Exception):
    """The bytes are not a payload of this task; the message says why."""


class _AnyEnvelope(Struct):
    v: int
    args: msgspec.Raw | UnsetType = UNSET


class Signature:
    """A handler's parameters as a codec: bind, encode and check at enqueue, decode at run time."""

    def __init__(self, name: str, handler: Callable[..., Any]) -> None:
        self.name = name
        self._call, self._hints = _inspected(name, handler)
        hints = self._hints
        self.parameters = self._call.parameters
        self.returns: Any = hints.get("return", Any)
        self._open = {p.kind: p.name for p in self.parameters.values() if p.kind in _OPEN}
        bare = POSITIONAL if inspect.Parameter.VAR_POSITIONAL in self._open else POSITIONAL[:1]
        self._bare = [p.name for p in self.parameters.values() if p.kind in bare]
        self._plain = not self._open and not self._bare
        self._whole = self._plain and all(
            p.default is p.empty and p.kind in POSITIONAL for p in self.parameters.values()
        )
        try:
            self._struct = _struct(self.parameters.values(), hints)
            self._envelope: Callable[..., Any] = msgspec.defstruct("Envelope", [("v", int), ("args", self._struct)])
            self._decoder = decoder(self._envelope)
        except Exception as error:
            raise ConfigError(f"task {name}: {_undecodable(hints, self.parameters)}: {error}") from error

    def encode(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        limit: int = PAYLOAD_LIMIT,
        reads: msgspec.json.Decoder[Any] | None = None,
    ) -> bytes:
        """The payload of a call, or an error that names the argument and the fix. `reads` checks it, if given."""
        try:
            if not self._plain:
                args, kwargs = (), self._call.bind(*args, **kwargs).arguments
            bound = self._struct(*args, **kwargs)
        except TypeError as error:
            raise WrongArguments(f"task {self.name} {misbound(self._call, args, kwargs, error)}") from None
        try:
            payload = to_json(self._envelope(VERSION, bound), "$")
        except NotEncodable as error:
            raise NotEncodable(f"task {self.name}: {self._unstorable(error)}") from error
        if len(payload) > limit:
            checked_size(payload, limit, f"the arguments of {self.name}")
        try:
            (reads or self._decoder).decode(payload)
        except Exception as error:  # including anything a user's type raises while it is decoded
            raise WrongArguments(f"task {self.name}: {self._misfit(error, bound)}") from error
        return payload

    def _misfit(self, error: Exception, given: object = None) -> str:
        return misfit(error, self._call, self._hints, given)

    def _unstorable(self, error: NotEncodable) -> str:
        """Say which argument JSON cannot carry, and which type its parameter has."""
        path = str(error).removeprefix("$.args.")
        name = re.split(r"\W", path, maxsplit=1)[0]
        wants = f" (parameter {name} wants {shown_type(self._hints[name])})" if name in self._hints else ""
        return f"argument {path}{wants}"

    @property
    def takes_any_name(self) -> bool:
        """Whether the handler takes `**kwargs`."""
        return inspect.Parameter.VAR_KEYWORD in self._open

    @cached_property
    def first(self) -> str | None:
        """The parameter that receives another step's result: the first, if it is positional."""
        first = next(iter(self.parameters.values()), None)
        return None if first is None or first.kind not in POSITIONAL else first.name

    def encode_rest(
        self, given: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int = PAYLOAD_LIMIT
    ) -> bytes:
        """The payload of a call whose first argument is supplied later, as a value of type `given`."""
        if self.first is None:
            raise WrongArguments(
                f"task {self.name} has no first parameter for the result of the step before: "
                f"write def {self.name.rpartition('.')[2]}(result, …), or put its step(…) into a chain if it only waits"
            )
        if self.first in kwargs and self.parameters[self.first].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise WrongArguments(
                f"task {self.name}: {self.first} is the result of the steps before it: leave it out of the arguments"
            )
        taken = self._hints.get(self.first, Any)
        if not fits(given, taken):
            raise WrongArguments(
                f"task {self.name} takes {self.first}: {shown_type(taken)}, "
                f"but the step before it gives {shown_type(given)}"
            )
        return self.encode((UNSET, *args), kwargs, limit, self._rest)

    @cached_property
    def _rest(self) -> msgspec.json.Decoder[Any]:
        """A decoder for payloads without their first argument."""
        fields = [
            (name, kind, UNSET) if name == self.first else (name, kind, *default)
            for name, kind, *default in _fields(self.parameters.values(), self._hints)
        ]
        arguments = msgspec.defstruct("Rest", fields, kw_only=True, forbid_unknown_fields=True)
        return decoder(msgspec.defstruct("Envelope", [("v", int), ("args", arguments)]))

    def decode(self, payload: bytes) -> Arguments:
        """Positional and keyword arguments for the handler, or `Undecodable` with the reason (F9)."""
        values = self._opened(payload, self._decoder)
        return (astuple(values), {}) if self._whole else self._spread(values)

    def named(self, payload: bytes) -> dict[str, Any]:
        """The arguments by name; the first may be missing until another step supplies it."""
        return self._given(self._opened(payload, self._rest))

    def _opened(self, payload: bytes, reads: msgspec.json.Decoder[Any]) -> Any:
        """The values in a payload."""
        try:
            envelope = reads.decode(payload)
        except Exception as error:  # msgspec's errors, and anything a user's type raises during validation
            why = _why_undecodable(payload) or f"the arguments do not fit the signature: {self._misfit(error)}"
            raise Undecodable(why) from None
        if envelope.v != VERSION:
            raise Undecodable(_wrong_version(envelope.v))
        return envelope.args

    def _given(self, values: Any) -> dict[str, Any]:
        return {name: value for name in self.parameters if (value := getattr(values, name)) is not UNSET}

    def _spread(self, values: Any) -> Arguments:
        named = self._given(values)
        if self._plain:
            return (), named
        # an omitted argument keeps its position, or the next one would move into it
        args = [named.pop(name, self.parameters[name].default) for name in self._bare]
        if (rest := self._open.get(inspect.Parameter.VAR_POSITIONAL)) is not None:
            args += named.pop(rest, ())
        if (more := self._open.get(inspect.Parameter.VAR_KEYWORD)) is not None:
            named.update(named.pop(more, {}))
        return tuple(args), named


def encode_named(arguments: Mapping[str, Any], limit: int = PAYLOAD_LIMIT) -> bytes:
    """Encode a payload from named arguments, without knowing the signature."""
    return checked_size(encode_value({"v": VERSION, "args": dict(arguments)}), limit, "the arguments")


def encode_value(value: Any, root: str = "$") -> bytes:
    """Encode any value as JSON, or raise `NotEncodable` with the path from `root` to the part that cannot be stored."""
    return to_json(value, root)


def decode_value(raw: bytes, kind: Any = Any) -> Any:
    """Decode a stored value as the given type, or as plain JSON if the type cannot be decoded."""
    try:
        return reader(kind).decode(raw)
    except Exception:
        return msgspec.json.decode(raw)


def checked_size(raw: bytes, limit: int, what: str) -> bytes:
    """Return the bytes, or raise `PayloadTooLarge` (R4)."""
    if len(raw) > limit:
        raise PayloadTooLarge(
            f"{what} take {len(raw):,} bytes, the limit is {limit:,}: "
            "store the data elsewhere and pass a reference, or raise Harbor(payload_limit=…) if the store takes more"
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
    fields = {field[0]: field for field in _fields(parameters, hints)}
    placed = [fields.pop(parameter.name) for parameter in parameters if parameter.kind in POSITIONAL]
    named = list(fields.values())
    by_name = msgspec.defstruct("Named", named, kw_only=True, forbid_unknown_fields=True)
    return msgspec.defstruct("Arguments", placed, bases=(by_name,), forbid_unknown_fields=True)


def _fields(parameters: Iterable[inspect.Parameter], hints: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The fields of a struct for these parameters."""
    fields: list[tuple[Any, ...]] = []
    for parameter in parameters:
        kind = readable(hints.get(parameter.name, Any))
        if parameter.kind is parameter.VAR_POSITIONAL:
            kind = list.__class_getitem__(kind)
        elif parameter.kind is parameter.VAR_KEYWORD:
            kind = dict.__class_getitem__((str, kind))
        optional = parameter.default is not parameter.empty or parameter.kind in _OPEN
        fields.append((parameter.name, kind, UNSET) if optional else (parameter.name, kind))
    return fields


def _undecodable(hints: Mapping[str, Any], parameters: Iterable[str]) -> str:
    """Name the parameter whose type cannot be read from JSON."""
    wrong = [f"parameter {name}: {shown_type(hints[name])}" for name in parameters if not _is_decodable(name, hints)]
    return f"{wrong[0] if wrong else 'its parameters'} cannot be decoded from JSON"


def _is_decodable(name: str, hints: Mapping[str, Any]) -> bool:
    try:
        decoder(readable(hints.get(name, Any)))
    except Exception:  # annotations may be anything
        return False
    return True


def _why_undecodable(payload: bytes) -> str | None:
    """Say what is wrong with the envelope; None if nothing is."""
    try:
        version = msgspec.json.decode(payload, type=_AnyEnvelope).v
    except Exception as broken:
        return f"not a job payload: {broken}"
    return None if version == VERSION else _wrong_version(version)


def _wrong_version(version: int) -> str:
    return f"the payload has envelope version {version}, this release reads version {VERSION}"
