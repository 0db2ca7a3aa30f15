"""The settings of a harbor: defaults for its jobs and limits of its calls, checked when given."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from msgspec import Struct

from taskharbor.client.options import check_settings, seconds
from taskharbor.core.codec import PAYLOAD_LIMIT
from taskharbor.core.decide import Retention
from taskharbor.core.recycling import Recycle
from taskharbor.core.retry import Retry
from taskharbor.errors import ConfigError


class Settings(Struct, frozen=True, kw_only=True):
    """Defaults of a harbor; the options of a task and of a job come before them (F3, R5)."""

    max_attempts: int | None = 4
    max_crashes: int | None = 5
    timeout: float | None = None
    retry: Retry = Retry()
    idempotency_ttl: float | None = 24 * 3600.0
    payload_limit: int = PAYLOAD_LIMIT
    retention: Retention = Retention()
    store_timeout: float = 30.0
    recycle: Recycle = Recycle()


def settings_of(*, retry: Retry | None, recycle: Recycle | None, **given: Any) -> Settings:
    """The settings that `Harbor(…)` was given, or `ConfigError` that names the wrong one."""
    check_settings(given)
    if recycle is not None and not isinstance(recycle, Recycle):
        raise ConfigError(f"Harbor: recycle must be a Recycle(jobs=…, age=…, memory=…), not {recycle!r}")
    for name in ("timeout", "idempotency_ttl"):
        given[name] = None if given[name] is None else seconds(given[name])
    most = timedelta.max.total_seconds() - 1
    kept = [timedelta(seconds=min(seconds(given.pop(name)), most)) for name in ("keep_done", "keep_dead")]
    limits = recycle or Recycle()
    return Settings(retry=retry_policy(retry) or Retry(), retention=Retention(*kept), recycle=limits, **given)


def retry_policy(given: Retry | Callable[[int], float] | None) -> Retry | None:
    """The retry policy, also from a function; `ConfigError` for anything else."""
    if given is None or isinstance(given, Retry):
        return given
    if not callable(given):
        count = " (for the number of runs, set max_attempts=)" if isinstance(given, int) else ""
        raise ConfigError(f"retry must be a Retry(…) or a function from failures to seconds, not {given!r}{count}")
    return Retry(custom=given)
