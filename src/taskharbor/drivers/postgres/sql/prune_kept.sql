-- Which of these workflows stay, and until when: as long as the last of their records and their key, if that runs out; while
-- one has not ended, until the next look (X8, I3). $1 workflows $2 now $3 the next look
SELECT given.id, kept.until FROM unnest($1::text[]) AS given (id) CROSS JOIN LATERAL (
    SELECT CASE WHEN bool_or(ended.seq IS NULL) THEN $3::timestamptz
        ELSE greatest(max(ended.keep_until), (SELECT max(expires_at) FROM harbor.keys WHERE owner = given.id)) END AS until
    FROM harbor.job LEFT JOIN LATERAL (
        SELECT seq, keep_until FROM harbor.ended WHERE ended.seq = job.seq LIMIT 1
    ) AS ended ON true
    WHERE job.workflow_id = given.id
) AS kept
WHERE kept.until > $2
