"""Runs the demo: a temporary store, the story, the verdict, and the cleanup."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote as shell_quote
from urllib.parse import quote, unquote

from taskharbor.cli import output
from taskharbor.cli.demo import tasks
from taskharbor.cli.demo.promises import Promise, verdicts
from taskharbor.cli.demo.story import DemoFailed, Story
from taskharbor.cli.demo.view import view
from taskharbor.cli.exits import BAD, FINE, complain
from taskharbor.cli.output import Cell
from taskharbor.errors import HarborError
from taskharbor.worker.signals import on_end_signals


def run_demo(*, keep: bool) -> int:
    """Run the whole demo and return the exit code."""
    with _folder(keep) as folder:
        url = f"sqlite:///{quote(str(folder / 'demo.db'))}"
        try:
            story, promises = asyncio.run(_play(url))
        except (KeyboardInterrupt, asyncio.CancelledError):
            complain(f"demo stopped; its workers have ended, its files are {'kept' if keep else 'removed'}")
            return BAD
        except (DemoFailed, HarborError) as error:
            complain(f"the demo cannot go on: {error}")
            return BAD
        _show_verdict(promises, story)
        _show_next(url if keep else None)
        return FINE if all(promise.kept for promise in promises) else BAD


@contextmanager
def _folder(keep: bool) -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="taskharbor-demo-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


async def _play(url: str) -> tuple[Story, list[Promise]]:
    main = asyncio.current_task()
    assert main is not None
    on_end_signals(main.cancel)  # Ctrl-C, SIGTERM and a closed terminal run the `finally` blocks
    tasks.harbor.url = url
    screen = view()
    story = Story(url, screen.frame, screen.tell)
    try:
        async with tasks.harbor.open():
            with screen.on_screen():
                await story.run()
            return story, verdicts(story, await story.cargo.look())
    finally:
        story.crew.sink()


def _show_verdict(promises: Sequence[Promise], story: Story) -> None:
    output.heading("What the store says now")
    output.facts(
        (Cell(f"{'✔' if kept else '✘'} {text}", "green" if kept else "bold red"), evidence)
        for text, kept, evidence in promises
    )
    total, broken = len(promises), sum(not promise.kept for promise in promises)
    verdict = f"{broken} of {total} promises were broken" if broken else f"All {total} promises kept"
    output.say(f"\n{verdict}, in {story.elapsed:.1f} s.", "bold red" if broken else "bold green")


def _show_next(url: str | None) -> None:
    output.heading("Now yours: hello.py")
    output.say(_PROGRAM, "cyan")
    output.heading("What to type next")
    output.say(f"{activation()}{_COMMANDS}", "cyan")
    output.say(f"\nThe tasks of this demo are a good first read: {tasks.__file__}", "dim")
    if url is not None:
        folder = Path(unquote(url.removeprefix("sqlite:///"))).parent
        output.heading(f"The demo's store was kept in {folder}")
        output.say(_LOOK_AROUND.format(url=url), "cyan")


def activation() -> str:
    """The line that puts `taskharbor` on the PATH, if it is not there (as after `make demo`)."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("taskharbor") is not None or not script.exists():
        return ""
    folder = Path.cwd()
    return f"  . {shell_quote(str(script.relative_to(folder) if script.is_relative_to(folder) else script))}\n"


_PROGRAM = """\
  from taskharbor import Harbor

  harbor = Harbor()

  @harbor.task
  def greet(name: str) -> str:
      return f"Ahoy, {name}!\""""

_COMMANDS = """\
  taskharbor worker hello:harbor --reload &
  taskharbor enqueue -A hello:harbor hello.greet name=Ada
  taskharbor jobs ls
  taskharbor --help"""

_LOOK_AROUND = """\
  taskharbor stats --url {url}
  taskharbor dlq ls --url {url}
  taskharbor recurring ls --url {url}"""
