"""Starting a child: a new interpreter that imports the application as the worker has, by the names of its modules."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

from taskharbor.client.client import Client
from taskharbor.client.importing import entries
from taskharbor.client.naming import import_name
from taskharbor.errors import ConfigError
from taskharbor.worker.application import AppRegistry, harbors
from taskharbor.worker.processes import logs
from taskharbor.worker.processes.messages import StartChild

VARIABLE = "TASKHARBOR_CHILD_PATH"
CODE = (
    f"import json, os, sys; sys.path[:] = json.loads(os.environ.pop({VARIABLE!r})); "
    "from taskharbor.worker.processes.child import main; main({fd})"
)
_flags: Callable[[], list[str]] = cast("Any", subprocess)._args_from_interpreter_flags


def check_system() -> None:
    """Refuse a system that has no sockets to pass on, or no process groups to kill."""
    if os.name != "posix":
        raise ConfigError(
            f"process=True works on Linux and macOS, not on {sys.platform}: leave it out, or run this worker there"
        )
    if not sys.executable:
        raise ConfigError("process=True starts further interpreters, but sys.executable does not name this one")


def start_message(client: Client, app: AppRegistry) -> StartChild:
    """The first message to every child of this process."""
    tasks = tuple(sorted(name for name, task in app.tasks.items() if task.process))
    alike = [parts.client for parts in harbors() if parts.app.tasks.keys() >= set(tasks)]
    return StartChild(
        parent=os.getpid(),
        modules=_modules(app),
        given=bool(entries),
        tasks=tasks,
        harbor=alike.index(client),
        url=client.session.url,
        payload_limit=client.session.payload_limit,
        levels=logs.levels(),
        limited=any(task.memory is not None for task in app.tasks.values()),
    )


def _modules(app: AppRegistry) -> tuple[str, ...]:
    """The modules that the command line was given, that made the harbor, or that registered something with it.

    Of the latter those come first whose import began first: they may set up what the others need.
    """
    handlers = (task.handler for task in app.tasks.values())
    functions: Iterable[Any] = (*handlers, *app.lifespans, *app.middleware, *app.arounds)
    found = {app.module, *(getattr(function, "__module__", None) for function in functions)}
    order = {name: index for index, name in enumerate(sys.modules)}
    named = sorted((name for name in found if name in order), key=lambda name: order[name])
    return tuple(dict.fromkeys(name for name in (*entries, *map(import_name, named)) if name != "__main__"))


def spawn() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A new process and the socket to it. In a session of its own: Ctrl-C is the worker's, and a kill takes the group.

    Must be called in a thread that lives as long as the worker: on Linux the kernel kills a child with the thread.
    """
    mine, theirs = socket.socketpair()
    with theirs:
        try:
            fd = theirs.fileno()
            process = subprocess.Popen(
                [sys.executable, *_flags(), "-c", CODE.format(fd=fd)],
                pass_fds=[fd],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, VARIABLE: json.dumps([path for path in sys.path if isinstance(path, str)])},
            )
        except BaseException:
            mine.close()
            raise
    mine.setblocking(False)
    return process, mine
