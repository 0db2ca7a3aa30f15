"""The kit itself: every case names its clause, and nothing is needed that was not asked for (D14)."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import taskharbor.testing
from limits import LIMIT
from taskharbor.testing.kit import BlockingKit, DriverKit, OwnTransactionKit

CLAUSE = re.compile(r"test_([GRTDLQIKNX]\d+)_[a-zA-Z0-9_]+")


class WholeKit(DriverKit, OwnTransactionKit, BlockingKit):
    """Every case there is."""

    __test__ = False


CASES = [name for name in dir(WholeKit) if name.startswith("test_")]


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 150


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_named_after_a_clause_that_its_docstring_names_too(name: str) -> None:
    found = CLAUSE.fullmatch(name)
    assert found is not None
    assert re.search(rf"\b{found[1]}\b|^D13, ", getattr(WholeKit, name).__doc__ or "")


@pytest.mark.parametrize("clause", [*(f"R{n}" for n in (1, 2, 3)), *(f"T{n}" for n in (1, 2, 3)), "I1", "I2", "I3"])
def test_no_clause_that_a_driver_can_break_is_left_out(clause: str) -> None:
    assert any(name.startswith(f"test_{clause}_") for name in CASES)


@pytest.mark.parametrize("number", range(1, 14))
def test_every_clause_of_the_driver_has_cases(number: int) -> None:
    assert sum(name.startswith(f"test_D{number}_") for name in CASES) >= 2


def test_no_case_hides_another_of_the_same_name() -> None:
    """D14: whichever kits are bound together."""
    names = [name for part in WholeKit.__mro__ for name in vars(part) if name.startswith("test_")]
    assert len(names) == len(set(names))


def python(code: str) -> str:
    """The output of a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT)
    return done.stdout.strip()


def test_the_tools_need_neither_pytest_nor_hypothesis() -> None:
    code = "import sys, taskharbor.testing; print([name for name in ('pytest', 'hypothesis') if name in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.parametrize(("missing", "module"), [("pytest", "kit"), ("hypothesis", "kit.machine")])
def test_a_missing_extra_is_named_with_its_fix(missing: str, module: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
from taskharbor.errors import MissingExtra
try:
    import taskharbor.testing.{module}
except MissingExtra as error:
    print(error)
"""
    assert 'pip install "taskharbor[testing]"' in python(code)


def test_the_exports_are_sorted_and_there() -> None:
    assert taskharbor.testing.__all__ == sorted(taskharbor.testing.__all__)
    assert all(hasattr(taskharbor.testing, name) for name in taskharbor.testing.__all__)
