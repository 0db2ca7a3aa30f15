"""For all tests: the list of mutants and the time report, printed in parallel runs too, and real servers."""

import signal

import pytest

from mutants.table import pytest_terminal_summary
from servers.fixtures import new_postgres, postgres, postgres16, run_folder
from time_report import FLAG, TimeReport

__all__ = ["new_postgres", "postgres", "postgres16", "pytest_terminal_summary", "run_folder"]

# A shell starts what it runs in the background with SIGINT ignored, and a test that sends it would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(FLAG, action="store_true", help="say at the end where the time went")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(FLAG):
        config.pluginmanager.register(TimeReport(), "time-report")
