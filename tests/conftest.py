"""For all tests: the list of mutants, printed from here so that it appears in parallel runs too, and real servers."""

import signal

from mutants.table import pytest_terminal_summary
from servers.fixtures import new_postgres, postgres, postgres16, run_folder

__all__ = ["new_postgres", "postgres", "postgres16", "pytest_terminal_summary", "run_folder"]

# A shell starts what it runs in the background with SIGINT ignored, and a test that sends it would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
