"""The import of an application: what a child process of a worker repeats, and what must not happen there.

In a child it only defines tasks. A module without a `__main__` guard would enqueue its jobs again, or start a worker,
which would start children in turn. So no store can be opened until the import has ended.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from taskharbor.errors import ConfigError

_importing: list[str] = []
entries: list[str] = []
"""The modules that the command line was asked to import: a child begins with them, in this order."""


@contextmanager
def importing(name: str) -> Generator[None]:
    """Refuse to open any store of this process inside the block."""
    _importing.append(name)
    try:
        yield
    finally:
        _importing.pop()


def check_may_open() -> None:
    """Refuse during the import of an application in a child process."""
    if _importing:
        raise ConfigError(
            f"{_importing[-1]} is being imported by a process that runs its process=True tasks: there, code that "
            'enqueues, drains or starts a worker belongs under `if __name__ == "__main__":`'
        )
