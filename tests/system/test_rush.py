"""Eight processes that reserve from one store at once (D12)."""

from __future__ import annotations

from collections import Counter

from .crew import Crew

PROCESSES, LIMIT, JOBS = 8, 7, 400


def test_eight_processes_reserve_at_once(crew: Crew) -> None:
    """D12, D5, H2-H5: never two valid leases on one job, also while lapsed ones are taken over; all finish."""
    crew.max_crashes = None
    crew.enqueue_many("quick", [{"number": number} for number in range(JOBS)])
    rush = crew.start(crew.name("rush"), ["-m", "system.rush", str(PROCESSES), str(LIMIT)])
    rush.says("ready")
    rush.go()
    assert rush.ends() == 0, rush.story
    claims = Counter((claim.id, claim.version) for claim in crew.claims())
    assert set(claims.values()) == {1}
    jobs = crew.judge()
    assert {job.state for job in jobs} == {"done"}
    assert sum(job.version for job in jobs) == len(claims)
    assert any(job.version > 1 for job in jobs), "nothing was ever taken over: this run has shown less than it should"
    assert {claim.token for claim in crew.claims()} >= {job.settled_token for job in jobs}
