"""The seam between the rules and the stores: five verbs, and small protocols cut by who calls them.

Drivers store and move; they decide nothing. Every verb takes `now` and no driver reads a clock: an expiry is a stored
value compared with `now`. Verbs take sequences, so that a hot path never makes one round trip per job. A verb is one
atomic step per group, report or transition: it happens whole or not at all, and repeating it is safe. A driver may be
called from several threads and event loops at once.

    verbs         Driver         what every worker needs: enqueue, reserve, extend_lease, settle, close
    reading       Inspect        records, keys, lists and counts: clients, workers, admin, TaskManager, supervisor
    managing      Manage         cancel, dead_letter, delete, replay, reschedule, pause: clients, admin, TaskManager
    upkeep        Maintain       sweep and prune: every worker, TaskManager
    workflows     WorkflowStore  results of parents, workflows: workers, clients, admin
    schedules     Schedules      recurring tasks: the scheduler of every worker, admin
    registry      Registry, Counters   workers and totals: every worker, clients, admin, supervisor
    engine        WaitForWork, ServerClock, Erases   hints, the engine's clock, namespaces to remove: workers, clients
    durability    Durability, Repairs   what the engine may lose, and indexes that damage separated: `health --deep`
    blocking      EnqueueBlocking   enqueue on the caller's thread: the blocking face of clients
    transactions  Within         joining and lending transactions: `tx=`, `current().transaction()`
    migration     Connect, Migrates   how a store is opened and migrated

Import from here; the modules are internal. `offered` and `capability` ask a driver for a protocol. Callers ask for
the smallest one that has what they call, so that a driver without it loses as little as possible. This package imports
the core and the errors only.
"""

from typing import TypeVar, cast
from weakref import WeakKeyDictionary

from taskharbor.core.dependency import Parent
from taskharbor.core.evolve import Cancellation, DeadLetter, DeadLettering, Deletion, Replay, Replaying, Reschedule
from taskharbor.core.group import Enqueued, Group, GroupResult
from taskharbor.core.lease import Extended, Report, Verdict
from taskharbor.core.schedule import Schedule, Swap
from taskharbor.core.steps.forget import PRUNE_AGAIN
from taskharbor.core.tally import Tally
from taskharbor.core.transition import Increment
from taskharbor.driver.blocking import EnqueueBlocking
from taskharbor.driver.durability import Durability, RepairReport, Repairs, StoreSetting
from taskharbor.driver.engine import Erases, ServerClock, WaitForWork
from taskharbor.driver.managing import Manage
from taskharbor.driver.migration import Connect, Migrates, Migration
from taskharbor.driver.reading import DeadGroup, Inspect, QueueCounts
from taskharbor.driver.registry import Counters, Registry, WorkerRecord
from taskharbor.driver.schedules import Schedules
from taskharbor.driver.transactions import OwnTransaction, Transaction, Within, at_once
from taskharbor.driver.upkeep import Maintain
from taskharbor.driver.verbs import Driver
from taskharbor.driver.workflows import WorkflowCounts, WorkflowStore
from taskharbor.errors import CapabilityMissing

__all__ = [
    "COMMON",
    "PRUNE_AGAIN",
    "SPECIAL",
    "Cancellation",
    "Connect",
    "Counters",
    "DeadGroup",
    "DeadLetter",
    "DeadLettering",
    "Deletion",
    "Driver",
    "Durability",
    "EnqueueBlocking",
    "Enqueued",
    "Erases",
    "Extended",
    "Group",
    "GroupResult",
    "Increment",
    "Inspect",
    "Maintain",
    "Manage",
    "Migrates",
    "Migration",
    "OwnTransaction",
    "Parent",
    "QueueCounts",
    "Registry",
    "RepairReport",
    "Repairs",
    "Replay",
    "Replaying",
    "Report",
    "Reschedule",
    "Schedule",
    "Schedules",
    "ServerClock",
    "StoreSetting",
    "Swap",
    "Tally",
    "Transaction",
    "Verdict",
    "WaitForWork",
    "Within",
    "WorkerRecord",
    "WorkflowCounts",
    "WorkflowStore",
    "at_once",
    "capability",
    "offered",
]

C = TypeVar("C")
# Every built-in driver has the first group; the second depends on the engine.
COMMON: tuple[type, ...] = (Inspect, Manage, Maintain, WorkflowStore, Schedules, Registry, Counters, WaitForWork)
SPECIAL: tuple[type, ...] = (Within, ServerClock, EnqueueBlocking, Durability, Repairs, Erases)
_offers: WeakKeyDictionary[Driver, dict[type, bool]] = WeakKeyDictionary()


def offered(driver: Driver, protocol: type[C]) -> C | None:
    """The driver as this protocol, or None if it does not have it."""
    try:
        known = _offers.setdefault(driver, {})
    except TypeError:  # a driver without weak references
        return driver if isinstance(driver, protocol) else None
    if protocol not in known:  # asked before every wait, and isinstance of a protocol is slow
        known[protocol] = isinstance(driver, protocol)
    return cast(C, driver) if known[protocol] else None


def capability(driver: Driver, protocol: type[C]) -> C:
    """The driver as this protocol, or `CapabilityMissing`: absent means loudly absent (D13)."""
    found = offered(driver, protocol)
    if found is None:
        raise CapabilityMissing(f"the {driver.name} driver has no {protocol.__name__}")
    return found
