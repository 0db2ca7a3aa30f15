"""A folder with an application in it, and commands run in that folder."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from taskharbor.client.importing import entries

from .desk import SHOP, Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Desk]:
    """An empty folder with shop.py in it, as the working directory; no settings from outside.

    Commands run in this process too, and note the application for process=True children: tests that follow have none.
    """
    before = list(entries)
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TASKHARBOR_URL", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    yield Desk(tmp_path)
    entries[:] = before
