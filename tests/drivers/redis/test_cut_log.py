"""A power cut leaves a log without its end: whole operations are lost, and nothing is half-stored."""

from __future__ import annotations

from contextlib import closing

from servers.fixtures import NewValkey
from taskharbor import Harbor, chain

from . import indexes

NAMESPACE = "taskharbor"


def test_a_log_without_its_end_has_whole_operations(new_valkey: NewValkey) -> None:
    """D1: wherever the log is cut, every index is what the records say, and the jobs that are there run.

    Redis leaves the beginning of a cut transaction in the log, and applies it at the restart after the next: a repair
    mends that. Valkey does not.
    """
    valkey = new_valkey()
    for cut in (1, 97, 700, 1_500, 4_000):
        with closing(Harbor(valkey.url())) as harbor:
            task = harbor.task(name="nothing")(_nothing)
            for number in range(20):
                task.enqueue()
                task.using(idempotency_key=f"{cut} {number}").enqueue()
                chain(task.step(), task.step()).enqueue()
            harbor.drain()
            harbor.enqueue_many([task.step() for _ in range(5)])
        valkey.kill()
        valkey.cut_log(cut)
        valkey.start()
        with closing(Harbor(valkey.url())) as harbor:
            found = harbor.admin.repair()
            assert found is not None
            assert found.misfits == 0 or b"valkey" not in valkey.command("INFO", "server"), found.examples
            indexes.check(valkey, NAMESPACE)
            harbor.task(name="nothing")(_nothing)
            harbor.drain()
        indexes.check(valkey, NAMESPACE)


def _nothing() -> None:
    """A handler."""
