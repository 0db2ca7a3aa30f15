"""The options of a supervisor. What the command line says about them is in tests/cli."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from taskharbor.errors import ConfigError
from taskharbor.supervisor import options
from taskharbor.supervisor.options import SupervisorOptions


def test_a_system_without_signals_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """X5: Windows gets a message that names another way."""
    monkeypatch.setattr(options, "os", SimpleNamespace(name="nt"))
    with pytest.raises(ConfigError, match="here, start several workers by hand instead"):
        SupervisorOptions(processes=2)
