"""A store's answers to operators' requests about a job (T3, Q2, Q4, K3)."""

from __future__ import annotations

from typing import Literal

Cancellation = Literal["cancelled", "requested", "finished", "missing"]
DeadLettering = Literal["dead", "requested", "finished", "missing"]
Deletion = Literal["deleted", "missing", "live", "needed"]
Replaying = Literal["replayed", "replayed_without_key", "missing", "not_dead"]
