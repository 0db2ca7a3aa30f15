"""The whole system on virtual time, from one seed: clients, workers, the store, and every fault.

    from taskharbor.testing import simulation

    async def orders(cluster: simulation.Cluster) -> None:
        cluster.workers(harbor, count=3)
        ...

    simulation.assert_holds(orders, seed=1)

The same seed gives the same trace, byte for byte. `python -m taskharbor.testing.simulation` sweeps many seeds.

It imports all layers, and nothing of the library imports it.
"""

from taskharbor.testing.simulation.cluster import Cluster, crash
from taskharbor.testing.simulation.faults import Faults, drawn
from taskharbor.testing.simulation.processes import Process
from taskharbor.testing.simulation.run import Result, Scenario, SimulationFailed, assert_holds, explain, simulate

__all__ = [
    "Cluster",
    "Faults",
    "Process",
    "Result",
    "Scenario",
    "SimulationFailed",
    "assert_holds",
    "crash",
    "drawn",
    "explain",
    "simulate",
]
