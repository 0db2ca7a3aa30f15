"""Shared by the tests of the command line: an application, commands in this process, commands as processes."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import queue
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

import limits
from taskharbor import Harbor
from taskharbor.cli import cli

PATIENCE = 60.0
LONGEST = 120.0  # a whole demo

SHOP = """
import logging
import threading
from taskharbor import FailedStep, Harbor, Retry, current

harbor = Harbor("sqlite:///jobs.db")
log = logging.getLogger("shop")

@harbor.task(queue="mail", tags=["letter"])
async def welcome(user_id: int, *, locale: str = "en") -> str:
    log.info("welcoming %d", user_id)
    return f"{locale}:{user_id}"

@harbor.task(max_attempts=2, retry=Retry.fixed(0))
def explode(text: str) -> None:
    raise ValueError(text)

@harbor.task(max_attempts=1)
def once(file: str) -> str:
    with open(file, "a+") as seen:
        if seen.tell() == 0:
            seen.write("x")
            raise ValueError("the first time")
    return file

@harbor.task
def merge(results: list[str | None], *, between: str = " ") -> str:
    return between.join(map(str, results))

@harbor.task
def tell(results: list[str | FailedStep]) -> str:
    return str(results)

@harbor.task
def hang() -> None:
    log.info("hanging")
    threading.Event().wait()
"""


UNCHECKED = re.compile(r"^The name \S+ was not checked: .*\n")


class Desk:
    """Commands in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = "sqlite:///jobs.db"
        self.harbor = Harbor(self.url)

    def run(self, *words: str, given: str | None = None) -> Result:
        """A command in this process; stdout and stderr are apart, and neither is a terminal."""
        return CliRunner().invoke(cli, list(words), input=given, prog_name="taskharbor")

    def good(self, *words: str) -> str:
        """The output of a command that must go well; an enqueue without the code says that it checks no name."""
        result = self.run(*words)
        assert (result.exit_code, UNCHECKED.sub("", result.stderr)) == (0, ""), result.output
        return result.stdout

    def bad(self, code: int, *words: str) -> str:
        """The one line of complaint of a command that must fail with this exit code."""
        result = self.run(*words)
        lines = result.stderr.splitlines()
        assert (result.exit_code, len(lines)) == (code, 1), (result.output, result.exception)
        assert lines[0].startswith("taskharbor: ")
        return lines[0].removeprefix("taskharbor: ")

    def json(self, *words: str) -> Any:
        """The JSON that a command prints."""
        return json.loads(self.good(*words, "--json"))

    def enqueue(self, *words: str) -> str:
        """Enqueue with the application; returns the id."""
        created = self.json("enqueue", "-A", "shop:harbor", *words)
        assert created["created"]
        return str(created["id"])

    def drain(self) -> int:
        """Run everything that is due, with the application's code."""
        import shop  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

        async def work() -> int:
            async with shop.harbor.open():
                return int(await shop.harbor.adrain())

        return asyncio.run(work())

    def pyproject(self, **settings: str) -> None:
        """A pyproject.toml with these settings."""
        lines = "".join(f'{name} = "{value}"\n' for name, value in settings.items())
        (self.folder / "pyproject.toml").write_text(f"[tool.taskharbor]\n{lines}", encoding="utf-8")

    @contextmanager
    def process(self, *words: str) -> Generator[Process]:
        """A command as a process of its own, ended at the end whatever it does."""
        process = Process(self.folder, words)
        try:
            yield process
        finally:
            process.end()


class Process:
    """A running command whose stderr is listened to."""

    def __init__(self, folder: Path, words: tuple[str, ...]) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "TASKHARBOR_URL"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "taskharbor", *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self.lines: list[str] = []
        self._heard: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._heard.put(line.rstrip("\n"))
        self._heard.put(None)

    def says(self, text: str) -> str:
        """Wait for a line that contains the text; it is consumed."""
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._heard.get(timeout=max(0.0, give_up - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {text!r} in {self.lines}") from None
            assert line is not None, f"the process ended without {text!r}: {self.lines}"
            self.lines.append(line)
            if text in line:
                return line

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def exit_code(self) -> int:
        """Wait for the end."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            with suppress(queue.Empty):
                while (line := self._heard.get_nowait()) is not None:
                    self.lines.append(line)
            raise AssertionError(f"it does not end: {self.lines}") from None

    def end(self) -> None:
        """Kill it if it still runs, with what it has started, and let go of everything."""
        limits.end(self.process, self._listener, PATIENCE)


def in_terminal(folder: Path, width: int, *words: str, given: str = "", **environment: str) -> tuple[int, str]:
    """The exit code of a command in a terminal of this width, and what it writes there; `given` is typed."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "taskharbor", *words],
        cwd=folder,
        env={**inherited, "TERM": "xterm-256color", **environment},
        stdin=follower,
        stdout=follower,
        stderr=subprocess.STDOUT,
    )
    os.close(follower)
    screen = Screen(leader)
    try:
        os.write(leader, given.encode())
        screen.until_closed(f"the end of {words}")
        return process.wait(PATIENCE), screen.seen.decode()
    finally:
        screen.close()
        limits.end(process)


class Screen:
    """The output of processes on a terminal, read at its other end."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self.seen = b""

    @property
    def text(self) -> str:
        """The text that was read so far; its end may be half a character."""
        return self.seen.decode(errors="replace")

    def until(self, text: str) -> None:
        """Read until this has been written."""
        give_up = time.monotonic() + PATIENCE
        while text not in self.text:
            assert self._read(give_up, repr(text)), f"the terminal was closed without {text!r}: {self.text}"

    def until_closed(self, what: str) -> None:
        """Read until no process has the terminal open."""
        give_up = time.monotonic() + LONGEST
        while self._read(give_up, what):
            pass

    def _read(self, give_up: float, what: str) -> bool:
        left = max(0.0, give_up - time.monotonic())
        assert select.select([self._leader], [], [], left)[0], f"waited in vain for {what}: {self.text}"
        try:
            chunk = os.read(self._leader, 65536)
        except OSError:  # Linux says so when the other end is closed
            return False
        self.seen += chunk
        return bool(chunk)

    def close(self) -> None:
        """Close the terminal."""
        os.close(self._leader)


def unpainted(text: str) -> str:
    """The text without the codes for colours and styles."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def until(true: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    give_up = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < give_up, "it never happened"
        time.sleep(0.02)
