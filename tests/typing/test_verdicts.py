"""P2: right uses pass mypy --strict and pyright, wrong ones are flagged on their lines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from limits import LIMIT

CASES = Path(__file__).parent / "cases"
ROOT = Path(__file__).resolve().parents[2]
Verdicts = dict[int, str]
FILES = [str(CASES / "right.py"), str(CASES / "wrong.py")]


def by_mypy() -> dict[str, Verdicts]:
    """The lines that mypy --strict flags, with what it says, by file."""
    # By the settings of the project, so that what `make check` has cached holds here too.
    done = _run([sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-pretty", *FILES])
    found: dict[str, Verdicts] = {"right.py": {}, "wrong.py": {}}
    for name, line, text in re.findall(r"^.*cases/(\w+\.py):(\d+): error: (.*)$", done, re.MULTILINE):
        found[name][int(line)] = text
    return found


def by_pyright() -> dict[str, Verdicts]:
    """The lines that pyright flags in strict mode, with what it says, by file."""
    done = _run([str(Path(sys.executable).with_name("basedpyright")), "--outputjson", "--level", "error", *FILES])
    found: dict[str, Verdicts] = {"right.py": {}, "wrong.py": {}}
    for entry in json.loads(done)["generalDiagnostics"]:
        found[Path(entry["file"]).name][entry["range"]["start"]["line"] + 1] = entry["message"]
    return found


def _run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


Checker = Callable[[], dict[str, Verdicts]]
CHECKERS = [pytest.param(by_mypy, id="mypy"), pytest.param(by_pyright, id="pyright")]


@pytest.mark.parametrize("checker", CHECKERS)
def test_right_uses_pass_and_wrong_ones_are_flagged_on_their_lines(checker: Checker) -> None:
    """P2: with every type that is claimed by `assert_type`; arguments, options, results, decorators, recurring tasks.

    One test per checker, because it takes longer to start than to judge.
    """
    verdicts = checker()
    assert verdicts["right.py"] == {}
    lines = (CASES / "wrong.py").read_text(encoding="utf-8").splitlines()
    expected = {number: line for number, line in enumerate(lines, 1) if line.endswith("# E")}
    found = verdicts["wrong.py"]
    assert {number: line for number, line in expected.items() if number not in found} == {}
    assert {number: text for number, text in found.items() if number not in expected} == {}
    assert len(expected) > 110


def test_right_uses_also_run() -> None:
    """P2: the checkers agree with Python."""
    program = (CASES / "right.py").read_text(encoding="utf-8")
    defined = program[: program.index("# A task knows its kind")]
    names: dict[str, object] = {"__name__": "right"}
    exec(compile(defined, "right.py", "exec"), names)
    assert {"add", "fetch", "mail", "slow", "bare", "nightly", "ticking", "stacked", "stacked_async"} <= set(names)
