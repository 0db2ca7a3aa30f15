"""Default names of tasks: `module.qualname`, the same in a script as in an import (P4). And what can be a task."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import isasyncgenfunction, isclass, isgeneratorfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any

from taskharbor.errors import ConfigError


def returns_its_result(function: object) -> bool:
    """Whether calling it returns its result, as a class or a generator function does not."""
    return callable(function) and not (
        isclass(function) or isgeneratorfunction(function) or isasyncgenfunction(function)
    )


def check_function(decorator: str, function: object) -> None:
    """Refuse what a worker could not call by its name and arguments alone, with the reason."""
    if why := _why_not(function):
        raise ConfigError(f"{decorator} takes a def or an async def that returns its result, not {why}")


def _why_not(function: object) -> str | None:
    name = getattr(function, "__qualname__", repr(function))
    if isinstance(function, staticmethod):
        return f"the staticmethod {name}: put the task decorator below @staticmethod, or use a module-level function"
    if isinstance(function, classmethod):
        return f"the classmethod {name}: {_NO_OBJECT}"
    if isgeneratorfunction(function) or isasyncgenfunction(function):
        return f"the generator {name}: a job has one result, so return a list, or enqueue one job for each item"
    if not returns_its_result(function):
        return repr(function)
    if getattr(function, "__name__", None) == "<lambda>":
        return "a lambda: it has no name that a worker could find it by, so write a def"
    return f"the method {name}: {_NO_OBJECT}" if _is_method(function, name) else None


_NO_OBJECT = "a worker has no object or class to call it on, so use a module-level function and pass it what it needs"


def _is_method(function: Any, qualname: str) -> bool:
    """Whether this is an unbound method: defined in a class, with self as its first parameter."""
    *_, holder, _ = ("", "", *qualname.rsplit(".", 2))
    if holder in ("", "<locals>"):
        return False
    try:
        first = next(iter(signature(function).parameters), None)
    except (TypeError, ValueError):  # some functions of C have no signature
        return False
    return first in ("self", "cls", "mcs")


def name_of(function: Callable[..., Any]) -> str:
    """`module.qualname`; a script's `__main__` counts as the module it would be imported as (P4)."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or qualname is None:
        raise ConfigError(f"{function!r} has no name of its own: give the task one with name=")
    return f"{import_name(module).removesuffix('.__main__')}.{qualname}"


def import_name(module: str) -> str:
    """The name by which another process imports a module; `__main__` if it cannot."""
    if module in ("__main__", "__mp_main__"):  # the latter: the script again, in a process that it has spawned
        return _main_module(sys.modules[module])
    return module


def check_importable(function: Callable[..., Any]) -> None:
    """Refuse a function for `process=True` that a new process could not import."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    why = None
    if module is None or qualname is None:
        why = f"{function!r} has no name: write a def at the top level of a module"
    elif "<locals>" in qualname:
        why = f"{qualname} is defined inside a function: move it to the top level of a module"
    elif import_name(module) == "__main__" or not _is_source(module):
        why = f"{qualname} is not in a module: put it into a file, such as tasks.py"
    if why:
        raise ConfigError(f"process=True takes a function that a new process can import; {why}")


def _is_source(module: str) -> bool:
    """Whether a script can be imported by its name as well; anything else was imported."""
    main = sys.modules.get(module)
    if module not in ("__main__", "__mp_main__") or getattr(main, "__spec__", None) is not None:
        return True
    return Path(getattr(main, "__file__", None) or "").suffix == ".py"


def _main_module(main: ModuleType) -> str:
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    if getattr(main, "__file__", None) is None:
        return "__main__"
    file = Path(main.__file__ or "").resolve()
    parts = [file.stem]
    for folder in file.parents:
        if not (folder / "__init__.py").exists():
            break
        parts.insert(0, folder.name)
    return ".".join(parts)
