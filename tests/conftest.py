"""For all tests: the list of mutants and the time report, printed in parallel runs too, and real servers."""

import gc
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from mutants.table import pytest_terminal_summary
from servers.fixtures import (
    nats,
    nats_cluster,
    new_nats,
    new_postgres,
    new_valkey,
    postgres,
    postgres16,
    run_folder,
    valkey,
)
from time_report import FLAG, TimeReport

__all__ = [
    "nats",
    "nats_cluster",
    "new_nats",
    "new_postgres",
    "new_valkey",
    "postgres",
    "postgres16",
    "pytest_terminal_summary",
    "run_folder",
    "valkey",
]

TESTS = Path(__file__).parent
# Within a rank the order stays as it was, so that fixtures of modules are made once.
RANK = {folder: rank for rank, folder in enumerate(("system", "cli", "sim", "mutants", "drivers"))}

# Twelve thousand tests are collected in every test process and stay: the collector would look through them in vain.
gc.set_threshold(20_000, 20, 20)

# A shell starts what it runs in the background with SIGINT ignored, and a test that sends it would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Under `nohup` SIGHUP is ignored, which commands that tests start would inherit and respect; a handler they do not.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(FLAG, action="store_true", help="say at the end where the time went")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait go first: one test process works them off while the others use the cores. Short ones go last."""
    items.sort(key=lambda item: RANK.get(item.path.relative_to(TESTS).parts[0], len(RANK)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the output of a process that was waited for too long."""
    report = yield
    if call.excinfo is not None and isinstance(error := call.excinfo.value, subprocess.TimeoutExpired):
        for name, said in (("stdout", error.stdout), ("stderr", error.stderr)):
            text = said.decode(errors="replace") if isinstance(said, bytes) else said
            report.sections.append((f"{name} of {error.cmd}", text or ""))
    return report


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(FLAG):
        config.pluginmanager.register(TimeReport(), "time-report")
