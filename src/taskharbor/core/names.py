"""Valid names: any Unicode, bounded, without control characters or lone surrogates (X5)."""

from __future__ import annotations

import re

from taskharbor.errors import InvalidJob

NAME_LIMIT = 255
KEY_LIMIT = 512
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")


def check_name(what: str, text: object, limit: int = NAME_LIMIT) -> str:
    """Return the text, or raise `InvalidJob` with the rule it breaks."""
    if not isinstance(text, str):
        raise InvalidJob(f"{what} must be text, not {'None' if text is None else type(text).__name__}")
    if not 1 <= len(text) <= limit:
        raise InvalidJob(f"{what} must have 1 to {limit} characters, this one has {len(text)}")
    if found := _FORBIDDEN.search(text):
        raise InvalidJob(
            f"{what} {text!r} has the character {found.group()!r} at position {found.start()}: "
            "control characters, line separators and lone surrogates are not allowed, any other Unicode is"
        )
    return text
