"""The import of an application in a child process of a worker: it only defines tasks.

A module without a `__main__` guard would enqueue its jobs again, or start a worker inside the child, which starts
children in turn: no store can be opened until the import has ended.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from taskharbor.errors import ConfigError

_importing: list[str] = []


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
