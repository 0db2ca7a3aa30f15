"""Log lines of a worker. Only the command line configures handlers; applications that embed a worker have their own."""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime

from taskharbor.cli.output import safe
from taskharbor.runtime.observe import JobFilter

COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


def configure(level: str) -> None:
    """Log everything from `level` up to stderr: for people in a terminal, with fixed fields elsewhere."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(JobFilter())
    in_terminal = sys.stderr.isatty()
    handler.setFormatter(ForPeople("NO_COLOR" not in os.environ) if in_terminal else ForFiles())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class ForFiles(logging.Formatter):
    """`2030-01-31T09:00:00.123Z INFO taskharbor.worker job=… task=… attempt=… the message`."""

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(name)s job=%(job_id)s task=%(task)s attempt=%(attempt)s %(message)s"
        )

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """One line for one message, whatever is in it."""
        record.message = safe(record.message).replace("\n", "\\n")
        return super().formatMessage(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """ISO 8601 in UTC, with milliseconds."""
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class ForPeople(logging.Formatter):
    """The local time, a coloured level, and the job only on lines from inside one."""

    def __init__(self, colour: bool) -> None:
        super().__init__("%(message)s")
        self._colour = colour

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Nothing that a terminal would obey."""
        return safe(record.message)

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback if there is one."""
        clock = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        level = self._painted(f"{record.levelname:<7}", COLOURS.get(record.levelname, "0"))
        job = getattr(record, "job_id", "-")
        inside = ""
        if job != "-":
            fields = f"{getattr(record, 'task', '-')} {job} attempt {getattr(record, 'attempt', '-')}"
            inside = self._painted(f"  [{fields}]", "2")
        return f"{self._painted(clock, '2')} {level} {super().format(record)}{inside}"

    def _painted(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text
