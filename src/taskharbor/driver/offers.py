"""Asking a driver for the protocols beside the five verbs.

Callers name the smallest protocol that has what they call, so that a driver loses no more than what it lacks.
"""

from __future__ import annotations

from typing import TypeVar, cast
from weakref import WeakKeyDictionary

from taskharbor.driver.engine import ServerClock, WaitForWork
from taskharbor.driver.managing import Manage
from taskharbor.driver.reading import Inspect
from taskharbor.driver.registry import Counters, Registry
from taskharbor.driver.schedules import Schedules
from taskharbor.driver.transactions import Within
from taskharbor.driver.upkeep import Maintain
from taskharbor.driver.verbs import Driver
from taskharbor.driver.workflows import WorkflowStore
from taskharbor.errors import CapabilityMissing

C = TypeVar("C")
# Every built-in driver has the first group; the second depends on the engine.
COMMON: tuple[type, ...] = (Inspect, Manage, Maintain, WorkflowStore, Schedules, Registry, Counters, WaitForWork)
SPECIAL: tuple[type, ...] = (Within, ServerClock)
_offers: WeakKeyDictionary[Driver, dict[type, bool]] = WeakKeyDictionary()


def offered(driver: Driver, protocol: type[C]) -> C | None:
    """The driver as this protocol, or None if it does not have it."""
    try:
        known = _offers.setdefault(driver, {})
    except TypeError:  # a driver that cannot be remembered
        return driver if isinstance(driver, protocol) else None
    if protocol not in known:  # asked before every wait, and looking a protocol through takes long
        known[protocol] = isinstance(driver, protocol)
    return cast(C, driver) if known[protocol] else None


def capability(driver: Driver, protocol: type[C]) -> C:
    """The driver as this protocol, or `CapabilityMissing`: absent means loudly absent (D13)."""
    found = offered(driver, protocol)
    if found is None:
        raise CapabilityMissing(f"the {driver.name} driver has no {protocol.__name__}")
    return found
