"""Broken NATS drivers: what is not compared, not counted, not taken in, or done in the wrong order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

from msgspec.structs import replace

from taskharbor.core.keys import KeyRecord
from taskharbor.drivers.nats import (
    buckets,
    cargo,
    commit,
    drafts,
    enqueue,
    extend,
    line,
    pages,
    reader,
    reserve,
    settle,
    swaps,
    upkeep,
)
from taskharbor.drivers.nats.buckets import EndedCounts
from taskharbor.drivers.nats.commit import StepCommit
from taskharbor.drivers.nats.drafts import PageSteps
from taskharbor.drivers.nats.driver import NatsDriver
from taskharbor.drivers.nats.enqueue import NatsEnqueueing
from taskharbor.drivers.nats.leftovers import Leftovers
from taskharbor.drivers.nats.line import LineInMemory
from taskharbor.drivers.nats.reader import PageReader
from taskharbor.drivers.nats.reading import NatsReading
from taskharbor.drivers.nats.reserve import NatsReserving
from taskharbor.drivers.nats.store import Outdated, StreamWrite
from taskharbor.drivers.nats.swaps import PageSwap, PageSwaps
from taskharbor.drivers.nats.upkeep import NatsUpkeep
from taskharbor.drivers.nats.watch import LineWatch

from .mutant import MutantRegistry

NATS = MutantRegistry("nats")
mutant = NATS.mutant


# What is compared


def blind(right: Any, part: str, subject: str, body: bytes, *rest: Any) -> StreamWrite:
    """A write that compares nothing, if its subject has this part."""
    write: StreamWrite = right(subject, body, *rest)
    return write._replace(expected=None) if part in subject else write


@mutant((reserve, "StreamWrite"), by="test_what_another_has_claimed_is_not_claimed_by_a_page_that_is_out_of_date")
def nats_claim_compares_nothing(right: Any, *write: Any) -> StreamWrite:
    """A claim overwrites whatever others have done to the page."""
    return blind(right, ".l.s.", *write)


@mutant(
    (swaps, "StreamWrite"),
    by="test_an_outcome_in_a_page_that_is_out_of_date_leaves_the_claims_of_others[small]",
)
def nats_outcome_compares_nothing(right: Any, *write: Any) -> StreamWrite:
    """An outcome overwrites whatever others have done to the page."""
    return blind(right, ".l.s.", *write)


@mutant((commit, "StreamWrite"), by="test_a_cancel_of_a_job_that_is_claimed_meanwhile_is_a_request")
def nats_step_compares_no_pages(right: Any, *write: Any) -> StreamWrite:
    """A step overwrites whatever others have done to its pages."""
    return blind(right, ".l.s.", *write)


@mutant((commit, "StreamWrite"), by="test_a_key_that_is_taken_by_another_flow_meanwhile_has_one_owner")
def nats_step_compares_no_keys(right: Any, *write: Any) -> StreamWrite:
    """Two clients take the same key."""
    return blind(right, ".k.", *write)


@mutant((commit, "StreamWrite"), by="test_N3_only_one_of_many_swaps[redefine]")
def nats_schedules_not_compared(right: Any, *write: Any) -> StreamWrite:
    """A tick is enqueued by every scheduler."""
    return blind(right, ".l.c.", *write)


@mutant((enqueue, "StreamWrite"), by="test_I1_threads_create_one_job_per_key")
def nats_enqueue_compares_no_keys(right: Any, *write: Any) -> StreamWrite:
    """A known key is taken again."""
    return blind(right, ".k.", *write)


@mutant((enqueue, "StreamWrite"), by="test_R2_an_id_that_exists_is_JobExists_and_changes_nothing")
def nats_enqueue_compares_no_cards(right: Any, *write: Any) -> StreamWrite:
    """A job replaces another one with its id."""
    return blind(right, ".j.", *write)


@mutant((buckets, "StreamWrite"), by="test_pages_that_two_tidy_at_once_count_once_each[same bucket]")
def nats_numbers_not_compared(right: Any, *write: Any) -> StreamWrite:
    """Ended jobs that two workers count at once are counted once."""
    return blind(right, ".l.t.", *write)


@mutant((upkeep, "StreamWrite"), by="test_pages_that_two_tidy_at_once_count_once_each[another bucket]")
def nats_totals_not_compared(right: Any, *write: Any) -> StreamWrite:
    """Runs that two workers add to a minute at once are added once."""
    return blind(right, ".l.n.", *write)


@mutant((upkeep, "StreamWrite"), by="test_a_late_tidy_does_not_bring_an_old_version_back")
def nats_ended_page_not_compared(right: Any, *write: Any) -> StreamWrite:
    """A late tidy stores an old version of a page over a newer one."""
    return blind(right, ".e.", *write)


@mutant((NatsUpkeep, "_revisions"), by="test_a_late_tidy_does_not_bring_an_old_version_back")
async def nats_late_tidy_does_not_look_at_line(right: Any, keeper: Any, moved: Any) -> dict[str, int]:
    """A late tidy compares the revision of the newer version, and replaces it."""
    found = await keeper._store.read(keeper._subjects.ended(held.flow, held.name) for held, *_ in moved)
    return {subject: value.revision for subject, value in found.items()}


@mutant((upkeep, "is_ended"), by="test_a_job_that_is_replayed_while_its_page_is_tidied_stays_in_line")
def nats_tidy_takes_pages_that_have_changed(right: Any, entry: Any) -> bool:
    """A page with a job to run leaves the line, and the job never runs."""
    return True


@mutant((NatsReserving, "_won"), by="test_what_another_has_claimed_is_not_claimed_by_a_page_that_is_out_of_date")
def nats_conflict_is_a_claim(right: Any, reserving: Any, each: Any, page: Any, answer: Any) -> bool:
    """A claim that came too late is taken for won."""
    return right(reserving, each, page, answer) or isinstance(answer, Outdated)


@mutant((PageSwaps, "_is_won"), by="test_an_outcome_in_a_page_that_is_out_of_date_leaves_the_claims_of_others[small]")
def nats_conflict_is_an_outcome(right: Any, swaps: Any, swapped: Any, page: Any, answer: Any) -> bool:
    """An outcome that came too late is taken for written."""
    right(swaps, swapped, page, answer)
    return True


@mutant((reserve, "claimed"), by="test_a_claim_of_a_page_that_changes_before_it_is_sent_is_refused")
def nats_claim_sent_with_a_later_revision(right: Any, picked: Any, *rest: Any) -> Any:
    """What was computed from an old page is sent with the revision that the watch has seen since."""
    page = right(picked, *rest)
    picked.rev = picked.held.rev
    return page


@mutant(
    (PageSwaps, "_swap"),
    by="test_an_outcome_in_a_page_that_changes_before_it_is_sent_leaves_the_claims_of_others",
)
async def nats_outcome_sent_with_a_later_revision(right: Any, swaps: Any, swapped: Any, now: Any) -> Any:
    """The same for outcomes."""
    for each in swapped:
        if (held := swaps._store.line.pages.get(each.name)) is not None:
            each.rev = held.rev
    return await right(swaps, swapped, now)


# What is refused


@mutant((PageSwaps, "_pages"), by="test_nothing_is_refused_by_what_is_in_memory")
async def nats_refusal_from_the_cache(right: Any, swaps: Any, places: Any, fresh: bool) -> Any:
    """A claim that the watch has not seen is refused."""
    return await right(swaps, places, False)


@mutant((settle, "_is_simple"), by="test_D5_identity_is_the_token_not_the_worker")
def nats_token_not_compared(right: Any, entry: Any, address: Any, to: Any, now: int, most: int) -> bool:
    """An outcome counts, no matter who holds the job by now."""
    return bool(right(entry, address._replace(lease=entry.lease, version=entry.version), to, now, most))


@mutant((settle, "_is_simple"), by="test_a_token_that_differs_in_any_part_is_another[1]")
def nats_version_not_compared(right: Any, entry: Any, address: Any, to: Any, now: int, most: int) -> bool:
    """A token of another version is taken."""
    return bool(right(entry, address._replace(version=entry.version), to, now, most))


@mutant((settle, "_is_simple"), by="test_D7_plain_successes_of_one_claim_are_fenced_each[LeaseExpired-False]")
def nats_expiry_not_compared(right: Any, entry: Any, address: Any, to: Any, now: int, most: int) -> bool:
    """An outcome counts however late it comes."""
    return bool(right(entry, address, to, 0, most))


@mutant((settle, "_is_simple"), by="test_D7_plain_successes_of_one_claim_are_fenced_each[LeaseExpired-False]")
def nats_lease_counts_at_its_very_end(right: Any, entry: Any, address: Any, to: Any, now: int, most: int) -> bool:
    """A lease still holds at the moment of its end."""
    return bool(right(entry, address, to, now - 1, most))


@mutant((PageSwap, "entry"), by="test_D7_items_of_a_batch_are_independent")
def nats_position_without_its_id(right: Any, swapped: Any, place: Any, id: str) -> Any:
    """The outcome of one job is written to another that has its place."""
    entry = swapped.entries[place.position]
    return None if entry is None else replace(entry, id=id)


@mutant((swaps, "place_of"), by="test_a_token_that_differs_in_any_part_is_another[2]")
def nats_position_of_a_token_ignored(right: Any, token: str) -> Any:
    """A token is taken though it names another place."""
    found = right(token)
    return found and (*found[:2], found[2]._replace(position=0))


@mutant((extend, "refusal"), by="test_D6_an_expired_lease_is_not_revived")
def nats_heartbeat_revives_a_lapsed_lease(right: Any, job: Any, id: str, token: str, now: Any) -> Any:
    """An expired lease can be extended."""
    return right(job, id, token, job.lease.claimed_at if job.lease else now)


@mutant((settle, "_may_cancel"), by="test_T3_Q4_a_put_back_after_the_request_ends_the_job[cancel-put_back]")
def nats_settled_cancel_keeps_the_key(right: Any, to: Any, job: Any) -> bool:
    """A running job that is cancelled keeps its key."""
    return False


# The order of writing


@mutant((StepCommit, "commit"), by="test_a_verb_that_was_cut_off_can_be_repeated[enqueue a flow-request]")
async def nats_step_stores_cards_last(right: Any, committer: Any) -> None:
    """A crash leaves jobs without cards, keys and results."""
    first: list[StreamWrite] = []

    async def later() -> dict[str, int]:
        first[:] = committer._first
        return {}

    plain, committer._store_first = committer._store_first, later
    await right(committer)
    committer._first = first
    await plain()


@mutant((NatsEnqueueing, "_store_new"), by="test_a_verb_that_was_cut_off_can_be_repeated[enqueue-request]")
async def nats_enqueue_stores_cards_last(right: Any, enqueueing: Any, groups: Any, now: int) -> bool:
    """The pages of new jobs are stored, and then their cards."""
    store, cards = enqueueing._store, list[StreamWrite]()

    async def later(writes: Sequence[StreamWrite]) -> None:
        cards.extend(writes)

    with mock.patch.multiple(store, store_all=later, store_apart=later):
        stored: bool = await right(enqueueing, groups, now)
    await store.store_all(cards)
    return stored


@mutant((NatsUpkeep, "_tidy"), by="test_a_verb_that_was_cut_off_can_be_repeated[tidy-request]")
async def nats_page_leaves_before_it_is_stored(right: Any, keeper: Any, moved: Any, time: float) -> int:
    """A crash loses ended pages."""
    seen = [(held, held.rev, held.page) for held in moved]
    try:
        await keeper._leave(seen)
    except Outdated:
        return 0
    looked, keeper._revisions = keeper._revisions, lambda _: _nothing()
    await keeper._store_ended(seen, time)
    keeper._revisions = looked
    return len(seen)


async def _nothing() -> dict[str, int]:
    return {}


@mutant((NatsUpkeep, "_tidy"), by="test_a_verb_that_was_cut_off_can_be_repeated[tidy-request]")
async def nats_hint_for_prune_comes_last(right: Any, keeper: Any, moved: Any, time: float) -> int:
    """A crash leaves ended pages that prune never finds."""
    plain, hints = keeper._store.store_all, list[StreamWrite]()

    async def store_all(writes: Sequence[StreamWrite]) -> Any:
        hints.extend(write for write in writes if ".d." in write.subject)
        return await plain([write for write in writes if ".d." not in write.subject])

    with mock.patch.object(keeper._store, "store_all", store_all):
        done: int = await right(keeper, moved, time)
    await plain(hints)
    return done


@mutant((NatsUpkeep, "_store_ended"), by="tidied test_D13_counts_follow_jobs_through_their_lives")
async def nats_page_not_stored_among_the_ended(right: Any, keeper: Any, moved: Any, time: float) -> None:
    """Ended jobs are lost when their page leaves the line."""


@mutant((NatsUpkeep, "_store_ended"), by="tidied test_X8_a_record_is_kept_until_its_time_and_then_forgotten[ack]")
async def nats_no_hint_for_prune(right: Any, keeper: Any, moved: Any, time: float) -> None:
    """Records that have left the line are kept for ever."""
    plain = keeper._store.store_all

    async def store_all(writes: Sequence[StreamWrite]) -> Any:
        return await plain([write for write in writes if ".d." not in write.subject])

    keeper._store.store_all = store_all
    try:
        await right(keeper, moved, time)
    finally:
        del keeper._store.store_all


@mutant((cargo, "token_hex"), by="test_a_late_outcome_does_not_touch_the_result_of_a_later_claim")
def nats_large_results_share_a_name(right: Any, length: int) -> str:
    """The result of an earlier claim replaces that of a later one."""
    return "result"


@mutant((settle.NatsSettling, "_settle_plain"), by="test_a_verb_that_was_cut_off_can_be_repeated[settle-request]")
async def nats_large_results_come_last(right: Any, settling: Any, *rest: Any) -> Any:
    """A crash leaves an outcome whose result is lost."""
    plain, results = settling._store.put, list[StreamWrite]()

    async def put(write: StreamWrite) -> int:
        results.append(write)
        return 0

    with mock.patch.object(settling._store, "put", put):
        answers = await right(settling, *rest)
    for write in results:
        await plain(write)
    return answers


@mutant((cargo.PackedCargo, "writes"), by="test_R1_payload_and_result_are_opaque_bytes[512KiB]")
def nats_large_results_not_stored(right: Any, packed: Any, subjects: Any, id: str) -> list[StreamWrite]:
    """A large result is lost."""
    return []


# Keys, cards and what is barred


@mutant((StepCommit, "_bar_owner"), by="test_an_enqueue_that_is_late_with_its_page_does_not_take_the_key_back")
def nats_owner_of_a_key_not_barred(right: Any, committer: Any, note: Any) -> None:
    """An enqueue that was taken for dead stores its job with a key that another has by now."""


@mutant((StepCommit, "_bar"), by="test_an_enqueue_that_is_late_with_its_page_does_not_store_an_id_twice")
def nats_leftover_card_not_barred(right: Any, committer: Any, seen: Any) -> None:
    """An enqueue that was taken for dead stores its page, which lists a job of another."""


@mutant((Leftovers, "_bar"), by="test_an_enqueue_whose_cards_were_removed_as_leftovers_stores_no_page_without_them")
async def nats_page_of_leftovers_not_barred(right: Any, leftovers: Any, *rest: Any) -> None:
    """The page of an enqueue that was held up comes after its cards were removed."""


@mutant((drafts, "confirmed"), by="test_a_verb_that_was_cut_off_can_be_repeated[enqueue with keys-request]")
def nats_key_needs_no_page(right: Any, seen: PageReader, key: str) -> Any:
    """The key of a job that was never stored is taken for known."""
    note = seen.notes[key][1]
    return right(seen, key) or (note and KeyRecord(key, note.owner, note.digest, None))


@mutant((StepCommit, "_take_back"), by="test_a_flow_that_is_late_with_its_page_does_not_take_the_key_back")
async def nats_refused_commit_leaves_cards(right: Any, committer: Any, revisions: Any) -> None:
    """What was stored for a commit that was refused stays."""


@mutant((StepCommit, "_free"), by="test_I2_the_key_of_a_workflow_can_be_freed")
def nats_keys_not_freed(right: Any, committer: Any, *rest: Any) -> None:
    """A key is never freed."""


@mutant((StepCommit, "_remove"), by="test_T1_the_table_of_moves[delete-dlq]")
def nats_deleted_job_keeps_its_card(right: Any, committer: Any, id: str, seen: Any) -> None:
    """The card of a deleted job stays."""
    right(committer, id, seen)
    committer._after = [write for write in committer._after if ".j." not in write.subject]


@mutant((StepCommit, "_empty"), by="test_X8_a_child_and_its_parent_can_be_deleted_together")
async def nats_empty_pages_stay(right: Any, committer: Any) -> None:
    """Pages that list nothing pile up in the line."""


@mutant((StepCommit, "_empty"), by="test_a_job_that_is_deleted_while_its_page_is_tidied_is_gone[None-stored]")
async def nats_emptied_page_not_barred(right: Any, committer: Any) -> None:
    """A worker that is about to store an emptied page brings its jobs back."""
    plain = committer._store.swap

    async def swap(writes: Sequence[StreamWrite]) -> Any:
        kept = [write for write in writes if ".e." not in write.subject]
        return await plain(kept) if kept or not writes else [0] * len(writes)

    committer._store.swap = swap
    try:
        await right(committer)
    finally:
        del committer._store.swap


# Numbers and totals


@mutant((EndedCounts, "leave"), by="tidied test_K5_counts_follow_a_replay")
def nats_revived_page_not_counted_off(right: Any, counts: Any, bucket: str, page: Any) -> None:
    """A page that comes back into the line is still counted among the ended."""


@mutant((EndedCounts, "arrive"), by="tidied test_D13_counts_follow_jobs_through_their_lives")
def nats_ended_page_not_counted(right: Any, counts: Any, bucket: str, page: Any) -> None:
    """Jobs count nowhere once their page has left the line."""


@mutant((buckets, "numbers"), by="tidied test_D13_counts_show_every_state_of_every_queue")
def nats_dead_are_counted_as_done(right: Any, page: Any) -> Any:
    """The ended are counted in the wrong state."""
    done, dead, cancelled = right(page)
    return done + dead, 0, cancelled


@mutant((NatsUpkeep, "_add_totals"), by="tidied test_D9_a_settle_counts_its_run[ack]")
async def nats_totals_lost_in_tidy(right: Any, keeper: Any, totals: Any) -> list[StreamWrite]:
    """The totals of runs go with the page that leaves the line."""
    return []


@mutant((upkeep, "replace"), by="tidied test_D9_a_settle_counts_its_run[ack]")
def nats_totals_stay_in_the_ended_page(right: Any, page: Any, **changes: Any) -> Any:
    """The totals of runs count again when the page comes back."""
    return right(page, revived=False)


@mutant((PageSwap, "after"), by="test_an_outcome_in_a_page_that_is_out_of_date_leaves_the_claims_of_others[small]")
def nats_totals_count_each_try(right: Any, swapped: Any, now: Any) -> Any:
    """A run whose outcome met a conflict is counted for each try."""
    tried = vars(nats_totals_count_each_try).setdefault("tried", {})
    tried.setdefault(swapped.name, []).extend(swapped.settled)
    swapped.settled = list(tried[swapped.name])
    return right(swapped, now)


@mutant((StepCommit, "_add_sums"), by="test_D9_a_success_counts_once_whatever_it_brings[with new jobs]")
def nats_outcome_of_a_step_not_in_the_totals(right: Any, committer: Any) -> None:
    """Jobs that a step settles count nowhere."""


@mutant((NatsReading, "tallies"), by="test_D13_totals_are_bounded_in_time")
async def nats_floor_of_totals_ignored(right: Any, reading: Any, since: Any) -> Any:
    """Totals that were forgotten are still told, as long as their page is in the line."""
    records, floor = reading._watch.records, reading._subjects.floor
    await reading._watch.barrier()
    known = records.pop(floor, None)
    try:
        return await right(reading, since)
    finally:
        if known is not None:
            reading._watch.records[floor] = known


# Edges


@mutant((StepCommit, "_satisfy"), by="test_K2_replaying_a_collected_parent_leaves_the_child_alone")
def nats_satisfied_edge_not_written(right: Any, committer: Any, *edge: Any) -> None:
    """An edge is satisfied again when its parent is replayed."""


@mutant((reader, "is_met"), by="test_K2_replaying_a_collected_parent_leaves_the_child_alone")
def nats_satisfied_edge_not_read(right: Any, met: bytes, position: int) -> bool:
    """The same, because it is not read."""
    return False


@mutant((reader, "with_met"), (commit, "with_met"), by="test_satisfied_edges_are_bits")
def nats_satisfied_edges_share_a_bit(right: Any, met: bytes, position: int, satisfied: bool) -> bytes:
    """The ninth edge is taken for the first."""
    found: bytes = right(met, position & 7, satisfied)
    return found


@mutant((StepCommit, "_add_below"), by="test_a_new_job_of_an_outcome_may_wait_for_a_known_one")
def nats_edges_not_written_to_parents(right: Any, committer: Any) -> None:
    """A job that exists does not know that a new one waits for it."""


@mutant((PageReader, "_chunks"), by="tidied test_K2_a_group_of_one_and_an_edge_to_each")
async def nats_chunks_of_edges_not_read(right: Any, seen: Any, cards: Any) -> dict[str, Any]:
    """Of more than a thousand parents only some are known."""
    return {}


@mutant((settle.NatsSettling, "_judge_one"), by="test_K1_a_chain_runs_one_after_the_other")
async def nats_parent_settled_alone(right: Any, settling: Any, swapped: Any, entry: Any, *rest: Any) -> Any:
    """The end of a parent is written without its dependants."""
    rare = entry.rare or pages.NO_RARE
    return await right(settling, swapped, replace(entry, rare=replace(rare, edges=0)), *rest)


# The line in memory


@mutant((line._PickInLine, "_until"), by="test_a_pick_takes_the_best_jobs_of_all_pages")
def nats_order_by_page(right: Any, picking: Any, orders: Any, start: int) -> int:
    """A page is claimed as a whole, however urgent the jobs of the next one are."""
    return int(min(len(orders), start + picking._left))


@mutant((line, "order_of"), by="test_N1_a_lapsed_job_that_expired_ends_cancelled")
def nats_job_that_must_stop_is_claimed(right: Any, entry: Any, now: int) -> Any:
    """A job that was asked to stop, or is too old, runs again."""
    return right(replace(entry, rare=None), now)


@mutant((line, "order_of"), by="test_D11_a_first_reclaim_goes_to_the_front[0]")
def nats_reclaimed_job_has_no_priority(right: Any, entry: Any, now: int) -> Any:
    """A job whose worker has died waits behind those that are due."""
    found = right(entry, now)
    return found and (found[0], max(found[1], entry.until))


@mutant((reserve, "claimed"), by="test_D5_T2_a_reclaim_in_line_changes_what_one_by_id_does")
def nats_crash_not_counted(right: Any, picked: Any, *rest: Any) -> Any:
    """The crash of a worker is not counted."""
    page = right(picked, *rest)
    kept = [
        new and old and replace(new, crashes=old.crashes)
        for old, new in zip(picked.page.entries, page.entries, strict=True)
    ]
    return replace(page, entries=kept)


@mutant((line._PickInLine, "_leaves"), by="test_shares_leave_nothing_for_ever")
def nats_share_starves(right: Any, picking: Any, held: Any, orders: Any) -> bool:
    """Pages of the share of a worker that is gone are never claimed."""
    held.passed = picking._time
    return bool(right(picking, held, orders))


@mutant((line.ClaimShare, "has"), by="test_workers_with_shares_take_different_pages")
def nats_everything_is_in_every_share(right: Any, share: Any, name: str) -> bool:
    """Workers that got in each other's way go on doing so."""
    return True


@mutant((LineInMemory, "remove"), by="test_an_older_version_of_a_removed_page_does_not_bring_it_back")
def nats_removal_not_remembered(right: Any, line: Any, name: str, rev: int) -> None:
    """An old version of a removed page brings it back."""
    right(line, name, rev)
    line._gone.pop(name, None)


@mutant((LineInMemory, "take"), by="test_a_page_that_another_has_removed_is_gone")
def nats_removal_by_others_not_seen(right: Any, line: Any, flow: str, name: str, rev: int, body: bytes) -> Any:
    """Pages that others have removed stay in memory for ever."""
    return right(line, flow, name, rev, body) if body else None


@mutant((LineInMemory, "put"), by="test_an_older_version_does_not_replace_a_later_one")
def nats_older_version_replaces_a_later_one(right: Any, line: Any, flow: str, name: str, rev: int, page: Any) -> Any:
    """What this process has written replaces what others have written since."""
    if (held := line.pages.get(name)) is not None:
        held.rev = min(held.rev, rev - 1)
    return right(line, flow, name, rev, page)


@mutant((LineInMemory, "conflict"), by="test_pages_that_are_busy_or_stale_are_left_out")
def nats_page_out_of_date_is_tried_again(right: Any, line: Any, held: Any, rev: int) -> None:
    """A page of which the server has a later version is claimed from again and again."""


@mutant((line, "_times"), by="test_a_page_with_a_job_that_has_not_ended_is_not_among_the_ended[0]")
def nats_pages_with_open_jobs_are_tidied(right: Any, page: Any) -> Any:
    """A page leaves the line with jobs that have not ended."""
    first, sweep, prune, _ = right(page)
    return first, sweep, prune, False


# The watch


@mutant((LineWatch, "barrier"), by="test_counts_have_what_was_stored_before_though_the_watch_is_behind")
async def nats_watch_lag_ignored(right: Any, watch: Any) -> None:
    """What is in memory is taken for what is stored."""
    await watch.ready()


@mutant((LineWatch, "_configuration"), by="test_what_was_stored_while_the_connection_was_lost_is_seen")
def nats_watch_goes_on_too_late(right: Any, watch: Any, name: str, inbox: str, resume: bool, seen: int) -> Any:
    """After a lost connection the watch lacks the first change."""
    return right(watch, name, inbox, resume, seen + 1)


@mutant((LineWatch, "_take"), by="test_a_message_that_is_lost_is_noticed_at_the_next_one")
def nats_gap_in_the_messages_ignored(right: Any, watch: Any, message: Any) -> None:
    """A page that was lost on its way is never seen."""
    parts = message.reply.split(b".")
    if len(parts) == 9:
        watch._count = int(parts[6]) - 1
    right(watch, message)


@mutant((LineWatch, "_take"), by="test_a_last_message_that_is_lost_is_noticed_by_the_heartbeat")
def nats_gap_before_a_heartbeat_ignored(right: Any, watch: Any, message: Any) -> None:
    """The last change that was lost on its way is not noticed."""
    right(watch, message._replace(headers=message.headers.replace(b"Nats-Last-Consumer", b"Nats-Last-Nothing")))


@mutant((LineWatch, "_take"), by="test_what_was_stored_together_is_seen_together")
def nats_half_a_batch_is_seen(right: Any, watch: Any, message: Any) -> None:
    """Jobs are counted nowhere, or twice, while their page leaves the line."""
    right(watch, message._replace(headers=message.headers.replace(b"Nats-Batch", b"Nats-Nothing")))


@mutant((LineInMemory, "clear"), by="test_what_was_removed_while_the_watch_was_away_for_long_is_gone")
def nats_memory_not_cleared(right: Any, line: Any) -> None:
    """Jobs that were removed while the watch was away stay in memory."""
    line.seen = 0


@mutant((LineWatch, "_remove"), by="test_D13_counts_of_an_empty_store_are_empty")
async def nats_consumer_left_behind(right: Any, watch: Any) -> None:
    """A consumer stays at the server after the driver was closed."""


@mutant((LineWatch, "took"), by="test_a_waiter_is_woken_by_what_another_has_stored")
def nats_new_job_wakes_nobody(right: Any, watch: Any, held: Any) -> None:
    """A new job waits until a worker looks by itself."""


@mutant((LineWatch, "learn"), by="test_D3_never_from_a_paused_queue")
def nats_pause_not_seen(right: Any, watch: Any, subject: str, value: Any) -> None:
    """Jobs of a paused queue are claimed."""
    if ".l.p." not in subject:
        right(watch, subject, value)


@mutant((NatsDriver, "_paused"), by="test_D3_never_from_a_paused_queue")
async def nats_claim_by_id_from_a_paused_queue(right: Any, driver: Any, queues: Any) -> set[str]:
    """Jobs of a paused queue are claimed by their ids."""
    return set()


# Reading and forgetting


@mutant((PageReader, "load_pages"), by="tidied test_Q2_a_first_claim_after_a_replay_shows_its_lineage")
async def nats_ended_pages_not_read(right: Any, seen: Any, places: Any) -> None:
    """A job that has ended is gone with its page."""
    plain = seen.store.read

    async def read(subjects: Any) -> Any:
        wanted = list(subjects)
        return await plain([] if any(".e." in subject for subject in wanted) else wanted)

    seen.store.read = read
    try:
        await right(seen, places)
    finally:
        del seen.store.read


@mutant((PageReader, "_see"), by="tidied test_K5_counts_follow_a_replay")
def nats_absence_compared_with_nothing(right: Any, seen: Any, flow: str, name: str, rev: int, page: Any) -> Any:
    """What comes back into the line is expected never to have been there."""
    return right(seen, flow, name, rev if page is not None else 0, page)


@mutant((StepCommit, "_prolong"), by="test_X8_members_of_a_workflow_are_kept_as_long_as_its_last")
async def nats_members_not_kept(right: Any, committer: Any) -> None:
    """The first records of a workflow go before its last."""


@mutant((NatsUpkeep, "_prune_slot"), by="tidied test_X8_a_record_is_kept_until_its_time_and_then_forgotten[ack]")
async def nats_ended_pages_not_pruned(right: Any, keeper: Any, *rest: Any) -> int:
    """Records that have left the line are kept for ever."""
    return 0


@mutant((NatsUpkeep, "_prune_slot"), by="tidied test_X8_a_record_is_kept_until_its_time_and_then_forgotten[ack]")
async def nats_hints_go_before_their_time(
    right: Any, keeper: Any, slot: int, revision: int, now: Any, limit: int
) -> int:
    """Prune forgets a page whose next record has to go within the same minutes."""
    found = await keeper._store.matching(keeper._subjects.hints(slot))
    done: int = await right(keeper, slot, revision, now, limit)
    await keeper._store.store_all([StreamWrite(name, b"") for name in found])
    return done


@mutant((PageSteps, "_look_up_owned"), by="test_I2_the_key_of_a_workflow_can_be_freed")
async def nats_keys_of_workflows_not_found(right: Any, runner: Any, *rest: Any) -> None:
    """The key of a workflow is never freed."""


@mutant((pages, "seq_of"), (line, "seq_of"), by="test_a_pick_takes_the_best_jobs_of_all_pages")
def nats_order_of_storing_ignored(right: Any, page: Any, entry: Any) -> int:
    """Jobs of the same time are claimed in any order."""
    return -int(entry.number)
