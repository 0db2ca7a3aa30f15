"""How `redis://` finds its driver."""

from __future__ import annotations

import asyncio
import sys

import pytest

from taskharbor.drivers import ALIASES, BUILT_IN, from_url
from taskharbor.errors import MissingExtra


@pytest.mark.parametrize("scheme", ["redis", "rediss", "unix", "valkey"])
def test_without_its_extra_the_error_names_it(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """X5."""
    monkeypatch.setitem(sys.modules, "hiredis", None)
    with pytest.raises(MissingExtra, match=rf'{scheme}:// needs hiredis: pip install "taskharbor\[redis\]"'):
        asyncio.run(from_url(f"{scheme}:///run/x"))
    assert BUILT_IN[ALIASES.get(scheme, scheme)] == "taskharbor.drivers.redis"
