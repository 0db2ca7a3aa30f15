"""`python -m taskharbor.testing.check FILE…` checks recorded histories.

Exit code 0: no violations, 1: violations, 2: wrong usage, or files that cannot be checked.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from taskharbor.testing.check import INVARIANTS, OVERTAKING, CheckReport, check
from taskharbor.testing.history import Event, Final, read

FINE, VIOLATED, UNUSABLE = range(3)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, check and print; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        events = [event for file in dict.fromkeys(options.files) for event in _read(file)]
        if not events:
            raise ValueError("there are no events to check")
        report = check(events, overtaking=options.overtaking, drained=not options.unfinished)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return UNUSABLE
    if options.json:
        print(msgspec.json.encode(_plain(report, options.limit)).decode())  # noqa: T201
    else:
        print("\n".join(report.lines(options.limit)))  # noqa: T201
        if not any(isinstance(event, Final) for event in events):
            print("there is no final inventory (`take_stock`): lost jobs cannot be detected")  # noqa: T201
    return FINE if report.fine else VIOLATED


def _read(file: str) -> list[Event]:
    try:
        return read([file])
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not a history: {getattr(error, 'strerror', None) or error}") from error


def _parser() -> argparse.ArgumentParser:
    invariants = "\n".join(f"  {name:4}{title}" for name, title in INVARIANTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m taskharbor.testing.check",
        description="Check the history of a run, given as the files that its processes wrote.",
        epilog=f"invariants:\n{invariants}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a history of one or more processes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--limit", type=_number, default=20, help="findings to print of each kind (%(default)s)")
    parser.add_argument(
        "--overtaking", type=_number_or_none, default=OVERTAKING, help="later jobs that may pass a due one, or 'any'"
    )
    parser.add_argument("--unfinished", action="store_true", help="jobs may be unfinished in the end: no H12")
    return parser


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _number_or_none(text: str) -> int | None:
    return None if text == "any" else _number(text)


def _plain(report: CheckReport, limit: int) -> dict[str, Any]:
    """The report as JSON: all the counts, and up to `limit` findings of each kind."""
    by_name = report.by_name
    return {
        "fine": report.fine,
        "counts": report.counts,
        "violated": {name: len(found) for name, found in by_name.items()},
        "violations": [each for found in by_name.values() for each in found[:limit]],
        "duplicated": len(report.duplicates),
        "duplicates": report.duplicates[:limit],
    }


if __name__ == "__main__":
    gc.disable()  # millions of small values, none of them in a cycle
    sys.exit(main())
