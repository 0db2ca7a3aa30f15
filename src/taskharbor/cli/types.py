"""Values on the command line: lengths of time, times, `name=value`, queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
import msgspec

from taskharbor.cli.target import target_options
from taskharbor.core.filter import duration
from taskharbor.errors import ConfigError

C = TypeVar("C", bound=Callable[..., Any])


def span(text: str) -> float:
    """Seconds, written as a number or like 15m."""
    try:
        return float(text)
    except ValueError:
        return age(text)


def age(text: str) -> float:
    """Seconds, written like 15m: a bare number is rejected, because 7 might mean days."""
    try:
        return duration(text).total_seconds()
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def moment(text: str) -> datetime:
    """A time in ISO 8601 with its zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time: write it like 2030-01-31T09:00:00Z") from None
    if found.tzinfo is None:
        raise click.BadParameter(f"{text!r} has no time zone: add Z or +02:00")
    return found.astimezone(UTC)


def time_option(
    *names: str, help: str, default: str | None = None, type: Callable[[str], float] = span
) -> Callable[[C], C]:
    """An option that takes a length of time."""
    shown = default is not None
    return click.option(*names, type=type, metavar="TIME", default=default, show_default=shown, help=help)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def answer_options(command: C) -> C:
    """The options of a command that answers: `--json` and the target."""
    return json_option(target_options(command))


def limit_option(default: int, most: int) -> Callable[[C], C]:
    """`--limit` from 1 to a bound."""
    return click.option(
        "--limit", type=click.IntRange(1, most), default=default, show_default=True, help="At most this many."
    )


def arguments(words: Sequence[str]) -> dict[str, Any]:
    """A task's arguments from `name=value` words. A value is JSON, else text."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{word!r} is not an argument: write name=value, such as user_id=42")
        if name in found:
            raise click.UsageError(f"argument {name!r} is given twice")
        found[name] = _value(name, value)
    return found


def _value(name: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        if text.lstrip()[:1] in ("{", "[", '"'):
            raise click.UsageError(f"argument {name!r} looks like JSON but is not: {error}") from None
        return text


def json_object(option: str, text: str) -> dict[str, Any]:
    """A JSON object given to an option."""
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise click.UsageError(f"{option} takes a JSON object such as '{{\"user_id\": 42}}': {error}") from None


def queues(text: str | None) -> list[str] | dict[str, int] | None:
    """`mail,default` as names, `mail=3,default=1` as weights."""
    if text is None:
        return None
    pairs = [entry.strip().rpartition("=") if "=" in entry else (entry.strip(), "", "1") for entry in text.split(",")]
    try:
        weights = {name: int(weight) for name, _, weight in pairs}
    except ValueError:
        raise click.UsageError(f"--queues {text!r}: a weight must be a whole number, as in mail=3,default=1") from None
    return weights if "=" in text else list(weights)
