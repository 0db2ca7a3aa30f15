"""What a job died of, without what differs from one to the next (Q1): who shares a fingerprint shares a cause.

Made of the task, the kind of error, and its message with numbers, ids, quoted texts and addresses taken out.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache

LONGEST = 200


@cache
def _variable() -> re.Pattern[str]:
    """What is likely to differ: not needed before something dies."""
    return re.compile(
        r"""
        "[^"]*" | '[^']*'                                                  # what was quoted
        | \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b                  # a UUID
        | \b0x[0-9a-f]+\b | \b(?=[a-f]*[0-9])[0-9a-f]{8,}\b               # an address, a hash
        | [+-]?\d+(?:[.,:]\d+)*                                            # a number, a time, an address on the net
        """,
        re.VERBOSE | re.IGNORECASE,
    )


def normalised(message: str) -> str:
    """The first line of a message, with `*` for what is likely to differ next time."""
    line = message.strip().partition("\n")[0]
    return " ".join(_variable().sub("*", line[: 4 * LONGEST]).split())[:LONGEST]


def fingerprint(task: str, kind: str, message: str) -> str:
    """Twelve hexadecimal digits that stand for a cause of death."""
    said = "\x00".join((task, kind, normalised(message)))
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
