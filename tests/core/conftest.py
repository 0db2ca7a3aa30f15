"""Hypothesis profiles: nothing is timed; under CI every run tries the same examples; `core-deep` looks harder."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("core", deadline=None, max_examples=50)
settings.register_profile("core-repeatable", parent=settings.get_profile("core"), derandomize=True, database=None)
settings.register_profile("core-deep", parent=settings.get_profile("core"), max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "core-repeatable" if os.environ.get("CI") else "core"))
