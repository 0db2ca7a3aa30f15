"""A recorder's notes of a call, as far as the checker needs them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor import driver
from taskharbor.core.job import NewJob
from taskharbor.core.schedule import Schedule
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing.history import Called, Event, SwapEntry, micros
from taskharbor.testing.kit.jobs import at
from taskharbor.testing.recorder import Recorder

SEEN = Schedule(name="s", definition=b"", slot=at(1), last_job_id="a", last_slot=at(0))


@pytest.mark.parametrize(
    ("seen", "then", "with_job", "noted"),
    [
        (SEEN, replace(SEEN, slot=at(2), last_job_id="j", last_slot=at(1)), True, 1),
        (SEEN, replace(SEEN, slot=None, last_job_id="j", last_slot=at(1)), True, 1),
        (SEEN, replace(SEEN, slot=at(2), last_job_id="j"), True, 0),
        (SEEN, replace(SEEN, last_job_id="j"), True, None),
        (SEEN, SEEN, True, None),
        (SEEN, None, True, None),
        (None, SEEN, True, 0),
        (None, replace(SEEN, last_slot=None), True, None),
        (SEEN, replace(SEEN, slot=at(2), last_slot=at(1)), False, None),
    ],
)
def test_a_witness_notes_the_slot_of_a_tick(
    seen: Schedule | None, then: Schedule | None, with_job: bool, noted: int | None
) -> None:
    """N3: a tick moves its schedule and makes a job; the slot is the one that was run last."""

    async def swap() -> Event:
        events: list[Event] = []
        new = NewJob(id="j", type="t", queue="q", payload=b"") if with_job else None
        swaps = [driver.Swap(name="s", seen=seen, then=then, job=new)]
        store: Any = Recorder(MemoryDriver(), "w", events)
        await store.swap_schedules(swaps, at(0))
        return events[0]

    event = asyncio.run(swap())
    assert isinstance(event, Called)
    [item] = event.items
    assert isinstance(item, SwapEntry)
    assert item.slot == (None if noted is None else micros(at(noted)))
    assert (item.job is not None) == with_job
