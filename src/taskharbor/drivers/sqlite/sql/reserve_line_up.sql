-- Put jobs whose leases lapsed in line: since ever the first time, later since the expiry (D11). ?1 now ?2 since ever
UPDATE job SET lined = 2, place = iif(crashes = 0, ?2, lease_expires_at)
WHERE state = 'inflight' AND lined = 0 AND stop_requested_at IS NULL AND lease_expires_at <= ?1
