"""`worker --processes N`: the options of a supervisor, its start, and what a worker reports to it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from random import SystemRandom
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
from msgspec.structs import replace

from taskharbor import config
from taskharbor.cli.target import check_file
from taskharbor.cli.types import span
from taskharbor.client.session import Session
from taskharbor.core.sizes import size
from taskharbor.errors import ConfigError
from taskharbor.harbor import Harbor
from taskharbor.supervisor.link import SupervisorLink
from taskharbor.supervisor.messages import WorkerReady
from taskharbor.supervisor.options import Limits, SupervisorOptions
from taskharbor.supervisor.supervisor import Supervisor
from taskharbor.worker.launcher import RunningWorker, on_begin, on_stop, on_wait
from taskharbor.worker.memory import resident

C = TypeVar("C", bound=Callable[..., Any])


def supervisor_options(command: C) -> C:
    """Give a command `--processes` and the limits of its workers."""
    processes = click.option(
        "-p", "--processes", type=int, metavar="N", help="Keep N worker processes running under a supervisor."
    )
    jobs = click.option("--max-jobs", type=int, metavar="N", help="Replace a worker process after N jobs.")
    age = click.option("--max-age", metavar="TIME", help="Replace a worker process when it is so old, such as 12h.")
    memory = click.option("--max-memory", metavar="SIZE", help="Replace it when it takes so much, such as 512MiB.")
    start = click.option(
        "--start-timeout", metavar="TIME", help="Kill a worker process that is not ready by then; 5m unless given."
    )
    return processes(jobs(age(memory(start(command)))))


def asked(
    processes: int | None,
    max_jobs: int | None,
    max_age: str | None,
    max_memory: str | None,
    start_timeout: str | None,
    grace: float,
) -> SupervisorOptions | None:
    """The supervisor that the command or `[tool.taskharbor]` asks for, None for a single worker."""
    processes = config.project_number("processes") if processes is None else processes
    max_jobs = config.project_number("max_jobs") if max_jobs is None else max_jobs
    max_age = max_age or config.project("max_age")
    max_memory = max_memory or config.project("max_memory")
    start_timeout = start_timeout or config.project("start_timeout")
    limits = Limits(
        max_jobs=max_jobs,
        max_age=None if max_age is None else span(max_age),
        max_memory=None if max_memory is None else size("max_memory", max_memory),
    )
    if processes is not None:
        options = SupervisorOptions(processes=processes, grace=grace, limits=limits)
        return options if start_timeout is None else replace(options, start_timeout=span(start_timeout))
    if start_timeout is not None:
        raise ConfigError("start_timeout needs a supervisor that kills workers: add --processes 1")
    if limits != Limits():
        raise ConfigError("max_jobs, max_age and max_memory need a supervisor that replaces workers: add --processes 1")
    return None


def supervise(arguments: Sequence[str], options: SupervisorOptions) -> int:
    """Run `taskharbor` with these arguments in several processes; return the exit code."""

    async def run() -> int:
        command = [sys.executable, "-m", "taskharbor", *arguments]
        return await Supervisor(command, options, _opened, SystemRandom()).run()

    # Not on the loop that others may have installed: uvloop keeps SIGCHLD to itself.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(run())


def _opened(url: str, store_timeout: float) -> Session:
    check_file(url)
    return Harbor(url, store_timeout=store_timeout).client.session


def report_to(link: SupervisorLink, harbor: Harbor, lease: float) -> None:
    """Let the workers of this context report to a supervisor."""
    session = harbor.client.session
    if session.url is not None and urlsplit(session.url).scheme == "memory":
        raise ConfigError("memory:// is a store inside one process: workers cannot share it; leave --processes out")

    def report(worker: RunningWorker) -> None:
        ready = WorkerReady(
            worker=worker.id,
            lease=lease,
            memory=resident(),
            store=None if session.url is None else config.whole_url(session.url),
            store_timeout=session.settings.store_timeout,
            keep_done=session.settings.retention.done.total_seconds(),
        )
        link.report(worker, ready)

    on_begin.set(report)
    on_wait.set(link.wait)
    on_stop.set(link.once)
