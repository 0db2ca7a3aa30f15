"""The crew: real processes that share a store in the test's own folder."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from .crew import Crew


@pytest.fixture
def crew(tmp_path: Path) -> Generator[Crew]:
    """Nobody is on board yet; whoever is at the end is ended."""
    crew = Crew(tmp_path)
    try:
        yield crew
    finally:
        crew.close()
