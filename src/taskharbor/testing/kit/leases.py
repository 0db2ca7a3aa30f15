"""D6, D8 and L in drivers: which token may renew a lease, and what a renewal writes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from taskharbor.core.job import Progress
from taskharbor.driver import Extended, Report
from taskharbor.testing.kit.jobs import SETTLES, ack, at, each_kind, expiry_of, fail, job, lease_of, put_back, token_of
from taskharbor.testing.kit.scene import Cases, Scene

# The job's state, the token shown, whether the lease has run out: the refusal, and for a settle its repeat.
MATRIX: dict[str, str] = {
    "unknown job": "JobNotInflight",
    "ready, never claimed": "JobNotInflight",
    "ready, lapsed token of an earlier claim": "JobNotInflight",
    "done, foreign token": "JobNotInflight",
    "held, foreign token": "LeaseMismatch",
    "held, token of an earlier claim": "LeaseMismatch",
    "lapsed, own token": "LeaseExpired",
    "lapsed, foreign token": "LeaseExpired",
    "lapsed, token of an earlier claim": "LeaseExpired",
}


async def arrange(s: Scene, situation: str) -> tuple[str, str]:
    """Create a situation of the matrix; return the id and the token to show."""
    what, _, whose = situation.partition(", ")
    if what == "unknown job":
        return "nobody", "x"
    await s.add(job("a"))
    token = "foreign"
    if "earlier" in whose:
        token = token_of(await s.claim("a", lease=5))
        s.tick(5)
    if what == "ready" and "earlier" in whose:
        await s.end(put_back(await s.claim("a"), run_at=s.now))
    if what in ("held", "lapsed", "done"):
        held = await s.claim("a", lease=10)
        if whose == "own token":
            token = token_of(held)
        if what == "done":
            await s.end(ack(held))
        if what == "lapsed":
            s.tick(10)
    return "a", token


class LeaseCases(Cases):
    """D6, D8, L5, L7."""

    async def test_D6_an_extension_is_stored_and_keeps_the_token(self, s: Scene) -> None:
        """D6: the new expiry is stored, not only returned; nothing else changes."""
        held = await s.held(lease=10)
        s.tick(5)
        assert await s.extend(Report("a", token_of(held)), lease=10) == [Extended(at(15), False)]
        assert await s.get() == replace(held, lease=replace(lease_of(held), expires_at=at(15)))

    async def test_D6_a_lease_never_shrinks(self, s: Scene) -> None:
        """D6: max(expires_at, now + lease_for)."""
        held = await s.held(lease=100)
        s.tick(1)
        assert await s.extend(Report("a", token_of(held)), lease=10) == [Extended(at(100), False)]
        assert expiry_of(await s.get()) == at(100)

    async def test_D6_a_lease_can_be_extended_again_and_again(self, s: Scene) -> None:
        """D6, L2: a job is held as long as heartbeats come."""
        held = await s.held(lease=30)
        for _ in range(20):
            s.tick(10)
            assert await s.extend(Report("a", token_of(held))) == [Extended(s.now + timedelta(seconds=30), False)]
            assert await s.reserve(9) == []
        await s.end(ack(held))

    async def test_D6_an_expired_lease_is_not_revived(self, s: Scene) -> None:
        """D6: the lease ends at its expiry, even if the job was not taken over."""
        held = await s.held(lease=10)
        s.tick(10)
        assert await s.without_effect(s.extend(Report("a", token_of(held), at(1), Progress(0.5)))) == ["LeaseExpired"]
        assert await s.order() == ["a"]

    async def test_D6_a_lease_can_be_extended_to_the_last_microsecond(self, s: Scene) -> None:
        """D6: valid while expires_at > now."""
        held = await s.held(lease=10)
        s.tick(9.999999)
        assert await s.extend(Report("a", token_of(held)), lease=10) == [Extended(at(19.999999), False)]

    @pytest.mark.parametrize("note", ["quarter", "ein Viertel ✓"])
    async def test_D6_start_and_progress_are_stored(self, s: Scene, note: str) -> None:
        """D6, T2, R1: exactly as reported with the heartbeat, without a write of their own."""
        held = await s.held()
        await s.extend(Report("a", token_of(held), at(0.5), Progress(0.1, note)))
        await s.expect(started_at=at(0.5), progress=Progress(0.1, note))

    async def test_D6_a_report_without_news_forgets_nothing(self, s: Scene) -> None:
        """D6: reported values stay until newer ones come."""
        held = await s.held()
        await s.extend(Report("a", token_of(held), at(0.5), Progress(0.25)))
        await s.extend(Report("a", token_of(held)))
        await s.expect(started_at=at(0.5), progress=Progress(0.25))
        await s.extend(Report("a", token_of(held), None, Progress(0.5)))
        await s.expect(started_at=at(0.5), progress=Progress(0.5))

    async def test_D6_the_answer_shows_a_cancel_request(self, s: Scene) -> None:
        """D6, T3: and the lease is still renewed, because the handler may need time to stop."""
        held = await s.held(lease=10)
        await s.withdraw("a")
        s.tick(5)
        assert await s.extend(Report("a", token_of(held)), lease=10) == [Extended(at(15), True)]

    async def test_D6_reports_are_answered_one_by_one(self, s: Scene) -> None:
        """D6: each is judged alone, in order."""
        first, second = await s.held("a", lease=10), await s.held("b", lease=10)
        await s.held("c", lease=10)
        answers = await s.extend(
            Report("a", token_of(first)), Report("c", "foreign"), Report("nobody", "x"), Report("b", token_of(second))
        )
        extended = Extended(at(30), False)
        assert answers == [extended, "LeaseMismatch", "JobNotInflight", extended]
        assert [expiry_of(await s.get(id)) for id in "abc"] == [at(30), at(30), at(10)]

    async def test_D6_nothing_to_report_is_fine(self, s: Scene) -> None:
        """D6: an empty sequence has an empty answer."""
        assert await s.extend() == []

    async def test_D6_an_extension_does_not_change_the_version(self, s: Scene) -> None:
        """D6: the version counts claims."""
        held = await s.held()
        await s.extend(Report("a", token_of(held)))
        record = await s.get()
        assert (record.version, lease_of(record).version, token_of(record)) == (1, 1, token_of(held))

    @pytest.mark.parametrize("situation", list(MATRIX))
    async def test_D8_why_an_extension_is_refused(self, s: Scene, situation: str) -> None:
        """D8: not inflight, then expired, then mismatch; and nothing changes."""
        id, token = await arrange(s, situation)
        async with s.nothing_changes():
            assert await s.extend(Report(id, token, at(1), Progress(0.5)), lease=999) == [MATRIX[situation]]

    @each_kind
    @pytest.mark.parametrize("situation", list(MATRIX))
    async def test_D8_why_a_settle_is_refused(self, s: Scene, kind: str, situation: str) -> None:
        """D7, D8: the same refusals for every outcome; nothing changes, its new jobs included."""
        id, token = await arrange(s, situation)
        transition = SETTLES[kind](job(id), token=token, attempts=7, last_error="x", new_jobs=(job("new"),))
        assert await s.without_effect(s.settle(transition)) == [MATRIX[situation]]

    async def test_D8_an_extension_with_the_settled_token_is_refused(self, s: Scene) -> None:
        """D8: only a settle can be repeated; there is nothing left to extend."""
        held = await s.held()
        await s.end(put_back(held))
        assert await s.extend(Report("a", token_of(held))) == ["JobNotInflight"]
        await s.claim("a")
        assert await s.extend(Report("a", token_of(held))) == ["LeaseMismatch"]

    async def test_L5_a_late_settle_never_overwrites_a_newer_claim(self, s: Scene) -> None:
        """L5, X7: whatever a disconnected or paused holder sends, the new lease and record stay."""
        old = await s.held(lease=5)
        s.tick(5)
        new = await s.claim("a")
        async with s.nothing_changes():
            for late in SETTLES.values():
                assert await s.settle(late(old, attempts=9)) == ["LeaseMismatch"]
        await s.end(ack(new))

    async def test_L5_a_late_settle_never_overwrites_a_newer_end(self, s: Scene) -> None:
        """L5: the new holder's outcome stands."""
        old = await s.held(lease=5)
        s.tick(5)
        await s.end(ack(await s.claim("a"), result=b"new"))
        assert await s.without_effect(s.settle(fail(old))) == ["JobNotInflight"]

    async def test_L5_versions_fence_across_retries(self, s: Scene) -> None:
        """L5: they grow by one per claim, across put-backs, crashes and replays."""
        seen: list[int] = []
        await s.add(job("a"))
        for step in ("put_back", "crash", "fail", "put_back"):
            held = await s.claim("a", lease=5)
            seen.append(held.version)
            if step == "crash":
                s.tick(5)
            else:
                await s.end(SETTLES[step](held))
            if step == "fail":
                await s.replay("a")
        assert [*seen, (await s.claim("a")).version] == [1, 2, 3, 4, 5]

    async def test_L5_an_expired_token_stays_invalid_when_time_goes_back(self, s: Scene) -> None:
        """L5, X4: a skewed `now` does not revive a lease that was taken over."""
        old = await s.held(lease=5)
        s.tick(5)
        await s.claim("a")
        s.tick(-4)
        async with s.nothing_changes():
            assert await s.settle(ack(old)) == ["LeaseMismatch"]
            assert await s.extend(Report("a", token_of(old))) == ["LeaseMismatch"]

    async def test_L7_the_timeout_does_not_touch_the_lease(self, s: Scene) -> None:
        """L7: a job's execution timeout is only data to the driver."""
        held = await s.held(timeout=1, lease=30)
        s.tick(20)
        assert expiry_of(held) == at(30)
        await s.end(ack(held))

    async def test_D6_an_extend_by_an_earlier_clock_does_not_lose_a_lapsed_job(self, s: Scene) -> None:
        """D6, D5: seen as lapsed by one clock, renewed by one that is behind, it can still be taken over."""
        held = await s.held(lease=30)
        s.tick(30)
        assert await s.reserve(queues=["elsewhere"]) == []
        s.tick(-1)
        await s.extend(Report("a", token_of(held)), lease=1)
        s.tick(1)
        assert await s.order() == ["a"]
