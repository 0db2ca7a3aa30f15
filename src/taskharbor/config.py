"""Settings: from an argument, the environment, `[tool.taskharbor]` in pyproject.toml, or the default, in this order.

Internal: `Harbor` and the command line read their settings here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from taskharbor.core.misfit import closest
from taskharbor.core.urls import redacted
from taskharbor.errors import ConfigError

DEFAULT_URL = "sqlite:///taskharbor.db"
# The settings of [tool.taskharbor].
KNOWN = ("app", "include", "url", "processes", "max_jobs", "max_age", "max_memory", "start_timeout")
URL_VARIABLE = "TASKHARBOR_URL"


def store_url(given: str | None) -> str:
    """The URL of the store."""
    if given is not None and not isinstance(given, str):
        raise ConfigError(f"a store's URL must be text such as {DEFAULT_URL}, not {_kind(given)}")
    return given if given is not None else os.environ.get(URL_VARIABLE) or project_url() or DEFAULT_URL


def project_url() -> str | None:
    """The URL of `[tool.taskharbor]`; a relative path is relative to the folder of pyproject.toml."""
    url, folder = project("url"), project_folder()
    if url is None or folder is None or not url.startswith("sqlite:///") or url.startswith("sqlite:////"):
        return url
    return f"sqlite:///{quote(str(folder))}/{url.removeprefix('sqlite:///')}"


def shown_url(url: str) -> str:
    """The URL for logs and messages: without its password, and with the whole path of a file."""
    return redacted(whole_url(url))


def whole_url(url: str) -> str:
    """The URL with the whole path of a file, for other processes; with its password."""
    if not url.startswith("sqlite:///") or url.startswith("sqlite:////"):
        return url
    return f"sqlite:///{quote(str(Path.cwd()))}/{url.removeprefix('sqlite:///')}"


def project_folder() -> Path | None:
    """The folder of the nearest pyproject.toml, from the working directory upwards."""
    here = working_folder()
    return next((folder for folder in (here, *here.parents) if (folder / "pyproject.toml").is_file()), None)


def working_folder() -> Path:
    """The folder that relative paths start from."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the working folder was deleted: change to another one (cd) and try again") from None


def project(name: str) -> str | None:
    """A text of `[tool.taskharbor]` in the nearest pyproject.toml, from the working directory upwards."""
    value = _table().get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"[tool.taskharbor] {name} must be text, not {_kind(value)}")
    return value


def project_number(name: str) -> int | None:
    """A whole number of `[tool.taskharbor]`."""
    value = _table().get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ConfigError(f"[tool.taskharbor] {name} must be a whole number, not {_kind(value)}")
    return value


def project_list(name: str) -> list[str]:
    """A list of texts of `[tool.taskharbor]`."""
    value = _table().get(name, [])
    if not isinstance(value, list):
        raise ConfigError(f'[tool.taskharbor] {name} must be a list such as ["shop.mail"], not {_kind(value)}')
    for each in cast("list[object]", value):
        if not isinstance(each, str):
            raise ConfigError(f"[tool.taskharbor] {name} must be a list of texts, not of {_kind(each)}")
    return cast("list[str]", value)


def _table() -> dict[str, Any]:
    import tomllib  # slow to import and rarely needed

    folder = project_folder()
    if folder is None:
        return {}
    file = folder / "pyproject.toml"
    try:
        content: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    found = _inner(_inner(content, "tool", file), "taskharbor", file)
    for name in found:
        if name not in KNOWN:
            guess = f" (did you mean {close!r}?)" if (close := closest(name, KNOWN)) else ""
            raise ConfigError(f"{file}: [tool.taskharbor] has no {name!r}{guess}; known are {', '.join(KNOWN)}")
    return found


def _inner(table: dict[str, Any], name: str, file: Path) -> dict[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: [{name}] must be a table, not {_kind(found)}")
    return cast(dict[str, Any], found)


def _kind(value: object) -> str:
    """Describe an invalid value by its type only: it may contain a password."""
    return f"a value of type {type(value).__name__}"
