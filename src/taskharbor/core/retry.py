"""Retry policies as values: when to try again (F2, F4).

The default is full jitter: a delay drawn evenly from zero to an exponentially growing ceiling, so that jobs that failed
together do not retry together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Protocol, cast, get_args

from msgspec import Struct

from taskharbor.errors import ConfigError

Growth = Literal["exponential", "linear", "fixed"]
ErrorTypes = tuple[type[BaseException], ...]


class Rng(Protocol):
    """The part of `random.Random` that the core needs; always passed in."""

    def random(self) -> float: ...


class Retry(Struct, frozen=True, gc=False):
    """How long to wait after the n-th failure, and which exceptions are worth another try.

    `custom` takes the number of failures so far and returns seconds; it replaces the formula and its jitter.
    `give_up_on` wins over `retry_on`; an empty `retry_on` means every exception.
    """

    base: float = 0.5
    multiplier: float = 2.0
    cap: float = 30.0
    jitter: bool = True
    growth: Growth = "exponential"
    retry_on: ErrorTypes = ()
    give_up_on: ErrorTypes = ()
    custom: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        _check_number("base", self.base, 0.0)
        _check_number("multiplier", self.multiplier, 1.0)
        _check_number("cap", self.cap, 0.0)
        if not isinstance(self.jitter, bool):
            raise _wrong("jitter", self.jitter, "give True or False")
        if self.growth not in get_args(Growth):
            raise _wrong("growth", self.growth, f"choose {', '.join(map(repr, get_args(Growth)))}")
        _check_types("retry_on", self.retry_on)
        _check_types("give_up_on", self.give_up_on)
        if self.custom is not None and not callable(self.custom):
            raise _wrong("custom", self.custom, "give a function from the number of failures to seconds")

    @classmethod
    def fixed(cls, delay: float, *, jitter: bool = False) -> Retry:
        """The same delay every time."""
        return cls(base=delay, cap=delay, growth="fixed", jitter=jitter)

    @classmethod
    def linear(cls, base: float, *, cap: float = 30.0, jitter: bool = True) -> Retry:
        """`base` more after each failure, up to `cap`."""
        return cls(base=base, cap=cap, growth="linear", jitter=jitter)

    @classmethod
    def patient(cls, *, retry_on: ErrorTypes = (), give_up_on: ErrorTypes = ()) -> Retry:
        """Full jitter from 15 seconds up to an hour, for calls to other people's systems.

        Use it with `max_attempts=20`: the attempts then spread over six hours on average, and over twelve at most.
        """
        return cls(base=15.0, cap=3600.0, retry_on=retry_on, give_up_on=give_up_on)

    def ceiling(self, attempts: int) -> float:
        """The longest delay after `attempts` failures."""
        if self.growth == "fixed":
            grown = self.base
        elif self.growth == "linear":
            grown = self.base * attempts
        elif self.base == 0 or (attempts - 1) * math.log(self.multiplier) > 700:  # beyond what a float can hold
            grown = math.inf if self.base else 0.0
        else:
            grown = self.base * self.multiplier ** (attempts - 1)
        return min(grown, self.cap)

    def delay(self, attempts: int, rng: Rng) -> float:
        """Seconds to wait after `attempts` failures."""
        if self.custom is not None:
            return _checked(self.custom(attempts))
        ceiling = self.ceiling(attempts)
        return rng.random() * ceiling if self.jitter else ceiling

    def retries(self, error: BaseException) -> bool:
        """Whether this exception is worth another try."""
        if self.give_up_on and isinstance(error, self.give_up_on):
            return False
        return not self.retry_on or isinstance(error, self.retry_on)


def _wrong(name: str, given: Any, fix: str) -> ConfigError:
    return ConfigError(f"Retry({name}={given!r}): {fix}")


def _check_number(name: str, given: object, least: float) -> None:
    if not isinstance(given, int | float) or isinstance(given, bool) or not least <= given < math.inf:
        what = "a factor" if name == "multiplier" else "a number of seconds"
        raise _wrong(name, given, f"give {what} from {least:g} up")


def _check_types(name: str, given: object) -> None:
    kinds = cast("tuple[object, ...]", given) if isinstance(given, tuple) else (None,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise _wrong(name, given, "give a tuple of exception classes, such as (OSError,) or (OSError, KeyError)")


def _checked(seconds: object) -> float:
    if isinstance(seconds, int | float) and 0 <= seconds < math.inf:
        return float(seconds)
    raise ValueError(f"a custom retry returned {seconds!r}; it must return zero or more seconds")
