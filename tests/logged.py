"""The complaints on stderr of programs whose jobs fail on purpose."""

import re

_EVENT = re.compile(
    r"^(?:job\.retrying|job\.crashed|job\.dead|hook\.failed): .*\n(?:Traceback .*\n(?: +.*\n)*\S.*\n)?", re.MULTILINE
)


def unexpected(stderr: str) -> str:
    """Everything but the log of jobs and hooks that failed."""
    return _EVENT.sub("", stderr)
