"""How the end of a process is shown."""

from __future__ import annotations

import signal


def shown_exit(code: int) -> str:
    """An exit code as `subprocess` has it, for people: a signal by its name."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
