"""Log records of processes: what happens if one cannot be sent."""

from __future__ import annotations

import logging

import pytest

from taskharbor.worker.processes.logs import _Relay
from taskharbor.worker.processes.messages import Logged


def relay_that_raises(error: Exception) -> _Relay:
    """A relay whose worker cannot be reached."""

    def send(logged: Logged) -> None:
        raise error

    return _Relay(send)


RECORD = logging.makeLogRecord({"name": "shop", "msg": "hello"})


def test_a_recursion_is_the_callers(capsys: pytest.CaptureFixture[str]) -> None:
    """F11: it fails the handler, as in a thread. A signal handler that logs may be interrupted by the next signal."""
    with pytest.raises(RecursionError):
        relay_that_raises(RecursionError()).handle(RECORD)
    assert capsys.readouterr().err == ""


def test_other_errors_are_shown_and_cost_the_record_only(capsys: pytest.CaptureFixture[str]) -> None:
    """F11: as by other handlers of logging."""
    relay_that_raises(ValueError("no")).handle(RECORD)
    assert "--- Logging error ---" in capsys.readouterr().err
