"""Error texts for calls that do not fit a task: which type a parameter has, and what it got (X5, F9).

All of this runs after a call was rejected, so it may be slow. Values are not shown: an argument may be a secret.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping
from typing import Any, get_args

from taskharbor.core.text import message_of

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_EXPECTED = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_FIELD = re.compile(r"Object (?:contains|missing) (unknown|required) field `([^`]*)`")
_ARGUMENT = re.compile(r"\.args\.(\w+)(.*)", re.DOTALL)
# msgspec uses the words of JSON.
_PYTHON = {"array": "list", "object": "dict", "null": "None"}


def shown_type(kind: Any) -> str:
    """A type as its author wrote it, or close to it."""
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")


def misbound(call: inspect.Signature, args: Collection[object], kwargs: Mapping[str, object], error: TypeError) -> str:
    """Explain why a call cannot be bound; the text follows the name of the task."""
    parameters = call.parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    placed = [name for name, parameter in parameters.items() if parameter.kind in POSITIONAL]
    if len(args) > len(placed) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        return _too_many(placed, len(args), parameters)
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for name in kwargs:
            if name not in parameters:
                return _unknown(name, parameters)
            if parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY:
                return f"takes {name!r} by position only, not by name"
    named = {name for name in kwargs if name in parameters and parameters[name].kind in _NAMED}
    if twice := next((name for name in placed[: len(args)] if name in named), None):
        return f"got {twice!r} twice: by position and by name"
    given = {*placed[: len(args)], *named}
    if missing := [name for name, each in parameters.items() if name not in given and _is_required(each)]:
        return f"needs {' and '.join(map(repr, missing))}: it takes {_shown(parameters)}"
    return f"cannot be called like this: {error}"


def _too_many(placed: list[str], given: int, parameters: Mapping[str, inspect.Parameter]) -> str:
    if not parameters:
        return "takes no arguments"
    if not placed:
        return f"takes no arguments by position, only by name: {_shown(parameters)}"
    most = "one argument" if len(placed) == 1 else f"{len(placed)} arguments"
    return f"takes at most {most} by position ({', '.join(placed)}), got {given}"


def _unknown(name: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    guess = f" (did you mean {close!r}?)" if (close := closest(name, parameters)) else ""
    return f"has no parameter {name!r}{guess}: it takes {_shown(parameters) or 'no arguments'}"


def closest(name: object, known: Collection[str]) -> str | None:
    """The known name that a mistyped one was probably meant to be."""
    import difflib  # slow to import and rarely needed

    return next(iter(difflib.get_close_matches(str(name), known, 1)), None)


def _shown(parameters: Mapping[str, inspect.Parameter]) -> str:
    return ", ".join(_STARS.get(parameter.kind, "") + name for name, parameter in parameters.items())


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in _STARS


def misfit(error: BaseException, call: inspect.Signature, hints: Mapping[str, Any], given: object = None) -> str:
    """Explain why arguments do not fit the types of the parameters.

    `given` has the original values as attributes, if there is more than their JSON.
    """
    why, path = _split(message_of(error))
    if path == ".args" and (field := _FIELD.fullmatch(why)):
        return f"there is no parameter {field[2]!r}" if field[1] == "unknown" else f"parameter {field[2]!r} is missing"
    found = _ARGUMENT.fullmatch(path)
    if found is None or found[1] not in call.parameters:
        return why
    name, inside = found.groups()
    star = _STARS.get(call.parameters[name].kind, "")
    wants = f"parameter {star}{name} wants {shown_type(hints.get(name, Any))}"
    if (types := _EXPECTED.fullmatch(why)) is None:
        return f"{wants}: {why}{f' (at {name}{inside})' if inside else ''}"
    expected, got = (" | ".join(_PYTHON.get(part, part) for part in word.split(" | ")) for word in types.groups())
    if star:
        return f"{wants}, got {got}"
    if not inside:
        return f"{wants}, got {got if (value := getattr(given, name, None)) is None else type(value).__name__}"
    return f"{wants}: {name}{inside} must be {expected}, got {got}"


def _split(text: str) -> tuple[str, str]:
    """msgspec's message and the full path to the value; a type decoded in two steps has it in two parts."""
    before, at, outer = text.rpartition(" - at `$")
    if not at:
        return text, ""
    why, inner = _split(before)
    return why, outer.removesuffix("`") + inner
