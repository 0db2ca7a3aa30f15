"""Tools for testing applications and drivers of TaskHarbor. Nothing in the library imports them.

`TestBed` puts another store behind an application's harbors for one test; with pytest, the fixture `taskharbor` gives
one. There is virtual time (`run`, `VirtualLoop`), clocks, fault wrappers around a driver, and a `Proxy` that acts as
the network in front of a real server. `testing.simulation` runs a whole cluster from a seed, `testing.recorder` records
its history, `testing.check` checks it. `testing.kit` is the conformance kit; only it needs pytest (and its state
machine hypothesis): pip install "taskharbor[testing]".

Import from here and from the four packages and modules named above: the others are internal.
"""

from taskharbor.client.clock import Clock
from taskharbor.testing.bed import TestBed
from taskharbor.testing.clock import LoopClock, ManualClock, SkewedClock
from taskharbor.testing.faults import (
    Flaky,
    LostReply,
    LostRequest,
    Operation,
    Outage,
    Recording,
    Slow,
    Wrapper,
    always,
    script,
    sometimes,
)
from taskharbor.testing.loop import Deadlock, VirtualLoop, run
from taskharbor.testing.proxy import Proxy
from taskharbor.testing.proxy_link import Cut, Direction, Link
from taskharbor.testing.proxy_thread import ProxyThread

__all__ = [
    "Clock",
    "Cut",
    "Deadlock",
    "Direction",
    "Flaky",
    "Link",
    "LoopClock",
    "LostReply",
    "LostRequest",
    "ManualClock",
    "Operation",
    "Outage",
    "Proxy",
    "ProxyThread",
    "Recording",
    "SkewedClock",
    "Slow",
    "TestBed",
    "VirtualLoop",
    "Wrapper",
    "always",
    "run",
    "script",
    "sometimes",
]
