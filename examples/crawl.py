"""Crawl a few pages side by side, then merge what was found: a group and its last step.

Run it: python examples/crawl.py
"""

from __future__ import annotations

import asyncio
import re

from taskharbor import FailedStep, Harbor, group

harbor = Harbor("sqlite:///crawl.db")

# A small built-in web, so that the example needs no network.
PAGES = {
    "/": '<a href="/harbour">harbour</a> <a href="/tides">tides</a>',
    "/harbour": '<a href="/">home</a> <a href="/cranes">cranes</a>',
    "/tides": '<a href="/moon">moon</a>',
}


@harbor.task(max_attempts=2)
async def links(page: str) -> list[str]:
    """Return the links of a page; a missing page fails, twice."""
    await asyncio.sleep(0.01)
    if page not in PAGES:
        raise LookupError(f"no page {page}")
    return re.findall(r'href="([^"]+)"', PAGES[page])


@harbor.task
async def merge(found: list[list[str] | FailedStep]) -> dict[str, int]:
    """Count the links to each page, and the pages that could not be read."""
    counts: dict[str, int] = {}
    for page in found:
        if isinstance(page, FailedStep):
            counts["unreadable"] = counts.get("unreadable", 0) + 1
            continue
        for link in page:
            counts[link] = counts.get(link, 0) + 1
    return counts


async def main() -> None:
    """Enqueue, work, and show the result."""
    async with harbor.open():
        pages = group(links.step(page) for page in [*PAGES, "/nowhere"])
        run = await pages.on_failure("collect").then(merge).aenqueue()
        async with harbor.worker():
            print(await run.aresult(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
