-- $1 id $2 payload $3 key $4 key_expires_at $5 run_at $6 due_at
WITH again AS (
    UPDATE harbor.job SET payload = coalesce($2, payload), idempotency_key = $3, key_expires_at = $4, run_at = $5,
        expires_at = NULL, original_id = coalesce(original_id, id), replays = replays + 1
    WHERE id = $1 RETURNING seq, priority
),
gone AS (
    DELETE FROM harbor.ended USING again WHERE ended.seq = again.seq RETURNING ended.*
)
INSERT INTO harbor.live (
    seq, priority, awaited, version, unmet, due_at, run_at, claimed_at, started_at, failed_at, settled_at, state, queue,
    worker, settled_token, settled_kind, last_error, failures
)
SELECT gone.seq, again.priority, EXISTS (SELECT FROM harbor.edge WHERE edge.parent = $1), gone.version, gone.unmet, $6, $5,
    gone.claimed_at, gone.started_at, gone.failed_at, gone.settled_at,
    CASE WHEN gone.unmet > 0 THEN 'waiting' ELSE 'ready' END, gone.queue, gone.worker, gone.settled_token,
    gone.settled_kind, gone.last_error, gone.failures
FROM gone JOIN again USING (seq)
