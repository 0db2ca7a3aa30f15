"""What a task is called when it is not told: `module.qualname`, the same from a script as from an import (P4)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import isasyncgenfunction, isclass, isgeneratorfunction
from pathlib import Path
from types import ModuleType
from typing import Any

from taskharbor.errors import ConfigError


def returns_its_result(function: object) -> bool:
    """Whether calling it gives a result: no class, no generator."""
    return callable(function) and not (
        isclass(function) or isgeneratorfunction(function) or isasyncgenfunction(function)
    )


def name_of(function: Callable[..., Any]) -> str:
    """`module.qualname`; a script's `__main__` counts as the module it would be imported as (P4)."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or qualname is None:
        raise ConfigError(f"{function!r} has no name of its own: give the task one with name=")
    if module in ("__main__", "__mp_main__"):  # the latter: the script again, in a process that it has spawned
        module = _main_module(sys.modules[module])
    return f"{module.removesuffix('.__main__')}.{qualname}"


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
