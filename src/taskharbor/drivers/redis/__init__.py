"""The Redis and Valkey driver: a store in memory that several machines share.

Internal: `taskharbor.drivers.from_url` opens it. It imports the core, the seam (`taskharbor.driver`),
the errors, and of `drivers` only `shared` and `wakeup`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult

from taskharbor.errors import MissingExtra

if TYPE_CHECKING:
    from taskharbor.driver import Driver

__all__ = ["connect"]


async def connect(url: SplitResult, options: dict[str, str]) -> Driver:
    """Open the store that a URL names."""
    try:
        import_module("hiredis")
    except ImportError:
        raise MissingExtra(f'{url.scheme}:// needs hiredis: pip install "taskharbor[redis]"') from None
    driver: Any = import_module("taskharbor.drivers.redis.driver")
    found: Driver = await driver.RedisDriver.open(url, options)
    return found
