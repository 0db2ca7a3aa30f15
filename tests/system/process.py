"""What `taskharbor worker system.process:harbor` imports: opened here, so that every process has its own."""

from __future__ import annotations

import asyncio

from .app import Settings, opened

harbor = asyncio.run(opened(Settings.given()))
