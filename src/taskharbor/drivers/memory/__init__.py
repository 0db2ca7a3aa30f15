"""The memory driver: the contract in dicts and heaps, written to be read.

Not persistent: for tests, and as the model that every other driver is compared with.

Internal: `taskharbor.drivers.from_url` opens it. It imports the core, the seam (`taskharbor.driver`),
the errors and `drivers.wakeup` only.
"""

from urllib.parse import SplitResult

from taskharbor.drivers.memory.driver import MemoryDriver
from taskharbor.errors import ConfigError

__all__ = ["MemoryDriver", "connect"]


async def connect(url: SplitResult, options: dict[str, str]) -> MemoryDriver:
    """Open a new, empty store: `memory://` has no location, so nothing can be shared or reopened."""
    if url.netloc or url.path not in ("", "/"):
        raise ConfigError("memory:// takes no host and no path: every harbor gets a store of its own")
    options.pop("namespace", None)
    return MemoryDriver()
