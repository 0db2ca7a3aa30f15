"""Whether all that is stored fits together, and nothing is left over, in a store where nothing crashed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from servers.nats import NatsServer
from taskharbor.core.schedule import Schedule
from taskharbor.drivers.nats.buckets import read_bucket
from taskharbor.drivers.nats.large import pieces
from taskharbor.drivers.nats.pages import (
    HAS_CHILDREN,
    HAS_PARENTS,
    IS_DONE,
    IS_WAITING,
    NO_RARE,
    JobCard,
    JobPage,
    PagedJob,
    read_card,
    read_note,
    read_page,
)
from taskharbor.drivers.nats.reader import is_met, read_edges
from taskharbor.drivers.nats.subjects import Subjects, flow_of
from taskharbor.drivers.nats.upkeep import SLOT, first_overdue
from taskharbor.drivers.nats.wire import header

from .talk import opened

Values = dict[str, bytes]
BATCH = 1000
REMOVED_WITHIN = 5.0
_schedule = msgspec.msgpack.Decoder(Schedule).decode


class FoundPage(NamedTuple):
    """A page with its name."""

    name: str
    flow: str
    page: JobPage


class FoundJob(NamedTuple):
    """A job in its page, with all of its edges."""

    entry: PagedJob
    page: FoundPage
    card: JobCard
    above: tuple[tuple[str, str], ...]
    below: tuple[tuple[str, int, str], ...]


class Contents:
    """Everything that the streams of a namespace hold, read without the driver."""

    def __init__(self, namespace: str, values: Values) -> None:
        self.subjects = Subjects(namespace)
        self.values = values
        self.in_line = {each.name: each for each in self._pages("l.s.", 0)}
        self.ended = {each.name: each for each in self._pages("e.", 2)}
        self.pages = {**self.ended, **self.in_line}
        self.jobs = {job.entry.id: job for job in self._jobs()}

    def all(self, kind: str) -> Values:
        """The values whose subjects begin so."""
        prefix = f"{self.subjects.prefix}.{kind}"
        return {name: body for name, body in self.values.items() if name.startswith(prefix)}

    def _pages(self, kind: str, skipped: int) -> Iterator[FoundPage]:
        first = len(f"{self.subjects.prefix}.{kind}")
        for subject, body in self.all(kind).items():
            flow, name = subject[first:].split(".")[skipped:]
            page = read_page(body)
            right = self.subjects.page(flow, name) if kind == "l.s." else self.subjects.ended(flow, name)
            assert subject == right
            assert flow == flow_of(page.workflow), f"{subject} is of another workflow"
            yield FoundPage(name, flow, page)

    def _jobs(self) -> Iterator[FoundJob]:
        seen: set[str] = set()
        for found in self.pages.values():
            for entry in found.page.entries:
                if entry is None:
                    continue
                assert entry.id not in seen, f"{entry.id} is listed twice"
                seen.add(entry.id)
                body = self.values.get(self.subjects.card(entry.id))
                assert body is not None, f"{entry.id} has no card"
                card = read_card(body)
                assert card.page == found.name, f"the card of {entry.id} names another page than the one that lists it"
                above, below = card.above, card.below + (entry.rare or NO_RARE).below
                for number in range(card.chunks):
                    more = read_edges(self.values[self.subjects.edges(entry.id, card.page, number)])
                    above, below = above + more[0], below + more[1]
                yield FoundJob(entry, found, card, above, below)


def check(server: NatsServer, namespace: str, *, leaves: bool = False) -> None:
    """Fail unless every value belongs to something, and what is stored twice is the same.

    Where a process died in a verb, it `leaves` values that belong to nothing.
    """
    names = server.streams(namespace)
    if len(names) < 2:
        return  # a case has removed them
    found = Contents(namespace, asyncio.run(_values(server, namespace)))
    _check_pages(found, leaves)
    _check_cards(found, leaves)
    _check_edges(found)
    _check_keys(found, leaves)
    _check_cargo(found, leaves)
    _check_numbers(found)
    _check_hints(found)
    _check_consumers(server, f"{namespace}-LINE")


async def _values(server: NatsServer, namespace: str) -> Values:
    found: Values = {}
    async with opened(server.url(namespace=namespace)) as jetstream:
        wire = await jetstream.wire()
        for stream in (jetstream.jobs, jetstream.line):
            after = 0
            while True:
                request = {"seq": after + 1, "next_by_subj": ">", "batch": BATCH}
                messages = await wire.collect(f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(request))
                for message in messages[:-1]:
                    subject, sequence = (header(message.headers, name) for name in (b"Nats-Subject", b"Nats-Sequence"))
                    assert subject is not None
                    assert sequence is not None
                    after = int(sequence)
                    if message.body:
                        found[subject.decode()] = message.body
                if len(messages) <= BATCH:
                    break
    return found


def _check_consumers(server: NatsServer, stream: str) -> None:
    """A driver that is closed takes its consumer along: the server does so by itself only after half a minute."""
    give_up = time.monotonic() + REMOVED_WITHIN
    while left := server.api(f"CONSUMER.NAMES.{stream}", {"offset": 0}).get("consumers"):
        assert time.monotonic() < give_up, f"{left} was left behind"


def _check_pages(found: Contents, leaves: bool) -> None:
    for each in found.ended.values():
        page = each.page
        assert all(entry is None or entry.state >= IS_DONE for entry in page.entries), f"{each.name} has not ended"
        assert not page.sums, f"the totals of {each.name} are among the ended"
        assert not page.revived
        assert page.born
    for each in found.in_line.values():
        page = each.page
        assert not page.revived or each.name in found.ended
        if not leaves:
            assert any(page.entries) or page.keys or page.sums or page.revived, f"{each.name} is empty and still there"
            assert page.revived or each.name not in found.ended, f"{each.name} is not marked as revived"


def _check_cards(found: Contents, leaves: bool) -> None:
    left = set(found.all("j.")) - {found.subjects.card(id) for id in found.jobs}
    assert leaves or not left, f"cards without a job: {left}"
    chunks = {
        found.subjects.edges(id, job.card.page, number)
        for id, job in found.jobs.items()
        for number in range(job.card.chunks)
    }
    assert leaves or set(found.all("x.")) == chunks


def _check_edges(found: Contents) -> None:
    for id, job in found.jobs.items():
        edges = (job.entry.rare or NO_RARE).edges
        unmet = 0
        assert bool(job.above) == bool(edges & HAS_PARENTS)
        for position, (parent, policy) in enumerate(job.above):
            if parent in found.jobs:
                assert (id, position, policy) in found.jobs[parent].below, f"{parent} does not know {id}"
                unmet += not is_met((job.entry.rare or NO_RARE).met, position)
        if job.entry.state == IS_WAITING:
            assert unmet == (job.entry.rare or NO_RARE).unmet, f"{id} waits for {unmet} jobs, and says otherwise"
        for child, position, policy in job.below:
            assert edges & HAS_CHILDREN, f"{id} does not know that others wait for it"
            if (other := found.jobs.get(child)) is not None and other.above:
                assert other.above[position] == (id, policy)


def _check_keys(found: Contents, leaves: bool) -> None:
    owned: dict[str, str] = {}
    for id, job in found.jobs.items():
        if (key := (job.entry.rare or NO_RARE).idempotency_key) is not None:
            owned[found.subjects.key(key)] = id
    for each in found.pages.values():
        owned |= {found.subjects.key(key): each.page.workflow or "" for key, _, _ in each.page.keys}
    notes = {subject: read_note(body) for subject, body in found.all("k.").items()}
    if leaves:
        notes = {subject: note for subject, note in notes.items() if note.owner == owned.get(subject)}
    assert {subject: note.owner for subject, note in notes.items()} == owned
    for subject, note in notes.items():
        assert found.subjects.key(note.key) == subject
        assert note.page in found.pages, f"the page of the key {note.key} is not there"
        page = found.pages[note.page]
        assert page.flow == flow_of(note.workflow)
        listed = [entry.id for entry in page.page.entries if entry is not None]
        assert note.is_flow or note.owner in listed


def _check_cargo(found: Contents, leaves: bool) -> None:
    wanted = {
        found.subjects.cargo(id, rare.cargo_at)
        for id, job in found.jobs.items()
        if (rare := job.entry.rare or NO_RARE).cargo_at is not None
    }
    for body in found.all("l.c.").values():
        wanted |= set(pieces(body))
    stored = set(found.all("o."))
    assert wanted <= stored
    assert leaves or stored == wanted


def _check_numbers(found: Contents) -> None:
    """A job counts in its page while that is in LINE, and in the bucket otherwise."""
    numbers: defaultdict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
    pages: Counter[str] = Counter()
    for name, each in found.ended.items():
        if name in found.in_line:
            continue
        bucket = name.partition("_")[0]
        pages[bucket] += 1
        for entry in each.page.entries:
            if entry is not None:
                numbers[bucket][each.page.queue, entry.state - IS_DONE] += 1
    first = len(f"{found.subjects.prefix}.l.t.")
    kept = {subject[first:]: read_bucket(body) for subject, body in found.all("l.t.").items()}
    assert {name: bucket.pages for name, bucket in kept.items()} == dict(pages)
    said = {
        name: {
            (queue, index): number for queue, all in bucket.queues.items() for index, number in enumerate(all) if number
        }
        for name, bucket in kept.items()
    }
    assert {name: each for name, each in said.items() if each} == {name: dict(it) for name, it in numbers.items() if it}
    for name, each in found.ended.items():
        if name not in found.in_line:
            assert kept[name.partition("_")[0]].newest >= each.page.born, f"{name} is younger than its bucket"


def _check_hints(found: Contents) -> None:
    """Prune finds every ended page in time."""
    slots = {int(subject.rpartition(".")[2]) for subject in found.all("l.m.")}
    hints: defaultdict[str, set[int]] = defaultdict(set)
    for subject in found.all("d."):
        slot, name = subject.split(".")[-2:]
        hints[name].add(int(slot))
    for name, each in found.ended.items():
        if name in found.in_line or (first := first_overdue(each.page)) is None:
            continue
        in_time = {slot for slot in hints[name] & slots if slot <= first // SLOT}
        assert in_time, f"prune does not find {name}"
