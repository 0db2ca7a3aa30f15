-- Ready jobs taken, or lapsed ones taken over (D5). ?1 numbers ?2 what their tokens begin with ?3 expiry ?4 worker ?5 now
UPDATE job SET state = 'inflight', lined = 0, version = version + 1, token = ?2, lease_expires_at = ?3,
    worker = ?4, claimed_at = ?5, started_at = NULL, progress = NULL, crashes = crashes + (state = 'inflight'),
    run_at = iif(state = 'inflight', NULL, run_at)
WHERE seq IN (SELECT value FROM json_each(?1))
