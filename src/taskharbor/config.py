"""Where settings come from: an argument, the environment, `[tool.taskharbor]` in pyproject.toml, then the default."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from taskharbor.errors import ConfigError

DEFAULT_URL = "sqlite:///taskharbor.db"
URL_VARIABLE = "TASKHARBOR_URL"


def store_url(given: str | None) -> str:
    """The URL of the store."""
    return given or os.environ.get(URL_VARIABLE) or project("url") or DEFAULT_URL


def project(name: str) -> str | None:
    """A text of `[tool.taskharbor]` in the nearest pyproject.toml, from the working directory upwards."""
    value = _table().get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"[tool.taskharbor] {name} must be text, not {value!r}")
    return value


def _table() -> dict[str, Any]:
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            try:
                content = tomllib.loads(file.read_text(encoding="utf-8"))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
                raise ConfigError(f"{file} cannot be read: {error}") from error
            found: dict[str, Any] = content.get("tool", {}).get("taskharbor", {})
            return found
    return {}
