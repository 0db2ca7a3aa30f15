"""Log records of a child, which go to the handlers of its worker: as if they had been logged there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from taskharbor.driver.forking import after_fork
from taskharbor.worker.outcome_log import JobFilter
from taskharbor.worker.processes.messages import Logged

Fields = dict[str, str | int | float | bool | None]
ROOT = "root"
_TEXTS = frozenset({"msg", "args", "exc_info", "exc_text", "stack_info"})
_add_job = JobFilter().filter
_traceback = logging.Formatter().formatException


def levels() -> dict[str, int]:
    """The levels that are set in this process, by the names of loggers."""
    found = {name: logger.level for name, logger in _loggers().items() if logger.level}
    return {**found, ROOT: logging.root.level}


def relay(levels: Mapping[str, int], send: Callable[[Logged], None]) -> None:
    """Send all records from these levels up to the worker, instead of to handlers of this process."""
    for logger in _loggers().values():
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    for name, level in levels.items():
        (logging.root if name == ROOT else logging.getLogger(name)).setLevel(level)
    logging.root.handlers[:] = [_Relay(send)]


def log(logged: Logged) -> None:
    """Hand a child's record to the handlers of this process."""
    record = logging.makeLogRecord(logged.fields)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


class _Relay(logging.Handler):
    """Sends records as plain values; what is neither a number nor text is shown as text.

    Copies that a handler forks have no way to send: their records go to stderr.
    """

    def __init__(self, send: Callable[[Logged], None]) -> None:
        super().__init__()
        self._send = send
        self._stderr: logging.Handler | None = None
        after_fork(self, _Relay._use_stderr)

    def _use_stderr(self) -> None:
        self._stderr = logging.StreamHandler()
        self._stderr.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if self._stderr is not None:
            self._stderr.emit(record)
            return
        try:
            self._send(Logged(_fields(record)))
        except RecursionError:  # the caller's, such as signals that come faster than their handler logs
            raise
        except Exception:
            self.handleError(record)


def _fields(record: logging.LogRecord) -> Fields:
    _add_job(record)
    fields: Fields = {name: _plain(value) for name, value in vars(record).items() if name not in _TEXTS}
    traceback = record.exc_text or (_traceback(record.exc_info) if record.exc_info else None)
    return {**fields, "msg": record.getMessage(), "exc_text": traceback, "stack_info": record.stack_info}


def _plain(value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, str | int | float | bool):
        return value if not isinstance(value, int) or -(2**63) <= value < 2**63 else str(value)
    return str(value)


def _loggers() -> dict[str, logging.Logger]:
    known = logging.root.manager.loggerDict
    return {name: logger for name, logger in list(known.items()) if isinstance(logger, logging.Logger)}
