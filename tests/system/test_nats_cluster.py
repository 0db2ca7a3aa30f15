"""Three NATS nodes, killed one after another or all at once under load (X2, X3, X7)."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from pathlib import Path
from random import Random

import pytest

from servers.nats import NatsCluster, NatsServer

from .crew import PATIENCE, Crew, Member, until
from .outages import finish, load, works_again
from .storm import seconds

NAMESPACE = "cluster"
WITHIN = 15.0  # an election takes some five to ten seconds
Strike = Callable[[NatsCluster], list[NatsServer]]


@pytest.fixture
def crew(tmp_path: Path, nats_cluster: NatsCluster) -> Generator[Crew]:
    """A claim whose reply is lost lapses, which is counted as a crash; here that proves nothing."""
    crew = Crew(tmp_path, url=nats_cluster.url(namespace=NAMESPACE, replicas="3"), max_crashes=None)
    try:
        yield crew
    finally:
        crew.close()


def leader_of_line(cluster: NatsCluster) -> list[NatsServer]:
    """The node that decides every claim and every outcome."""
    return [cluster.leader_of(f"{NAMESPACE}-LINE")]


def leader_of_jobs(cluster: NatsCluster) -> list[NatsServer]:
    """The node that stores cards first."""
    return [cluster.leader_of(f"{NAMESPACE}-JOBS")]


def follower(cluster: NatsCluster) -> list[NatsServer]:
    """A node that leads neither stream."""
    leaders = (*leader_of_line(cluster), *leader_of_jobs(cluster))
    return [next(node for node in cluster.nodes if node not in leaders)]


def node_of_a_watch(cluster: NatsCluster) -> list[NatsServer]:
    """A node that feeds the memory of a worker."""
    names = until(lambda: watched_by(cluster), "a worker watches the line")
    return [next(node for node in cluster.nodes if node.name == names[0])]


def all_nodes(cluster: NatsCluster) -> list[NatsServer]:
    return cluster.nodes


def watched_by(cluster: NatsCluster) -> list[str]:
    """The nodes that feed watches."""
    found = cluster.api(f"CONSUMER.LIST.{NAMESPACE}-LINE", {"offset": 0})
    return [each["cluster"]["leader"] for each in found.get("consumers") or () if each["cluster"].get("leader")]


def in_sync(cluster: NatsCluster) -> bool:
    """Whether all nodes have everything, so that another one may go."""
    found = [cluster.api(f"STREAM.INFO.{NAMESPACE}-{stream}")["cluster"] for stream in ("LINE", "JOBS")]
    return all(
        each.get("leader")
        and len(each["replicas"]) == 2
        and all(peer["current"] and not peer.get("offline") for peer in each["replicas"])
        for each in found
    )


def strike(crew: Crew, cluster: NatsCluster, workers: list[Member], find: Strike) -> None:
    """Kill nodes with -9 and, if some are left, see the work go on without; then start them again."""
    what = find.__name__.replace("_", " ")
    cluster.wait_until(lambda: in_sync(cluster))
    victims = find(cluster)
    for node in victims:
        node.kill()
    if len(victims) < len(cluster.nodes):
        works_again(crew, workers, time.monotonic(), f"the death of {what}", WITHIN)
    for node in victims:
        node.launch()
    works_again(crew, workers, time.monotonic(), f"the start of {what}", WITHIN)


def freeze(crew: Crew, cluster: NatsCluster, workers: list[Member], find: Strike) -> None:
    """Stop nodes as a network does that is cut: they go on later, and still believe what they believed (X7)."""
    what = find.__name__.replace("_", " ")
    cluster.wait_until(lambda: in_sync(cluster))
    victims = find(cluster)
    for node in victims:
        node.freeze()
    if len(victims) < len(cluster.nodes):
        works_again(crew, workers, time.monotonic(), f"the freezing of {what}", PATIENCE)
    for node in victims:
        node.thaw()
    works_again(crew, workers, time.monotonic(), f"the thawing of {what}", WITHIN)


FINDS: list[Strike] = [leader_of_line, node_of_a_watch, follower, leader_of_jobs, all_nodes]


def test_work_goes_on_when_nodes_die(crew: Crew, nats_cluster: NatsCluster) -> None:
    """X2, X3, H1-H9: two workers and a client at work; nothing is lost, and nothing is finished twice."""
    workers = [crew.worker(), crew.worker()]
    client = load(crew)
    works_again(crew, workers, 0, "the start", WITHIN)
    for find in FINDS:
        strike(crew, nats_cluster, workers, find)
    finish(crew, workers, client)


@pytest.mark.thorough
def test_work_goes_on_when_nodes_die_again_and_again(crew: Crew, nats_cluster: NatsCluster) -> None:
    """X2, X3, H1-H9: all of them, in any order."""
    rng, end = Random(1), time.monotonic() + seconds(120)
    workers = [crew.worker(), crew.worker(), crew.worker()]
    client = load(crew)
    works_again(crew, workers, 0, "the start", WITHIN)
    while time.monotonic() < end:
        rng.choice([strike, freeze])(crew, nats_cluster, workers, rng.choice(FINDS))
    finish(crew, workers, client)
