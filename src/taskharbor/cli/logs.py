"""Log lines of a worker. Only the command line configures handlers; applications that embed a worker have their own."""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any

from taskharbor.cli.output import safe
from taskharbor.core.text import stamp
from taskharbor.worker.outcome_log import JobFilter

COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


def configure(level: str) -> None:
    """Log everything from `level` up to stderr: readable lines in a terminal, fixed fields elsewhere."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(JobFilter())
    in_terminal = sys.stderr.isatty()
    handler.setFormatter(ForPeople("NO_COLOR" not in os.environ) if in_terminal else ForFiles())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _brief(record: logging.LogRecord) -> str:
    """The message without the parts that the line's fields repeat."""
    return str(getattr(record, "brief", record.message))


class ForFiles(logging.Formatter):
    """`2030-01-31T09:00:00.123Z INFO taskharbor.worker job=… task=… attempt=… the message`."""

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(name)s job=%(job_id)s task=%(task)s attempt=%(attempt)s %(message)s"
        )

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The message on one line, with control characters escaped."""
        record.message = safe(_brief(record)).replace("\n", "\\n")
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback indented below it, so that no text of a job can look like a log line."""
        line, *below = super().format(record).split("\n")
        return "\n".join([line, *(f"    {safe(each)}" for each in below)])

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """ISO 8601 in UTC, with milliseconds."""
        return stamp(datetime.fromtimestamp(record.created, UTC))


class ForPeople(logging.Formatter):
    """The local time, a coloured level, and the job only on lines from inside one."""

    def __init__(self, colour: bool) -> None:
        super().__init__("%(message)s")
        self._colour = colour

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The message without control characters, followed by the job."""
        job = getattr(record, "job_id", "-")
        if job == "-":
            return safe(_brief(record))
        fields = f"{getattr(record, 'task', '-')} {job} attempt {getattr(record, 'attempt', '-')}"
        return safe(_brief(record)) + self._painted(f"  [{fields}]", "2")

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """The traceback without control characters."""
        return safe(super().formatException(ei))

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback if there is one."""
        clock = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        level = self._painted(f"{record.levelname:<7}", COLOURS.get(record.levelname, "0"))
        record.exc_text = record.exc_text and safe(record.exc_text)
        return f"{self._painted(clock, '2')} {level} {super().format(record)}"

    def _painted(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text
