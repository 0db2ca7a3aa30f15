-- Times are microseconds since the epoch. The CHECKs make illegal states impossible to store.
-- Columns that every step rewrites come first, what may be long comes last.
CREATE TABLE job (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    -- 1 in line, 2 in line because its lease lapsed, 0 not in line
    lined INTEGER NOT NULL,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL CHECK (priority BETWEEN -100 AND 100),
    place INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    -- what the tokens of one claim begin with; the whole is this, seq, a space and id
    token TEXT,
    lease_expires_at INTEGER,
    worker TEXT,
    claimed_at INTEGER,
    started_at INTEGER,
    -- a cancel was asked for, or with a reason a dead letter
    stop_requested_at INTEGER,
    completed_at INTEGER,
    keep_until INTEGER,
    settled_token TEXT,
    settled_kind TEXT,
    settled_at INTEGER,
    unmet INTEGER NOT NULL DEFAULT 0,
    type TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    run_at INTEGER,
    expires_at INTEGER,
    timeout REAL,
    kept INTEGER NOT NULL DEFAULT 0 CHECK (kept IN (0, 1)),
    max_attempts INTEGER,
    max_crashes INTEGER,
    attempts INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    unknown_put_backs INTEGER NOT NULL DEFAULT 0,
    failed_at INTEGER,
    dlq_reason TEXT,
    fingerprint TEXT,
    stop_reason TEXT,
    stop_fingerprint TEXT,
    stop_keep_until INTEGER,
    idempotency_key TEXT,
    key_expires_at INTEGER,
    workflow_id TEXT,
    original_id TEXT,
    replays INTEGER NOT NULL DEFAULT 0,
    tags TEXT,
    headers TEXT,
    progress TEXT,
    last_error TEXT,
    payload BLOB NOT NULL,
    result BLOB,
    failures TEXT,
    CHECK (min(attempts, crashes, unknown_put_backs, version, replays, unmet) >= 0),
    -- One CASE, so that a write pays for the rules of one state only.
    CHECK (CASE state
        WHEN 'ready' THEN lined = 1 AND unmet = 0
            AND coalesce(token, lease_expires_at, completed_at, keep_until, dlq_reason, fingerprint, stop_requested_at,
                stop_reason, result) IS NULL
        WHEN 'inflight' THEN (lined = 0 OR lined = 2) AND unmet = 0 AND version > 0
            AND token IS NOT NULL AND lease_expires_at IS NOT NULL AND worker IS NOT NULL AND claimed_at IS NOT NULL
            AND coalesce(completed_at, keep_until, dlq_reason, fingerprint, result) IS NULL
            AND (stop_reason IS NULL OR (stop_requested_at IS NOT NULL AND stop_keep_until IS NOT NULL))
        WHEN 'done' THEN lined = 0 AND unmet = 0 AND completed_at IS NOT NULL AND keep_until IS NOT NULL
            AND settled_kind = 'ack' AND coalesce(token, lease_expires_at, dlq_reason, fingerprint) IS NULL
        WHEN 'dlq' THEN lined = 0 AND completed_at IS NOT NULL AND keep_until IS NOT NULL
            AND dlq_reason IS NOT NULL AND coalesce(token, lease_expires_at, result) IS NULL
        WHEN 'cancelled' THEN lined = 0 AND completed_at IS NOT NULL AND keep_until IS NOT NULL
            AND coalesce(token, lease_expires_at, dlq_reason, fingerprint, result) IS NULL
        WHEN 'waiting' THEN lined = 0 AND unmet > 0
            AND coalesce(token, lease_expires_at, completed_at, keep_until, dlq_reason, fingerprint, stop_requested_at,
                stop_reason, result) IS NULL
        ELSE 0 END)
) STRICT;

-- Who is next (D11): reserve walks the priorities of a queue and reads of each only what is due.
CREATE INDEX job_line ON job (queue, priority DESC, place, seq, lined) WHERE lined > 0;

-- Leases that may lapse; once lapsed the job is in line, unless it was asked to stop.
CREATE INDEX job_lease ON job (lease_expires_at) WHERE state = 'inflight' AND lined = 0;

CREATE INDEX job_expiring ON job (expires_at) WHERE expires_at IS NOT NULL AND completed_at IS NULL;

-- What to prune, wide enough to count finished jobs without reading their rows.
CREATE INDEX job_ended ON job (keep_until, seq, queue, state) WHERE keep_until IS NOT NULL;

-- Dead and waiting jobs, for lists and counts.
CREATE INDEX job_aside ON job (state, seq, queue) WHERE state = 'dlq' OR state = 'waiting';

-- The members of a workflow, the unfinished ones first, and those that are kept longest last.
CREATE INDEX job_workflow ON job (workflow_id, keep_until) WHERE workflow_id IS NOT NULL;

CREATE TABLE keys (
    key TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    digest BLOB NOT NULL,
    expires_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_owner ON keys (owner);

CREATE TABLE edge (
    child TEXT NOT NULL,
    position INTEGER NOT NULL,
    parent TEXT NOT NULL,
    policy TEXT NOT NULL,
    satisfied INTEGER NOT NULL CHECK (satisfied IN (0, 1)),
    PRIMARY KEY (child, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX edge_parent ON edge (parent);
CREATE INDEX edge_open ON edge (parent) WHERE satisfied = 0;

CREATE TABLE paused (queue TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;

CREATE TABLE schedule (
    name TEXT PRIMARY KEY,
    definition BLOB NOT NULL,
    slot INTEGER,
    paused INTEGER NOT NULL CHECK (paused IN (0, 1)),
    last_job_id TEXT,
    last_slot INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE worker (
    id TEXT PRIMARY KEY,
    seen_at INTEGER NOT NULL,
    record TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tally (
    minute INTEGER NOT NULL,
    queue TEXT NOT NULL,
    task TEXT NOT NULL,
    outcome TEXT NOT NULL,
    count INTEGER NOT NULL,
    seconds REAL NOT NULL,
    waited REAL NOT NULL,
    PRIMARY KEY (minute, queue, task, outcome)
) STRICT, WITHOUT ROWID;
