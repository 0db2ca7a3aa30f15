"""The target of a command: the application it imports, or just the store that a URL names.

Commands that only read need just a URL and import no user code, unless only an application names the store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import click

from taskharbor import config
from taskharbor.admin.admin import Admin
from taskharbor.client.importing import entries
from taskharbor.core.urls import redacted
from taskharbor.errors import ConfigError, DriverUnavailable, HarborError
from taskharbor.harbor import Harbor

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])
APPLICATION = "MODULE:HARBOR"
STORE_PATIENCE = 10.0
LASTING = "Name one that lasts: --url sqlite:///jobs.db, TASKHARBOR_URL, or url in [tool.taskharbor]"
PACKAGE = Path(__file__).resolve().parent.parent


class Target:
    """The values of `-A`, `--include` and `--url`, given before or after the command's name."""

    def __init__(self) -> None:
        self.app: str | None = None
        self.url: str | None = None
        self.include: list[str] = []

    def application(self) -> Harbor | None:
        """The application's harbor, if one is named here or in pyproject.toml; `--url` replaces its store."""
        spec = self.spec()
        return None if spec is None else self._loaded(spec)

    def spec(self) -> str | None:
        """The name of the application, if one is given."""
        return self.app or config.project("app")

    def bare(self) -> Harbor:
        """A harbor without any tasks, to store jobs for workers elsewhere."""
        return Harbor(self.url, store_timeout=STORE_PATIENCE)

    @cached_property
    def store(self) -> Harbor:
        """The harbor that the command asks, whose store must exist."""
        harbor = self.named()
        if urlsplit(harbor.url).scheme == "memory":
            raise ConfigError(f"memory:// is a store inside one process: this command cannot see its jobs. {LASTING}")
        check_file(harbor.url)
        return harbor

    def now(self) -> datetime:
        """The time by the clock of the store that was asked."""
        return self.store.admin.now()

    def named(self) -> Harbor:
        """A harbor for its store. Imports the application only if it was given, or nothing else names a store."""
        if self.app is not None:
            return self._loaded(self.app)
        if self.url is None and not os.environ.get(config.URL_VARIABLE) and config.project("url") is None:
            return self.application() or self.bare()
        return self.bare()

    def _loaded(self, spec: str) -> Harbor:
        """The application with its task modules imported, on the store of `--url` if that is given."""
        harbor = load(spec)
        for module in dict.fromkeys([*self.include, *config.project_list("include")]):
            _imported(module, f"include {module!r}")
        if self.url is not None:
            harbor.url = self.url
        return harbor


def target_options(command: C) -> C:
    """Give a command `-A/--app`, `--include` and `--url`; `here()` returns their values."""
    remembered: dict[str, Any] = {"expose_value": False, "callback": _remember}
    app = click.option("-A", "--app", metavar=APPLICATION, help="The application.", **remembered)
    more = "A module with further tasks; may be repeated."
    include = click.option("--include", metavar="MODULE", multiple=True, help=more, **remembered)
    url = click.option("--url", metavar="URL", help="The store, such as sqlite:///jobs.db.", **remembered)
    return app(include(url(command)))


def here() -> Target:
    """The target of the running command."""
    return click.get_current_context().ensure_object(Target)


def _remember(context: click.Context, option: click.Parameter, value: Any) -> None:
    target = context.ensure_object(Target)
    if option.multiple:
        target.include += value
    elif value is not None:
        setattr(target, option.name, value)


def filled_in(hint: str) -> str:
    """The hint with this command's application for MODULE:HARBOR, or without it where pyproject.toml names one."""
    if (app := here().app) is not None:
        return hint.replace(APPLICATION, app)
    return hint if config.project("app") is None else hint.replace(f" {APPLICATION}", "")


def quieten() -> None:
    """Give log lines a handler that drops them: without any, Python prints warnings.

    What a store may lose is for `health --deep` and the logs of workers to say, not for each command.
    """
    logging.getLogger("taskharbor").addHandler(logging.NullHandler())


def ask(question: Callable[[Admin], Awaitable[T]]) -> T:
    """Open the store of the running command, ask, and close it."""
    harbor = here().store
    quieten()

    async def answer() -> T:
        async with harbor.open():
            return await question(harbor.admin)

    return asyncio.run(answer())


def load(spec: str) -> Harbor:
    """The harbor that `module:harbor` names. `module` alone is enough if it has just one."""
    if "://" in spec or "@" in spec:
        raise ConfigError(
            f"{redacted(spec)!r} names no application: write module:harbor, such as shop:harbor; a store goes to --url"
        )
    name, _, attribute = spec.partition(":")
    if not name or "/" in name:
        raise ConfigError(f"{spec!r} names no application: write module:harbor, such as shop:harbor")
    if name.endswith(".py"):
        raise ConfigError(
            f"{spec!r} names a file: write the module, {name.removesuffix('.py')}:{attribute or 'harbor'}"
        )
    try:
        module = _imported(name, f"application {spec!r}")
    except ConfigError as error:
        raise ConfigError(f"{error}{_with_colon(spec)}") from error.__cause__
    if not attribute:
        return _only_harbor(module, spec)
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Harbor):
        there = ", ".join(_harbors(module)) or "none"
        raise ConfigError(f"application {spec!r}: {attribute} is not a Harbor; harbors in {name}: {there}")
    return found


def _with_colon(spec: str) -> str:
    """A hint for `shop.harbor`, where the last part is a harbor and not a module."""
    name, _, attribute = spec.rpartition(".")
    is_harbor = isinstance(getattr(sys.modules.get(name), attribute, None), Harbor)
    return f"; did you mean {name}:{attribute}?" if is_harbor else ""


def _imported(name: str, what: str) -> ModuleType:
    folder = str(config.working_folder())
    for place in (str(config.project_folder() or folder), folder):
        if place not in sys.path:
            sys.path.insert(0, place)
    try:
        module = import_module(name)
        entries.append(name)
        return module
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{what}: no module {error.name!r} in {folder} or among the installed packages"
            ) from error
        raise _broken(error, name, what) from error
    except (Exception, SystemExit) as error:  # also for a name such as `.mail`, which import_module rejects
        raise _broken(error, name, what) from error


def _broken(error: BaseException, name: str, what: str) -> ConfigError:
    frames = list(traceback.extract_tb(error.__traceback__))
    if isinstance(error, HarborError | TimeoutError):  # raised by a call of ours: the line of the call is wanted
        frames = [frame for frame in frames if not Path(frame.filename).is_relative_to(PACKAGE)] or frames
    where = f"{frames[-1].filename} line {frames[-1].lineno}: " if frames else ""
    if isinstance(error, SyntaxError):
        where = f"{error.filename} line {error.lineno}: "
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    # Of Django's own settings and registry of apps, without which no model can be imported.
    django = type(error).__name__ in ("ImproperlyConfigured", "AppRegistryNotReady")
    hint = "; name a module that calls django.setup() before it imports models, see docs/django.md" if django else ""
    return ConfigError(
        f"{what} cannot be imported: {where}{type(error).__name__}: {message}{hint} "
        f'(full traceback: {Path(sys.executable).name} -c "import {name}")'
    )


def _harbors(module: ModuleType) -> dict[str, Harbor]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Harbor)}


def _only_harbor(module: ModuleType, spec: str) -> Harbor:
    harbors = _harbors(module)
    if len(harbors) != 1:
        there = ", ".join(f"{spec}:{name}" for name in harbors) or "none"
        raise ConfigError(f"application {spec!r} must name one harbor, as in {spec}:harbor; there is {there}")
    return next(iter(harbors.values()))


def check_file(url: str) -> None:
    """Check that the store exists: reading must not create one."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite" and not parts.netloc:
        file = Path(unquote(parts.path[1:]))
        if not file.exists():
            raise DriverUnavailable(
                f"there is no store {config.working_folder() / file}: the first enqueue or worker creates it; "
                f"name another with --url, -A or {config.URL_VARIABLE}"
            )
