-- Plain successes, a whole batch at a time. ?1 [[seq, id, token, keep_until, result in hex], …] ?2 now
UPDATE job SET state = 'done', lined = 0, token = NULL, lease_expires_at = NULL, worker = NULL, claimed_at = NULL,
    settled_token = ended.token, attempts = 0, crashes = 0, unknown_put_backs = 0, last_error = NULL, failed_at = NULL,
    failures = NULL, completed_at = ?2, keep_until = ended.keep_until, result = unhex(ended.result)
FROM (
    SELECT value ->> 0 AS seq, value ->> 1 AS id, value ->> 2 AS token, value ->> 3 AS keep_until, value ->> 4 AS result
    FROM json_each(?1)
) AS ended
WHERE job.seq = ended.seq AND job.id = ended.id AND job.token = ended.token
    AND job.state = 'inflight' AND job.lease_expires_at > ?2
