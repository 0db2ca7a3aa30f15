"""Broken statements of PostgreSQL: queries, schedules and counters."""

from __future__ import annotations

from .statements import REGISTRY, SQL, broken

mutant = REGISTRY.mutant


@mutant((SQL, "counts"), by="test_T2_lapsed_jobs_are_counted_as_due[False]")
def pg_lapsed_not_counted(sql: str) -> str:
    """Jobs of a dead worker are counted as running."""
    return broken(sql, "lease_expires_at <= $1", "false")


@mutant((SQL, "counts"), by="test_D13_counts_show_every_state_of_every_queue")
def pg_ended_not_counted(sql: str) -> str:
    """Jobs that have ended are not counted."""
    return broken(sql, "FROM harbor.ended GROUP", "FROM harbor.ended WHERE false GROUP")


@mutant((SQL, "query"), by="test_D13_query_can_be_read_in_pages")
def pg_page_repeats_its_last_live_job(sql: str) -> str:
    """A page begins with the last job of the one before."""
    return broken(sql, "live.seq < $2", "live.seq <= $2")


@mutant((SQL, "query_dead"), by="test_D13_pages_of_the_dead_and_of_a_workflow[dead]")
def pg_page_of_the_dead_repeats_its_last(sql: str) -> str:
    """A page of dead jobs begins with the last one of the page before."""
    return broken(sql, "ended.seq < $2", "ended.seq <= $2")


@mutant((SQL, "query_workflow"), by="test_D13_pages_of_the_dead_and_of_a_workflow[workflow]")
def pg_page_of_a_workflow_repeats_its_last(sql: str) -> str:
    """A page of a workflow begins with the last job of the page before."""
    return broken(sql, "seq < $2", "seq <= $2")


@mutant((SQL, "query"), by="test_T2_a_lapsed_lease_shows_as_lapsed")
def pg_lapsed_not_shown(sql: str) -> str:
    """Jobs of a dead worker are listed as running."""
    return broken(sql, "lease_expires_at <= $12", "false")


@mutant((SQL, "query_held"), by="test_D13_query_chooses_what_the_filter_says[held by a worker]")
def pg_nothing_held(sql: str) -> str:
    """A supervisor finds no lease of its dead workers."""
    return broken(sql, "harbor.live WHERE state = 'inflight'", "harbor.live WHERE state = 'ready'")


@mutant((SQL, "workflows"), by="test_K5_workflows_can_be_read_in_pages")
def pg_workflows_page_repeats_its_last(sql: str) -> str:
    """A page of workflows begins with the last one of the page before."""
    return broken(sql, "workflow_id < walked.id", "workflow_id <= walked.id")


@mutant((SQL, "workflows"), by="test_K5_workflows_come_with_the_greatest_id_first")
def pg_workflows_in_the_order_of_ids(sql: str) -> str:
    """The latest workflow comes last."""
    return broken(sql, "ORDER BY chosen.id DESC", "ORDER BY chosen.id")


@mutant((SQL, "parents"), by="test_K3_parents_come_in_the_order_given_with_their_results")
def pg_parents_by_id(sql: str) -> str:
    """The results of a chord come in the order of ids."""
    return broken(sql, "ORDER BY given.id, edge.position", "ORDER BY given.id, job.id")


@mutant((SQL, "parents"), by="test_K3_results_are_given_up_to_so_many_bytes_in_all[7]")
def pg_results_without_a_limit(sql: str) -> str:
    """Results are returned whatever their size."""
    return broken(sql, "<= $2 THEN", "<= $2 + 1000000000 THEN")


@mutant((SQL, "dead_groups"), by="test_Q1_the_last_death_is_by_its_time_not_by_its_age")
def pg_last_death_is_the_youngest(sql: str) -> str:
    """A group shows the job enqueued last, not the last one that died."""
    return broken(sql, "ORDER BY completed_at DESC, id DESC", "ORDER BY seq DESC")


@mutant((SQL, "schedule_hold"), by="test_creating_a_schedule_that_is_being_created_waits_and_sees_it[committed]")
def pg_schedules_not_held(sql: str) -> str:
    """Two swaps of one schedule both count."""
    return broken(
        sql,
        "pg_advisory_xact_lock(hashtextextended('harbor.schedule', place))",
        "hashtextextended('harbor.schedule', place)",
    )


@mutant((SQL, "schedule_put"), by="test_N3_a_swap_creates_changes_and_removes")
def pg_swap_keeps_what_there_is(sql: str) -> str:
    """A schedule stays as it was created."""
    return broken(
        sql,
        "SET definition = excluded.definition, slot = excluded.slot",
        "SET definition = schedule.definition, slot = schedule.slot",
    )


@mutant((SQL, "tally_add"), by="test_D9_outcomes_of_every_kind_in_one_batch_add_up")
def pg_totals_overwritten(sql: str) -> str:
    """A counter holds its last increment only."""
    return broken(sql, "tally.count + excluded.count", "excluded.count")


@mutant((SQL, "tally_forget"), by="test_D13_totals_are_bounded_in_time")
def pg_old_totals_kept(sql: str) -> str:
    """Counters are never forgotten."""
    return broken(sql, "minute < $1", "minute < $1::timestamptz - interval '100 years'")


@mutant((SQL, "workers"), by="test_D13_workers_not_seen_since_are_left_out")
def pg_gone_workers_listed(sql: str) -> str:
    """Workers that were not seen for long are listed."""
    return broken(sql, "seen_at >= $1", "$1::timestamptz IS NOT NULL")
