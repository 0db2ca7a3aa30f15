"""What is stored comes back as it was: names in subjects, records in entries, edges in bits, totals and numbers."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.core.job import Failure, JobRecord, Lease, Progress
from taskharbor.core.states import INFLIGHT, State
from taskharbor.drivers.nats import buckets, large, pages, reader
from taskharbor.drivers.nats.cargo import INLINE, packed
from taskharbor.drivers.nats.pages import (
    EPOCH,
    IS_DONE,
    EntryPlace,
    JobCard,
    JobPage,
    PagedJob,
    RareFields,
    RunSum,
    entry_of,
    micros,
    moment,
    pack,
    place_of,
    read_cargo,
    read_page,
    record,
    token_of,
)
from taskharbor.drivers.nats.subjects import LONGEST, PLAIN, Subjects, flow_of, part, text_of, workflow_of
from taskharbor.drivers.nats.sums import merged

MANY = settings(max_examples=150, deadline=None, derandomize=True, database=None)
ALLOWED = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-=~")
TEXTS = st.text(st.characters(codec=None), max_size=60)
TIMES = st.integers(0, 2**53).map(lambda it: EPOCH + timedelta(microseconds=it))
MAYBE_TIMES = st.none() | TIMES
WORDS = st.text("abc.ü ", max_size=6)
MAYBE_WORDS = st.none() | WORDS
BYTES = st.binary(max_size=20)


@MANY
@given(TEXTS)
def test_any_text_is_a_part_of_a_subject_and_comes_back(text: str) -> None:
    """X5: nothing in it means something to the server."""
    found = part(text)
    assert found
    assert set(found) <= ALLOWED
    if not found.startswith("=~"):
        assert text_of(found) == text
    assert workflow_of(flow_of(text)) in (text, None)
    assert flow_of(text) != flow_of(None)


@MANY
@given(st.text(st.sampled_from("aA=_-~.*> ü"), max_size=8), st.text(st.sampled_from("aA=_-~.*> ü"), max_size=8))
def test_two_texts_have_two_parts(one: str, other: str) -> None:
    """I1, R2: no key and no id is taken for another."""
    assert (part(one) == part(other)) == (one == other)


@MANY
@given(st.integers(0, 400), st.sampled_from(["a", "ü", "\N{SNOWMAN}", "."]))
def test_long_texts_are_hashed(length: int, letter: str) -> None:
    """X5: the server closes a connection that sends a long subject."""
    one, other = part(letter * length), part(letter * length + "b")
    assert len(one) <= LONGEST
    assert one != other
    if length * len(letter.encode()) * 3 <= LONGEST:
        assert text_of(one) == letter * length


def test_a_text_like_a_digest_or_an_escape_is_not_one() -> None:
    """I1: what a caller gives never begins with `=`."""
    for text in ("=~" + "0" * 40, "=41", "=", ""):
        assert text_of(part(text)) == text
    assert len({part(text) for text in ("=41", "A", "=", "", "=3D")}) == 5


def test_subjects_of_pages_can_be_told_apart() -> None:
    subjects = Subjects("n")
    assert subjects.ended("-", "1f_x") == "n.e.j.1f.-.1f_x"
    assert subjects.ended(flow_of("w"), "1f_x") == "n.e.w.1f.ww.1f_x"
    assert not PLAIN.fullmatch(subjects.ended_in("1f"))


@MANY
@given(st.text("0123456789abcdef", min_size=1), st.integers(0, 2**31), st.integers(0, 999), st.none() | TEXTS)
def test_a_token_names_its_place(lease: str, version: int, position: int, workflow: str | None) -> None:
    """D8: and nothing else is taken for one."""
    place = EntryPlace(flow_of(workflow), "2d12d8_ab1", position)
    token = token_of(lease, version, place)
    assert place_of(token) == (lease, version, place)
    assert place_of(token + ".x") is None
    assert place_of(token.partition(".")[2]) is None


FAILURES = st.lists(
    st.builds(Failure, attempt=st.integers(1, 9), kind=WORDS, message=WORDS, traceback=WORDS, failed_at=TIMES),
    max_size=2,
).map(tuple)
RECORDS = st.builds(
    dict[str, Any],
    priority=st.integers(-100, 100),
    expires_at=MAYBE_TIMES,
    idempotency_key=MAYBE_WORDS,
    key_expires_at=MAYBE_TIMES,
    kept=st.booleans(),
    due_at=TIMES,
    run_at=MAYBE_TIMES,
    attempts=st.integers(0, 9),
    crashes=st.integers(0, 9),
    unknown_put_backs=st.integers(0, 9),
    last_error=MAYBE_WORDS,
    failed_at=MAYBE_TIMES,
    failures=FAILURES,
    version=st.integers(0, 2**31),
    worker=MAYBE_WORDS,
    claimed_at=MAYBE_TIMES,
    started_at=MAYBE_TIMES,
    progress=st.none() | st.builds(Progress, fraction=st.floats(0, 1)),
    stop_requested_at=MAYBE_TIMES,
    stop_reason=MAYBE_WORDS,
    stop_fingerprint=MAYBE_WORDS,
    stop_keep_until=MAYBE_TIMES,
    completed_at=MAYBE_TIMES,
    result=st.none() | BYTES | st.just(b"x" * 2000),
    dlq_reason=MAYBE_WORDS,
    fingerprint=MAYBE_WORDS,
    unmet=st.integers(0, 9),
    original_id=MAYBE_WORDS,
    replays=st.integers(0, 9),
    settled_kind=st.sampled_from([None, "ack", "put_back", "fail", "cancel"]),
    settled_at=MAYBE_TIMES,
    keep_until=MAYBE_TIMES,
    payload=st.sampled_from([b"card", b"another"]),
)


@MANY
@given(RECORDS, st.sampled_from(State), st.booleans(), st.integers(0, 3))
def test_a_record_comes_back_from_its_entry(fields: dict[str, Any], state: State, settled: bool, position: int) -> None:
    """R1, R3: every field, to the microsecond."""
    place = EntryPlace("-", "2d12d8_ab1", position)
    card = JobCard(place.page, "t", b"card", 7, 4, 5, 1.5, None, {"h": "1"}, ("x",))
    lease = None
    if state == INFLIGHT:
        fields |= {"claimed_at": fields["claimed_at"] or EPOCH, "worker": fields["worker"] or ""}
        token = token_of("ab", fields["version"], place)
        lease = Lease(token, fields["version"], fields["due_at"], fields["worker"], fields["claimed_at"])
    job = JobRecord(
        id="a",
        type="t",
        queue="q",
        timeout=1.5,
        max_attempts=4,
        max_crashes=5,
        headers={"h": "1"},
        tags=("x",),
        workflow_id=None,
        state=state,
        created_at=moment(7),
        lease=lease,
        settled_token=token_of("cd", 3, place) if settled else None,
        **fields,
    )
    cargo = packed(job, card.payload, 1)
    entry = entry_of(job, 9, RareFields(), cargo.inline, cargo.name)
    listed: list[PagedJob | None] = [None] * position + [entry]
    page = read_page(pack(JobPage("q", listed)))
    read = page.entries[position]
    assert read is not None
    assert (cargo.body is None) or len(cargo.body) > INLINE
    assert record(read, page, place, card, None if cargo.body is None else read_cargo(cargo.body)) == job
    assert entry_of(job, 9, RareFields(), cargo.inline, cargo.name) == read


@MANY
@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=30))
def test_satisfied_edges_are_bits(changes: list[tuple[int, bool]]) -> None:
    """K2: each has its own."""
    met, model = b"", set[int]()
    for position, satisfied in changes:
        met = reader.with_met(met, position, satisfied)
        (model.add if satisfied else model.discard)(position)
    assert {position for position in range(50) if reader.is_met(met, position)} == model


SUMS = st.lists(
    st.builds(
        RunSum,
        minute=st.sampled_from([0, 60]),
        queue=st.sampled_from("qr"),
        task=st.sampled_from("tu"),
        outcome=st.just("done"),
        count=st.integers(1, 9),
        ran=st.integers(0, 9),
        waited=st.integers(0, 9),
    ),
    max_size=8,
)


@MANY
@given(SUMS, SUMS)
def test_totals_add_up(one: list[RunSum], other: list[RunSum]) -> None:
    """D13: each name once, and nothing is lost."""
    model: Counter[tuple[Any, ...]] = Counter()
    for each in (*one, *other):
        for field in ("count", "ran", "waited"):
            model[each.minute, each.queue, each.task, each.outcome, field] += getattr(each, field)
    found = merged(one, other)
    names = [(each.minute, each.queue, each.task, each.outcome) for each in found]
    assert len(set(names)) == len(names)
    told = {(*name, field): getattr(each, field) for name, each in zip(names, found, strict=True) for field in _FIELDS}
    assert {name: number for name, number in told.items() if number} == {n: it for n, it in model.items() if it}


_FIELDS = ("count", "ran", "waited")
ENDED = st.lists(st.none() | st.integers(IS_DONE, IS_DONE + 2), min_size=1, max_size=4)


@MANY
@given(st.lists(st.tuples(st.sampled_from("qr"), ENDED), max_size=6), st.data())
def test_numbers_of_the_ended_are_exact(drawn: list[tuple[str, list[int | None]]], data: st.DataObject) -> None:
    """D13: whatever comes and goes, they are those of the pages that are there."""
    listed = [
        JobPage(queue, [None if it is None else PagedJob("a", it, 0) for it in states], born=born)
        for born, (queue, states) in enumerate(drawn, 1)
    ]
    bucket = buckets._changed(buckets.NO_BUCKET, [(page, 1) for page in listed])
    gone = data.draw(st.sets(st.integers(0, len(listed) - 1))) if listed else set[int]()
    bucket = buckets._changed(bucket, [(listed[index], -1) for index in gone])
    left = [page for index, page in enumerate(listed) if index not in gone]
    model: dict[str, list[int]] = {}
    for page in left:
        for entry in page.entries:
            if entry is not None:
                model.setdefault(page.queue, [0, 0, 0])[entry.state - IS_DONE] += 1
    assert {queue: list(numbers) for queue, numbers in bucket.queues.items()} == model
    assert bucket.pages == len(left)
    assert all(bucket.newest >= page.born for page in left)
    assert buckets.read_bucket(pack(bucket)) == bucket


@MANY
@given(st.binary(max_size=50), st.integers(1, 60))
def test_large_values_are_split_into_pieces(body: bytes, most: int) -> None:
    """X5: what does not fit into one message is stored in several, each small enough."""
    stored, writes = large.split(Subjects("n"), b"\x90" + body, most)
    assert all(len(write.body) <= most for write in writes)
    assert large.pieces(stored) == [write.subject for write in writes]
    assert (b"".join(write.body for write in writes) or stored) == b"\x90" + body
    assert len({write.subject for write in writes}) == len(writes)


def test_times_are_whole_microseconds() -> None:
    """R3: also those that a float could not hold."""
    for number in (0, 1, 999_999, 1_772_366_400_123_457, 2**53 + 1):
        assert micros(moment(number)) == number


def test_records_are_read_by_position_and_grow_at_the_end() -> None:
    """R5: a page of an earlier version lacks the last fields."""
    page = read_page(msgspec.msgpack.encode(["q", [["a", 0, 7]]]))
    assert page == JobPage("q", [PagedJob("a", pages.IS_READY, 7)])
