"""Power cuts: the store on a loop-mounted XFS that is shut down under load, then mounted again.

The shutdown (what `xfs_io -x -c shutdown` does) drops everything that was not yet on its way to the disk, as a power
cut does. Unlike a power cut it leaves the processes alive for a moment: what they hear after the cut began, nobody
would have heard, so it is struck from their histories. (An fsync that is under way may then return without an error.)
A control with `synchronous=normal`, which promises less, shows that the cut is real.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from system.crew import Crew, Member, until
from system.storm import MIXED
from taskharbor.testing.history import Called, Final, HistoryFile, monotonic, read
from torture.ground import Skipped, folder, need, need_root, run, say

SIZE = 512 * 1024 * 1024
XFS_IOC_GOINGDOWN = 0x8004587D
WITHOUT_THE_LOG = 2
LEAST_ROUNDS = 5


class Disk:
    """An XFS in a file."""

    def __init__(self, base: Path) -> None:
        self.mountpoint = base / "disk"
        self._image = base / "disk.img"
        self._mkfs = need("mkfs.xfs", "xfsprogs")
        self._mount, self._umount = need("mount", "mount"), need("umount", "mount")
        self.mountpoint.mkdir()
        with self._image.open("wb") as image:
            image.truncate(SIZE)
        run(self._mkfs, "-q", self._image)

    def mount(self) -> None:
        """Mount it; the log is replayed."""
        run(self._mount, "-o", "loop", self._image, self.mountpoint)

    def unmount(self) -> None:
        """Unmount it."""
        run(self._umount, self.mountpoint)

    def cut(self) -> int:
        """Nothing reaches the disk any more, not even what the log holds in memory; returns when that began."""
        root = os.open(self.mountpoint, os.O_RDONLY)
        try:
            began = monotonic()
            fcntl.ioctl(root, XFS_IOC_GOINGDOWN, struct.pack("I", WITHOUT_THE_LOG))
        finally:
            os.close(root)
        return began


@contextmanager
def disk(base: Path) -> Generator[Disk]:
    """A mounted disk."""
    need_root("a loop mount")
    made = Disk(base)
    try:
        made.mount()
    except AssertionError as error:
        raise Skipped(f"XFS cannot be mounted here: {error}") from error
    try:
        yield made
    finally:
        if made.mountpoint.is_mount():
            made.unmount()


def crowd(crew: Crew) -> list[Member]:
    """Two workers, a client with jobs of all kinds, and one with many small commits."""
    clients = [
        crew.client(MIXED, rounds=None, pause=0.2, wait=False),
        crew.client([("quick", {"number": 1}, {})], rounds=None, beside=4, pause=0.001, wait=False),
    ]
    for client in clients:
        client.go()
    return [*clients, *(crew.worker(ready=False) for _ in range(2))]


def cut_under_load(crew: Crew, disk: Disk, chance: Random) -> int:
    """Let them work for a random time, cut the power, mount again; return the number of lost answers."""
    before = len(crew.acknowledged())
    aboard = crowd(crew)
    until(lambda: len(crew.acknowledged()) > before + 20, "the clients are at work")
    time.sleep(chance.uniform(0.0, 2.0))
    cut_at = disk.cut()
    for member in aboard:
        member.close()
    disk.unmount()
    disk.mount()
    said = crew.acknowledged()
    for member in aboard:
        strike_after(crew.folder / f"{member.name}.history", cut_at)
    return len((said - crew.acknowledged()) - stored(crew))


def strike_after(history: Path, cut_at: int) -> None:
    """Forget what a process received and did after the cut: only its requests are left."""
    if not history.exists():
        return
    events = [event for event in read([history]) if isinstance(event, Called | Final) or event.at < cut_at]
    history.unlink()
    file = HistoryFile(history)
    for event in events:
        file.append(event)
    file.close()


def stored(crew: Crew) -> set[str]:
    """The ids of the jobs that the store has."""
    if not crew.store.exists() or not crew.select("SELECT 1 FROM sqlite_schema WHERE name = 'job'"):
        return set()
    return {id for (id,) in crew.select("SELECT id FROM job")}


def power(minutes: float, seed: int) -> str:
    """Rounds of power cuts at random moments; after each the file is in order and no acknowledged job is missing."""
    chance = Random(seed)
    with folder() as base, disk(base) as xfs:
        crew = Crew(base, max_crashes=None, store=xfs.mountpoint / "jobs.db")
        try:
            end, rounds, unheard = time.monotonic() + minutes * 60, 0, 0
            while rounds < LEAST_ROUNDS or time.monotonic() < end:
                rounds += 1
                unheard += cut_under_load(crew, xfs, chance)
                crew.check_file()
                acknowledged = crew.acknowledged()
                missing = len(acknowledged - stored(crew))
                say(f"power cut {rounds}: {len(acknowledged)} acknowledged so far, {missing} lost, integrity_check ok")
                assert missing == 0, f"{missing} of {len(acknowledged)} acknowledged jobs are lost"
            for _ in range(3):
                crew.worker(concurrency=32)
            crew.drained(1200)
            crew.judge()
            found = f"{rounds} cuts, {len(crew.acknowledged())} acknowledged, 0 lost, {crew.verdict}"
        finally:
            crew.close()
        return f"{found} ({unheard} answered after the cut are gone); {control(base, xfs, chance)}"


def control(base: Path, xfs: Disk, chance: Random) -> str:
    """The same with `synchronous=normal`: whether cuts of this kind lose anything at all."""
    (base / "control").mkdir()
    crew = Crew(base / "control", max_crashes=None, store=xfs.mountpoint / "control.db", options="?synchronous=normal")
    try:
        cut_under_load(crew, xfs, chance)
        acknowledged = len(crew.acknowledged())
        missing = len(crew.acknowledged() - stored(crew))
    finally:
        crew.close()
    verdict = "so the cut is real" if missing else "SO THIS CUT PROVES NOTHING"
    say(f"control with synchronous=normal: {missing} of {acknowledged} lost, {verdict}")
    if not missing:
        raise Skipped("nothing was lost at synchronous=normal either: these cuts prove nothing, try again")
    return f"control at synchronous=normal lost {missing} of {acknowledged}"
