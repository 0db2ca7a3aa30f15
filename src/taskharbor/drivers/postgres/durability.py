"""The settings of a server that decide what a crash may lose, as a worker's session has them."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.driver import StoreSetting

NAMES = ("synchronous_commit", "fsync", "full_page_writes")
READ = "SELECT array(SELECT current_setting(name) FROM unnest($1::text[]) AS name)"
LOST = {
    "synchronous_commit": "a crash of the server may lose the jobs of the last second: set it to on",
    "fsync": "a power cut may lose or damage the whole database: set it to on",
    "full_page_writes": "a power cut may damage the database: set it to on, unless the file system never tears pages",
}


def durability(values: Sequence[str]) -> list[StoreSetting]:
    """The settings by their values, in the order of `NAMES`."""
    return [
        StoreSetting(name, value, "warning", LOST[name]) if value == "off" else StoreSetting(name, value)
        for name, value in zip(NAMES, values, strict=True)
    ]
