"""The fingerprint of a failure (Q1): jobs with the same fingerprint share a cause.

A hash of the task, the kind of error, and its message with numbers, ids, quoted texts and addresses removed.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache

LONGEST = 200


@cache
def _variable() -> re.Pattern[str]:
    """The pattern of the variable parts; compiled on the first dead letter."""
    return re.compile(
        r"""
        "[^"]*" | '[^']*'                                                  # quoted text
        | \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b                  # a UUID
        | \b0x[0-9a-f]+\b | \b(?=[a-f]*[0-9])[0-9a-f]{8,}\b               # an address, a hash
        | [+-]?\d+(?:[.,:]\d+)*                                            # a number, a time, an IP address
        """,
        re.VERBOSE | re.IGNORECASE,
    )


def normalised(message: str) -> str:
    """The first line of a message, with `*` for the parts that vary."""
    line = message.strip().partition("\n")[0]
    return " ".join(_variable().sub("*", line[: 4 * LONGEST]).split())[:LONGEST]


def fingerprint(task: str, kind: str, message: str) -> str:
    """Twelve hexadecimal digits that identify a cause."""
    cause = "\x00".join((task, kind, normalised(message)))
    return hashlib.blake2b(cause.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
