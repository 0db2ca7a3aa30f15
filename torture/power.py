"""Power cuts: the store on a loop-mounted XFS that is shut down under load, then mounted again.

The shutdown (what `xfs_io -x -c shutdown` does) drops everything that was not yet on its way to the disk, as a power
cut does. Unlike a power cut it leaves the processes alive for a moment: what they receive after the cut began would
never have arrived, so it is struck from their histories. (An fsync that is under way may then return without an error.)
A control with a setting that promises less (`synchronous=normal`, `appendfsync everysec`, no
`sync_interval: always`) shows that the cut is real.
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
from typing import TypeAlias

from system.crew import Crew, Member, until
from system.storm import MIXED
from taskharbor.testing.history import Called, Final, HistoryFile, Returned, monotonic, read
from torture.ground import Skipped, folder, need, need_root, run, say
from torture.power_stores import FileOnDisk, PowerStore, ServerOnDisk, StreamsOnDisk

SIZE = 512 * 1024 * 1024
XFS_IOC_GOINGDOWN = 0x8004587D
WITHOUT_THE_LOG = 2
LEAST_ROUNDS = 5
Kind: TypeAlias = type[FileOnDisk] | type[ServerOnDisk] | type[StreamsOnDisk]
KINDS: tuple[Kind, ...] = (FileOnDisk, ServerOnDisk, StreamsOnDisk)


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


def cut_under_load(store: PowerStore, disk: Disk, rng: Random) -> tuple[int, int]:
    """Let them work for a random time, cut the power, mount again; return the number of answers that would never
    have arrived, and when the cut began."""
    crew = store.crew
    before = len(crew.acknowledged())
    aboard = crowd(crew)
    until(lambda: len(crew.acknowledged()) > before + 20, "the clients are at work")
    time.sleep(rng.uniform(0.0, 2.0))
    cut_at = disk.cut()
    for member in aboard:
        member.close()
    crew.let_go()
    store.down()
    disk.unmount()
    disk.mount()
    store.up()
    said = crew.acknowledged()
    for member in aboard:
        strike_after(crew.folder / f"{member.name}.history", cut_at)
    return len((said - crew.acknowledged()) - store.stored()), cut_at


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


def power(minutes: float, seed: int) -> str:
    """Rounds of power cuts at random moments; after each the store is in order and no acknowledged job is missing."""
    rng, told = Random(seed), list[str]()
    with folder() as base, disk(base) as xfs:
        for kind in KINDS:
            told += [_durable(kind, base, xfs, rng, minutes * 30), _control(kind, base, xfs, rng)]
    return "; ".join(told)


def _durable(kind: Kind, base: Path, xfs: Disk, rng: Random, seconds: float) -> str:
    store = kind(base / kind.__name__, xfs.mountpoint, durable=True)
    crew = store.crew
    try:
        end, rounds, unheard = time.monotonic() + seconds, 0, 0
        while rounds < LEAST_ROUNDS or time.monotonic() < end:
            rounds += 1
            unheard += cut_under_load(store, xfs, rng)[0]
            order = store.check()
            acknowledged = crew.acknowledged()
            missing = len(acknowledged - store.stored())
            say(f"{kind.__name__}, cut {rounds}: {len(acknowledged)} acknowledged so far, {missing} lost, {order}")
            assert missing == 0, f"{missing} of {len(acknowledged)} acknowledged jobs are lost"
        for _ in range(3):
            crew.worker(concurrency=32)
        crew.drained(1200)
        crew.judge()
        found = f"{kind.__name__}: {rounds} cuts, {len(crew.acknowledged())} acknowledged, 0 lost, {crew.verdict}"
        return f"{found} ({unheard} answered after the cut are gone)"
    finally:
        store.close()


def _control(kind: Kind, base: Path, xfs: Disk, rng: Random) -> str:
    """The same with a setting that promises less: whether cuts of this kind lose anything at all, and break nothing."""
    store = kind(base / f"{kind.__name__}-control", xfs.mountpoint, durable=False)
    try:
        _, cut_at = cut_under_load(store, xfs, rng)
        store.check()
        lost = store.crew.acknowledged() - store.stored()
        acknowledged, oldest = len(store.crew.acknowledged()), _oldest(store.crew, lost, cut_at)
    finally:
        store.close()
    verdict = "so the cut is real" if lost else "SO THIS CUT PROVES NOTHING"
    found = f"{len(lost)} of {acknowledged} lost, the oldest {oldest:.1f} s before the cut"
    say(f"control with {kind.control}: {found}, {verdict}")
    assert oldest <= kind.most, f"{kind.control} lost jobs that were acknowledged {oldest:.1f} s before the cut"
    if not lost:
        raise Skipped(f"nothing was lost at {kind.control} either: these cuts prove nothing, try again")
    return f"control at {kind.control}: {found}"


def _oldest(crew: Crew, lost: set[str], cut_at: int) -> float:
    """How long before the cut the oldest lost job was acknowledged."""
    returned = (event for event in crew.events() if isinstance(event, Returned))
    times = [event.at for event in returned for answer in event.answers if getattr(answer, "id", None) in lost]
    return (cut_at - min(times, default=cut_at)) / 1e6
