"""The harbor that `taskharbor worker system.process:harbor` imports: made here, so that every process has its own."""

from __future__ import annotations

from .app import Settings, Watched

harbor = Watched(Settings.given())
