"""For all tests: the list of mutants and the time report, printed in parallel runs too, and real servers."""

import gc
import signal
from pathlib import Path

import pytest

from mutants.table import pytest_terminal_summary
from servers.fixtures import new_postgres, postgres, postgres16, run_folder
from time_report import FLAG, TimeReport

__all__ = ["new_postgres", "postgres", "postgres16", "pytest_terminal_summary", "run_folder"]

TESTS = Path(__file__).parent
# Within a rank the order stays as it was, so that fixtures of modules are made once.
RANK = {folder: rank for rank, folder in enumerate(("system", "cli", "sim", "mutants", "drivers"))}

# Twelve thousand tests are collected in every test process and stay: the collector would look through them in vain.
gc.set_threshold(20_000, 20, 20)

# A shell starts what it runs in the background with SIGINT ignored, and a test that sends it would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(FLAG, action="store_true", help="say at the end where the time went")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait go first: one test process works them off while the others use the cores. Short ones go last."""
    items.sort(key=lambda item: RANK.get(item.path.relative_to(TESTS).parts[0], len(RANK)))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(FLAG):
        config.pluginmanager.register(TimeReport(), "time-report")
