"""`taskharbor worker --processes N` whose own calls of the store are recorded, as those of its workers are."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from taskharbor import drivers
from taskharbor.cli import main
from taskharbor.driver import Driver
from taskharbor.supervisor import options
from taskharbor.testing.recorder import Recorder

from .app import Diary, Settings

_settings = Settings.given()
_numbers = count(1)
_from_url = drivers.from_url


async def recorded(url: str) -> Driver:
    """The store of a URL; each time it is opened, the calls have a history of their own."""
    who = f"{_settings.who}-{next(_numbers)}"
    return Recorder(await _from_url(url), who, Diary(Path(_settings.folder), who))


if __name__ == "__main__":
    drivers.from_url = recorded
    options.SHORTEST_AGE = 0.5  # tests do not wait for hours, nor for ten seconds
    main()
