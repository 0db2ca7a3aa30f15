"""`locked`: the lock is free afterwards, whenever the interrupt came."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from taskharbor.driver.locking import locked


class Interrupted:
    """A lock whose `acquire` is interrupted before or after it took effect."""

    def __init__(self, acquires: bool) -> None:
        self.lock, self._acquires = threading.RLock(), acquires

    def acquire(self) -> bool:
        if self._acquires:
            self.lock.acquire()
        raise KeyboardInterrupt

    def release(self) -> None:
        self.lock.release()


def is_free(lock: Any) -> bool:
    """Whether another thread can have the lock."""
    found: list[bool] = []

    def take() -> None:
        if lock.acquire(blocking=False):
            lock.release()
            found.append(True)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found == [True]


@pytest.mark.parametrize("acquires", [True, False], ids=["after", "before"])
def test_an_interrupt_beside_the_acquisition(acquires: bool) -> None:
    """G2: as CPython 3.14 has it between `with lock` and its block; and while another thread has the lock."""
    lock = Interrupted(acquires)
    with pytest.raises(KeyboardInterrupt) as caught:
        locked(cast("Any", lock), lambda: None)
    assert caught.value.__cause__ is None
    assert is_free(lock.lock)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, ValueError])
def test_what_the_function_raises_is_raised(error: type[BaseException]) -> None:
    lock = threading.RLock()

    def fail() -> None:
        raise error("no")

    with pytest.raises(error, match="no"):
        locked(lock, fail)
    assert is_free(lock)


def test_the_function_has_the_lock() -> None:
    """Also inside of itself, as a signal handler needs it."""
    lock = threading.RLock()
    inner: Callable[[], bool] = lambda: is_free(lock)  # noqa: E731
    assert locked(lock, lambda: (is_free(lock), locked(lock, inner), is_free(lock))) == (False, False, False)
    assert is_free(lock)
