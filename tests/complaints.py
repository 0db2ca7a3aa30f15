"""Nothing may go wrong silently: what asyncio itself has to complain about fails the test."""

from __future__ import annotations

import gc
import logging
from collections.abc import Generator

import pytest


@pytest.fixture(autouse=True)
def no_complaint_of_asyncio(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """No exception that is never retrieved, no task destroyed while pending, no error in a callback."""
    yield
    records = [record for when in ("setup", "call") for record in caplog.get_records(when)]
    complaints = [
        record.getMessage() for record in records if record.name == "asyncio" and record.levelno >= logging.ERROR
    ]
    assert complaints == []


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind() -> Generator[None]:
    """Broken parts and lost races leave tasks behind: collect them here, not while a later test is watched."""
    yield
    gc.collect()
