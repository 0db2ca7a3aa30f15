"""How processes ended, for people."""

from __future__ import annotations

import signal

import pytest

from taskharbor.core.exit_codes import shown_exit


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-signal.SIGKILL, "SIGKILL"),
        (-signal.SIGSEGV, "SIGSEGV"),
        (-99, "signal 99"),
    ],
)
def test_an_exit_is_a_code_or_a_signal(code: int, shown: str) -> None:
    """F6: a signal by its name, if it has one."""
    assert shown_exit(code) == shown
