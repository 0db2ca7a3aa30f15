"""Broken Redis drivers: scripts with another text in one place, and wrong parts of the steps."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.redis import drafts, enqueue, prune, reader, reading, reserve, settle

from .mutant import MutantRegistry, instead

REDIS = MutantRegistry("redis")
mutant = REDIS.mutant


# Outcomes


@mutant((settle, "SETTLE"), by="test_D5_identity_is_the_token_not_the_worker")
def lua_settle_without_token(text: str) -> str:
    """An outcome counts, no matter which worker holds the job by now."""
    return instead(text, " and holder == token")


@mutant((settle, "SETTLE"), by="test_D7_at_the_expiry_a_settle_is_refused[ack]")
def lua_settle_without_expiry(text: str) -> str:
    """An outcome counts however late it comes."""
    return instead(text, "tonumber(lease) > now and ")


@mutant((settle, "SETTLE"), by="test_D7_at_the_expiry_a_settle_is_refused[fail]")
def lua_settle_at_the_very_expiry(text: str) -> str:
    """A lease still counts at the moment of its end."""
    return instead(text, "tonumber(lease) > now", "tonumber(lease) >= now")


@mutant((settle, "SETTLE"), by="test_T3_Q4_a_put_back_after_the_request_ends_the_job[cancel-put_back]")
def lua_settle_ignores_stop_requests(text: str) -> str:
    """A job that was asked to stop is put back and runs again."""
    return instead(text, "(%S+) 0 0 %S+", "(%S+) %d 0 %S+")


@mutant((settle, "SETTLE"), by="test_K1_a_chain_runs_one_after_the_other")
def lua_settle_leaves_dependants_alone(text: str) -> str:
    """The end of a parent is written without its dependants."""
    return instead(text, "(%S+) 0 0 %S+", "(%S+) 0 %d %S+")


@mutant((settle, "SETTLE"), by="test_D7_a_settle_by_an_earlier_clock_ends_a_lapsed_job")
def lua_settle_leaves_a_lapsed_job_in_line(text: str) -> str:
    """A job that lapsed by a clock that has gone back ends, and stays in line."""
    return instead(text, "(%S+) 0 (%S+ (%d+)", "(%S+) %d (%S+ (%d+)")


@mutant((settle, "SETTLE"), by="test_D7_at_the_expiry_a_settle_is_refused[ack]")
def lua_refused_settle_is_ok(text: str) -> str:
    """A refused outcome is taken for written."""
    return instead(text, "misfits[#misfits + 1] = place")


@mutant((settle, "SETTLE"), by="test_D9_a_settle_counts_its_run[ack]")
def lua_outcome_not_in_the_totals(text: str) -> str:
    """An outcome is written, and counts nowhere."""
    return instead(text, "for n = 1, tonumber(ARGV[3]) do", "for n = 1, 0 do")


@mutant((settle, "SETTLE"), by="test_D9_a_batch_adds_up")
def lua_batch_counts_as_one(text: str) -> str:
    """All successes of a batch count as one."""
    return instead(text, "'count ' .. name, runs", "'count ' .. name, 1")


@mutant((settle, "SETTLE"), by="test_D9_a_settle_counts_its_run[fail]")
def lua_run_time_not_counted(text: str) -> str:
    """The seconds that jobs ran are not counted."""
    return instead(text, "'ran ' .. name, ran", "'ran ' .. name, 0")


@mutant((settle, "SETTLE"), by="test_D9_a_settle_counts_its_run[fail]")
def lua_wait_not_counted(text: str) -> str:
    """The seconds that jobs waited are not counted."""
    return instead(text, "'waited ' .. name, waited", "'waited ' .. name, 0")


@mutant((settle, "SETTLE"), by="test_D9_a_settle_counts_its_run[ack]")
def lua_minute_of_a_total_not_listed(text: str) -> str:
    """A total is written where no reader finds it."""
    return instead(text, "redis.call('ZADD', P .. 'minutes', ARGV[2], ARGV[2])")


@mutant((settle, "SETTLE"), by="test_X8_a_record_is_kept_until_its_time_and_then_forgotten[ack]")
def lua_end_not_in_the_index(text: str) -> str:
    """The record of a job that has ended is kept for ever."""
    return instead(text, "many('ZADD', P .. 'ended', ended, 2)")


@mutant((settle, "SETTLE"), by="test_Q1_dead_groups_show_the_last_death")
def lua_death_not_in_the_index(text: str) -> str:
    """A dead job is not listed among the dead."""
    return instead(text, "many('ZADD', P .. 'dead', dead, 2)")


@mutant((settle, "SETTLE"), by="test_D9_a_put_back_returns_at_its_time_with_its_counts[1]")
def lua_put_back_not_in_line(text: str) -> str:
    """A job that is put back never runs again."""
    return instead(text, "for name, there in pairs(back) do many('ZADD', name, there, 2) end")


@mutant((settle, "SETTLE"), by="test_D2_every_claim_has_a_token_of_its_own")
def lua_put_back_without_rank(text: str) -> str:
    """A job is put back in a line that no claim looks at."""
    return instead(text, "redis.call('ZADD', P .. 'ranks:' .. queue, priority, priority)")


@mutant((settle, "SETTLE"), by="test_D3_a_retry_is_not_handed_out_before_its_time")
def lua_put_back_at_its_old_time(text: str) -> str:
    """A retry does not wait for its time."""
    return instead(text, "table.insert(back[name], time)", "table.insert(back[name], 0)")


@mutant((settle, "SETTLE"), by="test_D9_a_put_back_returns_at_its_time_with_its_counts[1]")
def lua_put_back_keeps_its_old_due(text: str) -> str:
    """The record of a retry does not show its time."""
    return instead(text, "'-', '-', time, time", "'-', '-', h[DUE], h[RUN_AT]")


@mutant((settle, "SETTLE"), by="test_D11_a_retry_at_the_same_time_keeps_its_enqueue_order")
def lua_put_back_keeps_its_lease(text: str) -> str:
    """A job that is put back waits for the end of its old lease."""
    return instead(text, "'ready', crashes, '-', '-'", "'ready', crashes, h[LEASE], h[TOKEN]")


@mutant((settle, "SETTLE"), by="test_D9_the_settle_writes_exactly_the_fields_it_carries[ack]")
def lua_crashes_not_copied(text: str) -> str:
    """An outcome leaves the number of crashes as it was."""
    return instead(text, "' ' .. crashes .. ' - - 0 '", "' 0 - - 0 '")


@mutant((settle, "SETTLE"), by="test_D9_the_settle_writes_exactly_the_fields_it_carries[ack]")
def lua_end_not_written(text: str) -> str:
    """A job ends without its outcome."""
    return instead(text, "many('HSET', P .. 'end', ends, 2)")


@mutant((settle, "SETTLE"), by="test_N1_a_running_job_may_finish_after_its_expiry")
def lua_ended_job_still_expires(text: str) -> str:
    """A sweep looks at jobs that have ended."""
    return instead(text, "many('ZREM', P .. 'expiring', expiring, 1)")


@mutant((settle, "SETTLE"), by="test_D13_counts_follow_jobs_through_their_lives")
def lua_settle_not_counted_off(text: str) -> str:
    """A job that has ended is still counted as claimed."""
    return instead(text, "count('inflight', queue, -1)")


@mutant((settle, "SETTLE"), by="test_D13_counts_follow_jobs_through_their_lives")
def lua_end_not_counted(text: str) -> str:
    """A job that has ended is counted nowhere."""
    return instead(text, "count(state, queue, 1)")


@mutant((settle, "SETTLE"), by="test_T2_a_job_claimed_again_has_not_started")
def lua_progress_of_a_put_back_stays(text: str) -> str:
    """A job that was put back shows the progress of the run before."""
    return instead(text, "many('HDEL', P .. 'progress', gone, 1)")


# Heartbeats


@mutant((reserve, "EXTEND"), by="test_D8_why_an_extension_is_refused[held, token of an earlier claim]")
def lua_extend_without_token(text: str) -> str:
    """Any worker can extend any lease."""
    return instead(text, " and h[TOKEN] == token")


@mutant((reserve, "EXTEND"), by="test_D6_an_expired_lease_is_not_revived")
def lua_extend_without_expiry(text: str) -> str:
    """An expired lease can be extended."""
    return instead(text, " and tonumber(h[LEASE]) > now")


@mutant((reserve, "EXTEND"), by="test_D6_a_lease_never_shrinks")
def lua_extend_shrinks(text: str) -> str:
    """A short extension cuts a long lease."""
    return instead(text, "if tonumber(h[LEASE]) < tonumber(ARGV[2]) then h[LEASE] = ARGV[2] end", "h[LEASE] = ARGV[2]")


@mutant((reserve, "EXTEND"), by="test_D6_an_extension_is_stored_and_keeps_the_token")
def lua_extend_not_stored(text: str) -> str:
    """An extension is promised, and not written."""
    return instead(text, "redis.call('HSET', P .. 'job', id, put(h))")


@mutant((reserve, "EXTEND"), by="test_D6_a_lease_can_be_extended_to_the_last_microsecond")
def lua_extend_not_in_the_index(text: str) -> str:
    """A lease lapses at its old end."""
    return instead(text, "redis.call('ZADD', P .. 'leases', h[LEASE], id)")


@mutant((reserve, "EXTEND"), by="test_D6_start_and_progress_are_stored[quarter]")
def lua_progress_not_stored(text: str) -> str:
    """Progress is lost."""
    return instead(text, "if progress ~= '' then", "if false then")


@mutant((reserve, "EXTEND"), by="test_D6_start_and_progress_are_stored[quarter]")
def lua_start_not_stored(text: str) -> str:
    """The start of a run is lost."""
    return instead(text, "if started ~= '' then", "if false then")


@mutant((reserve, "EXTEND"), by="test_D6_a_report_without_news_forgets_nothing")
def lua_report_without_progress_forgets_it(text: str) -> str:
    """A report without progress forgets that of the one before."""
    return instead(
        text, "if progress ~= '' then", "if progress == '' then redis.call('HDEL', P .. 'progress', id) else"
    )


@mutant((reserve, "EXTEND"), by="test_D6_the_answer_shows_a_cancel_request")
def lua_extend_hides_stop_requests(text: str) -> str:
    """A worker does not learn that its job was cancelled."""
    return instead(text, "answer = { h[LEASE], h[STOP] }", "answer = { h[LEASE], '0' }")


# Claims


@mutant((reserve, "RESERVE"), by="test_D3_never_from_a_paused_queue")
def lua_reserve_ignores_pauses(text: str) -> str:
    """A paused queue is handed out."""
    return instead(text, "if differs then return { paused } end")


@mutant((reserve, "RESERVE"), by="test_D3_never_an_expired_job")
def lua_reserve_ignores_expires_at(text: str) -> str:
    """An expired job is handed out."""
    return instead(text, "if expires ~= '-' and tonumber(expires) <= now then return false end")


@mutant((reserve, "RESERVE"), by="test_D3_an_unexpired_job_is_handed_out_to_the_last_microsecond")
def lua_job_expires_too_early(text: str) -> str:
    """A job is not handed out a microsecond before it expires."""
    return instead(text, "tonumber(expires) <= now", "tonumber(expires) <= now + 1")


@mutant((reserve, "RESERVE"), by="test_T3_Q4_left_behind_after_the_request_the_job_ends[cancel]")
def lua_reserve_ignores_stop_requests(text: str) -> str:
    """A lapsed job that was cancelled runs again."""
    return instead(text, "not free or h[STOP] ~= '0' or", "not free or")


@mutant((reserve, "RESERVE"), by="test_D3_never_a_job_that_is_not_due")
def lua_reserve_ignores_due_at(text: str) -> str:
    """A future job is handed out at once."""
    return instead(text, "name, '-inf', ARGV[1]", "name, '-inf', '+inf'")


@mutant((reserve, "RESERVE"), by="test_R3_a_microsecond_decides_whether_a_job_is_due")
def lua_due_one_microsecond_late(text: str) -> str:
    """A job is not handed out at the very moment it is due."""
    return instead(text, "name, '-inf', ARGV[1]", "name, '-inf', '(' .. ARGV[1]")


@mutant((reserve, "RESERVE"), by="test_D11_a_future_or_expired_job_of_high_priority_blocks_no_other[expired]")
def lua_expired_job_blocks_the_others(text: str) -> str:
    """A job that a claim passes over ends it."""
    return instead(text, "if #found == 0 then break end", "if #found == 0 or passed > 0 then return most end")


@mutant((reserve, "RESERVE"), by="test_D2_never_more_than_the_limit[3]")
def lua_reserve_ignores_the_limit(text: str) -> str:
    """A claim takes more than was asked for."""
    return instead(text, "limit - #ids", "limit + 1")


@mutant((reserve, "RESERVE"), by="test_D11_several_queues_share_the_limit")
def lua_reserve_without_shares(text: str) -> str:
    """The first queue takes the shares of all."""
    return instead(text, "do take_of(ARGV[n], tonumber(ARGV[n + 1])) end", "do end")


@mutant((reserve, "RESERVE"), by="test_D11_unused_shares_go_to_the_other_queues")
def lua_unused_shares_are_lost(text: str) -> str:
    """A claim takes no more than its share of each queue."""
    return instead(text, "do take_of(ARGV[n], limit - #ids) end", "do end")


@mutant((reserve, "RESERVE"), by="test_D11_higher_priority_first[1]")
def lua_lowest_priority_first(text: str) -> str:
    """The least urgent job comes first."""
    return instead(text, "'ZREVRANGE'", "'ZRANGE'")


@mutant((reserve, "RESERVE"), by="test_D11_higher_priority_first[1]")
def lua_rank_forgotten_while_jobs_are_in_line(text: str) -> str:
    """The first claim of a line hides what is left of it."""
    return instead(text, "if redis.call('EXISTS', name) == 0 then", "if true then")


@mutant((enqueue, "ENQUEUE"), by="test_D11_a_long_random_line_is_handed_out_in_order")
def lua_numbers_in_line_without_padding(text: str) -> str:
    """The tenth of equal jobs comes before the second."""
    return instead(text, "padded .. id", "number .. string.rep('0', 16 - #number) .. id")


@mutant((reserve, "RESERVE"), by="test_D5_reserve_itself_reclaims_at_the_expiry")
def lua_lapsed_leases_stay_out_of_line(text: str) -> str:
    """The job of a worker that died never runs again."""
    return instead(text, "P .. 'leases', '-inf', ARGV[1]", "P .. 'leases', '-inf', '-inf'")


@mutant((reserve, "RESERVE"), by="test_D5_reserve_itself_reclaims_at_the_expiry")
def lua_lapsed_one_microsecond_late(text: str) -> str:
    """A lease still holds at the moment of its end."""
    return instead(text, "P .. 'leases', '-inf', ARGV[1]", "P .. 'leases', '-inf', '(' .. ARGV[1]")


@mutant((reserve, "RESERVE"), by="test_D5_many_leases_lapsing_at_once_are_all_reclaimed")
def lua_one_lapsed_lease_at_a_time(text: str) -> str:
    """Of many leases that lapse, a claim sees one."""
    return instead(text, "ARGV[1], 'LIMIT', 0, 1000", "ARGV[1], 'LIMIT', 0, 1")


@mutant((reserve, "RESERVE"), by="test_D11_a_first_reclaim_goes_to_the_front[0]")
def lua_first_reclaim_waits(text: str) -> str:
    """A job whose worker died is behind those that were due before its lease ended."""
    return instead(text, "h[CRASHES] == '0' and '-inf' or h[LEASE]", "h[LEASE]")


@mutant((reserve, "RESERVE"), by="test_D11_a_second_reclaim_queues_by_its_last_expiry")
def lua_every_reclaim_goes_to_the_front(text: str) -> str:
    """A job that kills its workers is always the first."""
    return instead(text, "h[CRASHES] == '0' and '-inf' or h[LEASE]", "'-inf'")


@mutant((reserve, "RESERVE"), by="test_D5_an_extended_lease_is_reclaimed_at_its_new_end_only")
def lua_reclaim_without_rank(text: str) -> str:
    """A lapsed job is put in a line that no claim looks at."""
    return instead(text, "redis.call('ZADD', P .. 'ranks:' .. h[QUEUE], h[PRIORITY], h[PRIORITY])")


@mutant((reserve, "RESERVE"), by="test_D5_T2_a_reclaim_in_line_changes_what_one_by_id_does")
def lua_crash_not_counted(text: str) -> str:
    """A job that kills its workers does so for ever."""
    return instead(text, "h[CRASHES] = h[CRASHES] + 1")


@mutant((reserve, "RESERVE"), by="test_D5_T2_a_reclaim_in_line_changes_what_one_by_id_does")
def lua_reclaim_keeps_run_at(text: str) -> str:
    """A job that is claimed again still shows the time of its retry."""
    return instead(text, "h[RUN_AT] = '-'")


@mutant((reserve, "RESERVE"), by="test_D5_T2_a_reclaim_in_line_changes_what_one_by_id_does")
def lua_version_not_incremented(text: str) -> str:
    """A claim has the version of the one before."""
    return instead(text, "h[VERSION] = h[VERSION] + 1", "h[VERSION] = 1")


@mutant((reserve, "RESERVE"), by="test_D5_T2_a_reclaim_in_line_changes_what_one_by_id_does")
def lua_token_reused_on_reclaim(text: str) -> str:
    """A job that is claimed again has the token of the dead worker."""
    return instead(text, "0, expiry, token", "0, expiry, reclaim and h[TOKEN] or token")


@mutant((reserve, "RESERVE"), by="test_D5_T2_a_reclaim_in_line_changes_what_one_by_id_does")
def lua_claim_keeps_the_old_start(text: str) -> str:
    """A job that is claimed again seems to run."""
    return instead(text, "many('HDEL', P .. 'started', again, 1)")


@mutant((reserve, "RESERVE"), by="test_D5_T2_a_reclaim_in_line_changes_what_one_by_id_does")
def lua_claim_keeps_the_old_progress(text: str) -> str:
    """A job that is claimed again shows the progress of the run before."""
    return instead(text, "many('HDEL', P .. 'progress', again, 1)")


@mutant((reserve, "RESERVE"), by="test_D5_a_reclaim_is_stored")
def lua_reclaim_names_the_old_worker(text: str) -> str:
    """A job that is claimed again shows the worker that died."""
    return instead(text, "many('HSET', P .. 'claim', claims, 2)", "many('HSETNX', P .. 'claim', claims, 2)")


@mutant((reserve, "RESERVE"), by="test_D5_a_reclaim_is_stored")
def lua_claim_not_in_the_index(text: str) -> str:
    """A lease never lapses."""
    return instead(text, "many('ZADD', P .. 'leases', leases, 2)")


@mutant((reserve, "RESERVE"), by="test_D2_never_more_than_the_limit[3]")
def lua_claimed_job_stays_in_line(text: str) -> str:
    """A claim hands out one job several times."""
    return instead(text, "redis.call('ZREMRANGEBYRANK', name, 0, #members - 1)")


@mutant((reserve, "RESERVE"), by="test_D2_never_more_than_the_limit[3]")
def lua_claim_not_counted(text: str) -> str:
    """A claimed job is counted as ready."""
    return instead(text, "count('ready', queue, -fresh)")


@mutant((reserve, "RESERVE"), by="test_D3_never_an_expired_job")
def lua_claimed_job_behind_an_expired_one_stays_in_line(text: str) -> str:
    """A claim that passed over a job leaves what it took in line."""
    return instead(text, "redis.call('ZREM', name, unpack(members))")


@mutant((reserve, "RESERVE"), by="test_D11_higher_priority_first[1]")
def lua_claim_removes_one_job_too_many(text: str) -> str:
    """A claim takes another job out of line, which then never runs."""
    return instead(text, "name, 0, #members - 1)", "name, 0, #members)")


@mutant((reserve, "RESERVE"), by="test_N1_a_lapsed_job_that_expired_ends_cancelled")
def lua_lapsed_job_runs_after_its_expiry(text: str) -> str:
    """A job whose worker died runs again after its time."""
    return instead(text, " or h[EXPIRES] ~= '-' and tonumber(h[EXPIRES]) <= now")


@mutant((reserve, "RESERVE"), by="test_Q2_a_first_claim_after_a_replay_shows_its_lineage")
def lua_first_claim_forgets_replays(text: str) -> str:
    """A job that never ran has no history, even if it was replayed."""
    return instead(text, "version ~= '0' or rev ~= '1'", "version ~= '0'")


# New jobs


@mutant((enqueue, "ENQUEUE"), by="test_D11_a_long_random_line_is_handed_out_in_order")
def lua_runs_begin_with_one_number(text: str) -> str:
    """Jobs of a group that differ share numbers."""
    return instead(text, "seq = seq + ARGV[place]")


@mutant((settle, "SETTLE"), by="test_D7_a_token_that_is_nearly_right_is_a_foreign_one[cut short]")
def lua_misfit_stops_nothing(text: str) -> str:
    """The outcomes of a batch that fit are written, and then asked for again."""
    return instead(text, "if #misfits > 0 then return misfits end")


@mutant((enqueue, "ENQUEUE"), by="test_R2_an_id_that_exists_is_JobExists_and_changes_nothing")
def lua_enqueue_overwrites(text: str) -> str:
    """A job takes the place of another with its id."""
    return instead(text, "if found or stored[ids[n]] then", "if stored[ids[n]] then")


@mutant((enqueue, "ENQUEUE"), by="test_D1_a_group_meets_the_groups_before_it_in_the_same_call")
def lua_groups_of_a_call_overwrite_each_other(text: str) -> str:
    """A group does not see the ids of those before it in the same call."""
    return instead(text, "if found or stored[ids[n]] then", "if found then")


@mutant((enqueue, "ENQUEUE"), by="test_D1_a_group_meets_the_groups_before_it_in_the_same_call")
def lua_refused_group_is_stored(text: str) -> str:
    """Of a group that is refused, jobs are stored."""
    return instead(text, "if not taken then", "if true then")


@mutant((enqueue, "ENQUEUE"), by="test_D1_a_group_meets_the_groups_before_it_in_the_same_call")
def lua_only_the_first_id_of_a_group_is_compared(text: str) -> str:
    """A group overwrites a job if its first id is free."""
    return instead(text, "values('job', ids)", "values('job', { ids[1] })")


@mutant((enqueue, "ENQUEUE"), by="test_N1_an_expired_job_ends_cancelled")
def lua_expiry_not_in_the_index(text: str) -> str:
    """No sweep finds a job that has expired."""
    return instead(text, "many('ZADD', P .. 'expiring', expiring, 2)")


@mutant((enqueue, "ENQUEUE"), by="test_D13_query_chooses_what_the_filter_says[everything]")
def lua_new_job_not_listed(text: str) -> str:
    """New jobs are in no list."""
    return instead(text, "many('ZADD', P .. 'all', all, 2)")


@mutant((enqueue, "ENQUEUE"), by="test_D2_never_more_than_the_limit[3]")
def lua_enqueue_without_rank(text: str) -> str:
    """New jobs are in a line that no claim looks at."""
    return instead(text, "redis.call('ZADD', P .. 'ranks:' .. queue, priority, priority)")


@mutant((enqueue, "ENQUEUE"), by="test_D11_equal_jobs_are_first_in_first_out")
def lua_numbers_not_counted_on(text: str) -> str:
    """All jobs of a group have one number."""
    return instead(text, "seq + n)", "seq + 1)")


@mutant((enqueue, "ENQUEUE"), by="test_D13_counts_show_every_state_of_every_queue")
def lua_new_job_not_counted(text: str) -> str:
    """New jobs are not counted."""
    return instead(text, "count('ready', queue, tonumber(jobs))")


@mutant((enqueue, "is_plain"), by="test_I1_a_known_key_returns_the_existing_id_and_stores_nothing")
def redis_keyed_jobs_are_plain(is_plain: Any, group: Any) -> bool:
    """Keys of new jobs are not looked at."""
    return True


# Steps

DIFFERS = "is_there == '1' and found ~= value or is_there == '0' and found"


@mutant((drafts, "COMMIT"), by="test_N3_only_one_of_many_swaps[tick]")
def lua_commit_without_comparison(text: str) -> str:
    """A step commits whatever has changed since it read."""
    return instead(text, DIFFERS, "false")


@mutant((drafts, "COMMIT"), by="test_N3_only_one_of_many_swaps[create]")
def lua_commit_overlooks_what_is_new(text: str) -> str:
    """A step commits although what it missed is there by now."""
    return instead(text, " or is_there == '0' and found")


@mutant((drafts, "COMMIT"), by="test_N3_only_one_of_many_swaps[remove]")
def lua_commit_overlooks_what_has_changed(text: str) -> str:
    """A step commits although what it read has changed."""
    return instead(text, "is_there == '1' and found ~= value or ")


@mutant((drafts, "COMMIT"), by="test_K1_a_chain_runs_one_after_the_other")
def lua_commit_writes_half(text: str) -> str:
    """Of a change set, the first part is written."""
    return instead(text, "while at <= #ARGV do", "local half = #ARGV / 2\nwhile at <= half do")


@mutant((drafts, "COMMIT"), by="test_N1_an_expired_job_ends_cancelled")
def lua_commit_keeps_ranks_of_empty_lines(text: str) -> str:
    """The name of a queue whose last job in line was cancelled stays for ever."""
    return instead(text, "redis.call('EXISTS', key) == 0", "false")


@mutant((reader, "LOOK"), by="test_K1_a_chain_runs_one_after_the_other")
def lua_look_sees_no_dependants(text: str) -> str:
    """The end of a parent releases no dependant."""
    return instead(text, "for _, id in ipairs(below) do", "for _, id in ipairs({}) do")


@mutant((reading, "LOOK"), by="test_K3_parents_come_in_the_order_given_with_their_results")
def lua_look_leaves_parents_out(text: str) -> str:
    """A job does not see the results of its parents."""
    return instead(text, "add(string.match(found[n + 1], '^%S+ %S+ (.*)$'))")


@mutant((drafts, "_job"), by="test_D9_new_jobs_may_depend_on_each_other")
def redis_parent_not_cold(job: Any, stored: Any, id: Any, after: Any, seq: Any, is_parent: bool) -> Any:
    """A job that others wait for is settled alone."""
    return job(stored, id, after, seq, False)


@mutant((drafts, "_changed_keys"), by="test_I2_entering_cancelled_frees_the_key[ready]")
async def redis_keys_not_freed(changed_keys: Any, reader: Any, draft: Any) -> Any:
    """A key is never freed."""
    return [write for write in await changed_keys(reader, draft) if write[:2] != ("HDEL", "keys")]


@mutant((drafts, "_changed_keys"), by="test_X8_the_key_of_a_workflow_is_freed_with_its_last_record")
async def redis_keys_of_workflows_not_listed(changed_keys: Any, reader: Any, draft: Any) -> Any:
    """The keys of a workflow cannot be found."""
    return [write for write in await changed_keys(reader, draft) if write[1] != "flowkeys"]


@mutant((drafts, "_tallied"), by="test_D9_a_settle_counts_its_run[cancel]")
def redis_outcome_of_a_step_not_in_the_totals(tallied: Any, tally: Any) -> Any:
    """Jobs that a step settles count nowhere."""
    return ()


@mutant((drafts, "_flows_gone"), by="test_K5_a_pruned_workflow_is_gone")
async def redis_workflow_outlives_its_jobs(flows_gone: Any, reader: Any, changed: Any) -> Any:
    """The totals of a workflow outlive its last record."""
    return []


@mutant((drafts, "_prolong"), by="test_X8_members_of_a_workflow_are_kept_as_long_as_its_last")
async def redis_members_not_kept(prolong: Any, reader: Any, draft: Any, workflow: Any, until: Any) -> None:
    """The first records of a workflow go before its last."""


@mutant((reader.Reader, "unfinished"), by="test_I2_a_key_lives_until_its_job_has_ended[ready]")
async def redis_owner_of_a_key_seems_ended(unfinished: Any, reader: Any, owners: Any) -> dict[str, int]:
    """A key past its time is free although its job has not ended."""
    return dict.fromkeys(owners, 0)


@mutant((drafts, "entries"), by="test_T3_Q4_left_behind_after_the_request_the_job_ends[cancel]")
def redis_stop_request_not_in_the_index(entries: Any, job: Any, seq: Any, lined: Any) -> Any:
    """No sweep finds a job that was asked to stop."""
    return {place: score for place, score in entries(job, seq, lined).items() if place[0] != "stopping"}


@mutant((drafts, "entries"), by="test_X8_a_record_is_kept_until_its_time_and_then_forgotten[cancel]")
def redis_cancelled_job_not_in_the_index(entries: Any, job: Any, seq: Any, lined: Any) -> Any:
    """The record of a cancelled job is kept for ever."""
    return {place: score for place, score in entries(job, seq, lined).items() if place[0] != "ended"}


@mutant((drafts, "entries"), by="test_D11_rescheduling_moves_a_job_in_line")
def redis_rescheduled_job_stays_in_its_place(entries: Any, job: Any, seq: Any, lined: Any) -> Any:
    """Every job that a step writes is in line by the time it was stored."""
    return entries(replace(job, due_at=job.created_at), seq, lined)


@mutant((prune, "PRUNE"), by="test_K3_once_the_dependants_are_done_parents_may_go")
def lua_prune_keeps_all_parents(text: str) -> str:
    """The record of a job that others have waited for is kept for ever."""
    return instead(text, "'^done '", "'^no state '")


@mutant((prune, "PRUNE"), by="test_X8_a_record_is_kept_until_its_time_and_then_forgotten[ack]")
def lua_prune_wants_a_full_page(text: str) -> str:
    """A few old records are kept until there are many."""
    return instead(text, "if #found == 0 then", "if #found < most then")


# Reading


@mutant((reading, "_first_leases"), by="test_D13_next_due_sees_leases_run_out")
async def redis_next_due_ignores_leases(first_leases: Any, server: Any) -> Any:
    """No worker wakes up when a lease expires."""
    return []


@mutant((reading, "index_of"), by="test_D13_query_chooses_what_the_filter_says[everything]")
def redis_query_looks_at_the_dead(index_of: Any, where: Any) -> str:
    """A list of all jobs has the dead only."""
    return "dead"
