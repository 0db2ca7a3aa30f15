"""A mutant: a wrong function, the places where it replaces the right one, and the catchers that must notice."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from taskharbor.drivers.redis.scripts import Script, script

# An attribute of a class or module, or an entry of a table of statements.
Place = tuple[type | ModuleType | dict[str, str], str]
HERE = Path(__file__).parent


class StaleMutant(Exception):
    """A mutant that raises by mistake: it no longer fits the code that it breaks, and its death proves nothing."""


def instead(sql: str, right: str, wrong: str = "") -> str:
    """The statement with another text in one place."""
    if sql.count(right) != 1:
        raise ValueError(f"{right!r} is not in {sql!r} once")
    return sql.replace(right, wrong)


class Mutant:
    """A wrong function gets the right one as its first argument, then the arguments of the call.

    Where a text stands (a statement of SQL, a script), it gets the right text and returns the wrong one.
    """

    def __init__(self, kind: str, wrong: Callable[..., Any], places: tuple[Place, ...], caught_by: tuple[str, ...]):
        self.kind = kind
        self.name = wrong.__name__
        self.breaks = (wrong.__doc__ or "").split("\n")[0]
        self.places = places
        self.caught_by = caught_by
        self._wrong = wrong

    def __repr__(self) -> str:
        return f"<{self.kind} mutant {self.name}>"

    @contextmanager
    def applied(self) -> Generator[None]:
        """Everything inside meets the mutant."""
        mistakes: list[Exception] = []
        try:
            with ExitStack() as patches:
                for owner, name in self.places:
                    patches.enter_context(self._patch(owner, name, mistakes))
                yield
        finally:
            if mistakes:
                raise StaleMutant(f"{self!r} no longer fits") from mistakes[0]

    def _patch(self, owner: type | ModuleType | dict[str, str], name: str, mistakes: list[Exception]) -> Any:
        if isinstance(owner, dict):
            return mock.patch.dict(owner, {name: self._wrong_text(owner[name])})
        right = inspect.getattr_static(owner, name)
        return mock.patch.object(owner, name, self._instead_of(right, mistakes))

    def _instead_of(self, right: Any, mistakes: list[Exception]) -> Any:
        if isinstance(right, str):
            return self._wrong_text(right)
        if isinstance(right, Script):
            return script(right.name, self._wrong_text(right.text))
        if isinstance(right, property):
            return property(lambda self_: self._wrong(right.fget, self_))

        @wraps(right)
        def wrong(*args: Any, **kwargs: Any) -> Any:
            with _noting(mistakes):
                return self._wrong(right, *args, **kwargs)

        @wraps(right)
        async def wrong_later(*args: Any, **kwargs: Any) -> Any:
            with _noting(mistakes):
                return await self._wrong(right, *args, **kwargs)

        return wrong_later if inspect.iscoroutinefunction(self._wrong) else wrong

    def _wrong_text(self, right: str) -> str:
        try:
            wrong: str = self._wrong(right)
        except ValueError as error:
            raise StaleMutant(f"{self!r} no longer fits") from error
        if wrong == right:
            raise StaleMutant(f"{self!r} no longer fits: it changes nothing")
        return wrong


@contextmanager
def _noting(mistakes: list[Exception]) -> Generator[None]:
    """Remember errors that stem from the mutant's own lines: the product may well swallow them."""
    try:
        yield
    except (TypeError, AttributeError, NameError, LookupError, ValueError) as error:
        if Path(traceback.extract_tb(error.__traceback__)[-1].filename).parent == HERE:
            mistakes.append(error)
        raise


class MutantRegistry:
    """The mutants of one kind, in the order of their definition."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.mutants: list[Mutant] = []

    def mutant(self, *places: Place, by: str | tuple[str, ...]) -> Callable[[Callable[..., Any]], Mutant]:
        """Register the wrong function below; `by` names its catchers."""

        def register(wrong: Callable[..., Any]) -> Mutant:
            mutant = Mutant(self.kind, wrong, places, (by,) if isinstance(by, str) else by)
            self.mutants.append(mutant)
            return mutant

        return register
