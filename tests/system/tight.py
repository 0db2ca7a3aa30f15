"""An application whose task may not even have the memory of a fresh process."""

from __future__ import annotations

from taskharbor import Harbor

harbor = Harbor("memory://")


@harbor.task(process=True, memory="1 MiB")
def work() -> None:
    """Never runs."""
