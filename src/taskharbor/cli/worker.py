"""`taskharbor worker`: run jobs until stopped by a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import click

from taskharbor.cli import logs, reload, supervise
from taskharbor.cli.exits import FINE, complain, exit_code
from taskharbor.cli.target import here, target_options
from taskharbor.cli.types import queues, time_option
from taskharbor.errors import HarborError, MissingExtra
from taskharbor.harbor import Harbor
from taskharbor.supervisor.link import SupervisorLink

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
CLOSE_PATIENCE = 5.0


@click.command()
@click.argument("application", required=False, metavar="[MODULE:HARBOR]")
@click.option(
    "-Q",
    "--queues",
    "queue_lists",
    multiple=True,
    metavar="NAMES",
    help="a,b or with weights a=3,b=1; may be given several times. Default: the tasks' own.",
)
@click.option("-c", "--concurrency", type=click.IntRange(1), default=16, show_default=True, help="Jobs at a time.")
@time_option("--lease", help="How long a job's lease lasts without a heartbeat.", default="30s")
@time_option("--grace", help="How long a shutdown waits for running jobs.", default="25s")
@supervise.supervisor_options
@click.option("--reload", "reloading", is_flag=True, help="Restart whenever a .py file below this folder changes.")
@click.option("--uvloop", is_flag=True, help='Run on uvloop (pip install "taskharbor[fast]").')
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="Log from this level up.",
)
@target_options
def worker(
    application: str | None,
    queue_lists: tuple[str, ...],
    concurrency: int,
    lease: float,
    grace: float,
    processes: int | None,
    max_jobs: int | None,
    max_age: str | None,
    max_memory: str | None,
    start_timeout: str | None,
    reloading: bool,
    uvloop: bool,
    log_level: str,
) -> None:
    """Run jobs until SIGTERM or SIGINT (Ctrl-C).

    The first signal stops gracefully: no new jobs, running ones may finish within the grace time, the rest is cancelled
    and goes back to its queue without losing an attempt. A second signal does not wait.

    With --processes, SIGHUP replaces the worker processes one by one, with the code as it is then.
    """
    target = here()
    target.app = application or target.app
    if target.spec() is None:
        raise click.UsageError("name the application: `taskharbor worker shop:harbor`, or app in [tool.taskharbor]")
    names = queues(",".join(queue_lists) if queue_lists else None)
    link = SupervisorLink.inherited()
    supervised = None if link else supervise.asked(processes, max_jobs, max_age, max_memory, start_timeout, grace)
    if reloading:
        sys.exit(reload.supervise([word for word in sys.argv[1:] if word != "--reload"], log_level))
    loop_factory = _uvloop() if uvloop else None
    logs.configure(log_level)
    # As PID 1, a signal without a handler is ignored: install one before anything slow begins.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = FINE
    try:
        if supervised is not None:
            _end(supervise.supervise(sys.argv[1:], supervised))
        harbor = target.application()
        assert harbor is not None
        if link is not None:
            supervise.report_to(link, harbor, lease)
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_work(harbor, names, concurrency, lease, grace, link))
    except KeyboardInterrupt:
        pass
    except HarborError as error:
        complain(str(error))
        code = exit_code(error)
        if link is not None:
            link.end(code)
    _end(code)


async def _work(
    harbor: Harbor,
    names: list[str] | dict[str, int] | None,
    concurrency: int,
    lease: float,
    grace: float,
    link: SupervisorLink | None,
) -> None:
    await harbor.arun_worker(names, concurrency=concurrency, lease=lease, grace=grace, release_abandoned=True)
    if link is not None:
        link.end(FINE)
    with suppress(HarborError, TimeoutError):
        async with asyncio.timeout(CLOSE_PATIENCE):
            await harbor.aclose()
    _end(FINE)  # exit here: closing the loop would wait for threads that ignore their cancellation


def _end(code: int) -> NoReturn:
    """Exit at once: a stuck thread must not go on after its job was released."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _uvloop() -> LoopFactory:
    try:
        factory: LoopFactory = import_module("uvloop").new_event_loop
    except ImportError:
        raise MissingExtra('--uvloop needs a package that is not installed: pip install "taskharbor[fast]"') from None
    return factory
