"""Two generations of the code at once (F8, X6)."""

from __future__ import annotations

import signal

from .crew import Crew, until


def test_an_old_worker_puts_a_new_task_back(crew: Crew) -> None:
    """F8: a task that a worker does not know waits for one that does, and loses neither attempts nor crashes."""
    old = crew.worker(concurrency=1)
    new_kind = crew.enqueue("novel", {"number": 1})
    until(lambda: crew.job(new_kind).unknown_put_backs >= 1, "the old worker puts it back")
    known = crew.enqueue("hold", {"gate": "gate"})
    assert crew.runs(known).who == old.name  # from now on its only slot is taken
    assert not crew.began(new_kind)

    new = crew.worker(generation=2)
    ended = crew.ended(new_kind)
    assert (ended.state, ended.attempts, ended.crashes) == ("done", 0, 0)
    assert [run.who for run in crew.began(new_kind)] == [new.name]
    crew.open_gate("gate")
    crew.drained()
    assert [run.who for run in crew.began(known)] == [old.name]
    crew.judge()


def test_a_rolling_deploy_loses_nothing(crew: Crew) -> None:
    """F8, X6, H1, H6: old workers are replaced one by one under load of both kinds; every job is done, none is hurt."""
    old = [crew.worker(concurrency=1), crew.worker(concurrency=1)]  # neither can take everything before the other
    client = crew.client(
        [("nap", {"seconds": 0.1}, {}), ("novel", {"number": 1}, {}), ("quick_sync", {"number": 2}, {})],
        rounds=None,
        pause=0.1,
    )
    client.go()
    new = []
    for worker in old:
        until(lambda: crew.began_by(worker), f"{worker.name} works")  # noqa: B023
        new.append(crew.worker(generation=2))
        worker.signal(signal.SIGTERM)
        assert worker.ends() == 0
    client.enough()
    crew.drained()
    jobs = crew.judge()
    assert {(job.state, job.attempts, job.crashes) for job in jobs} == {("done", 0, 0)}
    assert {run.who for job in jobs if job.type == "novel" for run in crew.began(job.id)} <= {it.name for it in new}
