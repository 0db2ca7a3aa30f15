"""The NATS JetStream driver: a store on one server, or on a cluster that survives the loss of a node.

Internal: `taskharbor.drivers.from_url` opens it. It imports the core, the seam (`taskharbor.driver`), the errors, and
of `drivers` only `shared` and `wakeup`.
"""

from taskharbor.drivers.nats.driver import NatsDriver

__all__ = ["connect"]

connect = NatsDriver.open
