"""What a mutant is: a wrong function, the places where it stands in for the right one, and who must notice."""

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

Place = tuple[type | ModuleType, str]
HERE = Path(__file__).parent


class StaleMutant(Exception):
    """A mutant that raises by mistake: it no longer fits the code that it breaks, and its death proves nothing."""


class Mutant:
    """A wrong function gets the right one as its first argument, then the arguments of the call.

    Where a text stands (a statement of SQL), it gets the right text and returns the wrong one.
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
                    right = inspect.getattr_static(owner, name)
                    patches.enter_context(mock.patch.object(owner, name, self._instead_of(right, mistakes)))
                yield
        finally:
            if mistakes:
                raise StaleMutant(f"{self!r} no longer fits") from mistakes[0]

    def _instead_of(self, right: Any, mistakes: list[Exception]) -> Any:
        if isinstance(right, str):
            return self._wrong_text(right)
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
