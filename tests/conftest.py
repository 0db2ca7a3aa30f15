"""The list of mutants is printed from here, so that it also appears when the tests run in parallel."""

from mutants.table import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]
