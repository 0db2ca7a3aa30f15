"""Wrapping of messages: a command in them stays on one line, so that it can be pasted as it is shown."""

from __future__ import annotations

import re
from textwrap import fill

_COMMAND = re.compile(r"`taskharbor [^`]*`|taskharbor [a-z][^`]*\Z")
_GLUE = "\ue000"  # for private use: not a space, and one cell wide


def has_command(text: str) -> bool:
    """Whether the text contains a command: in backticks, or at its end."""
    return _COMMAND.search(text) is not None


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most this width, except for a longer word or command. Its own lines stay apart."""
    glued = _COMMAND.sub(lambda found: found.group().replace(" ", _GLUE), text)
    lines = (fill(line, width, break_long_words=False, break_on_hyphens=False) for line in glued.split("\n"))
    return "\n".join(lines).replace(_GLUE, " ")
