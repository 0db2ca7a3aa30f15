"""No wait for another process is without a limit: a test that hangs says nothing, and stops the whole run."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

import limits

TESTS = Path(__file__).parent
RUNS = {"run", "call", "check_call", "check_output", "getoutput"}
WAITS = {"wait": 0, "communicate": 1}  # the number of positional arguments before the timeout
PROCESSES = {"process", "_process", "worker", "child", "supervisor", "client", "running", "program", "_server"}
HOLDS = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])"
STAYS = "import sys, time; print('stuck', file=sys.stderr); print('at work'); time.sleep(1000)"


def started(code: str) -> subprocess.Popen[str]:
    """A process that runs this code."""
    command = [sys.executable, "-u", "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def listened(process: subprocess.Popen[str]) -> threading.Thread:
    """A thread that reads what it says."""
    assert process.stdout is not None
    thread = threading.Thread(target=list, args=(process.stdout,), daemon=True)
    thread.start()
    return thread


def test_what_takes_too_long_is_killed_and_named() -> None:
    """The read ends, and the failure says what was waited for."""
    process = started(STAYS)
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    told = r"(?s)not within 0\.1 s: a second line .* was killed.*stuck"
    with pytest.raises(AssertionError, match=told), limits.limited(process, "a second line", 0.1):
        process.stdout.readline()
    assert process.returncode == -9


def test_a_failure_inside_is_raised_and_ends_the_process() -> None:
    """Leaving the block does not wait for a process that goes on."""
    process = started(STAYS)
    with pytest.raises(ZeroDivisionError), limits.limited(process, "nothing"):
        raise ZeroDivisionError
    assert process.returncode == -9


def test_a_process_that_was_killed_takes_those_along_that_hold_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """To close a pipe that a thread reads would wait for them."""
    monkeypatch.setattr(limits, "GRACE", 0.1)
    process = started(f"{HOLDS}; print('ready', flush=True); import time; time.sleep(1000)")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    listener = listened(process)
    limits.end(process, listener)
    assert not listener.is_alive()


def test_a_process_that_leaves_others_behind_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are named, and killed."""
    monkeypatch.setattr(limits, "GRACE", 0.1)
    process = started(HOLDS)
    listener = listened(process)
    assert process.wait(limits.LIMIT) == 0
    with pytest.raises(AssertionError, match=r"ended and left processes behind: .*time\.sleep\(1000\)"):
        limits.end(process, listener)
    assert not listener.is_alive()
    limits.end(process, listener)


def test_every_wait_for_a_process_has_a_limit() -> None:
    """By the text of all tests: `timeout=`, or `limits`."""
    found = [
        f"{file.relative_to(TESTS)}:{line}: {what}"
        for file in sorted(TESTS.rglob("*.py"))
        for line, what in unlimited(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert found == []


def unlimited(tree: ast.AST) -> Generator[tuple[int, str]]:
    """The waits without a limit; of `wait` and `communicate` those of what is a process by its name here."""
    awaited = {node.value for node in ast.walk(tree) if isinstance(node, ast.Await)}
    watched = {inner for node in ast.walk(tree) if _is_limited(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.withitem) and _holds_process(node.context_expr):
            yield node.context_expr.lineno, "to leave this block waits for the process: use limits.limited"
        if isinstance(node, ast.For | ast.comprehension) and node not in watched and _reads(node.iter):
            yield node.iter.lineno, "to read to the end waits for the process: use limits.limited"
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node in awaited:
            continue
        name, of = node.func.attr, ast.unparse(node.func.value)
        named = any(keyword.arg in ("timeout", None) for keyword in node.keywords)
        if of == "subprocess" and name in RUNS and not named:
            yield node.lineno, f"subprocess.{name} without timeout="
        if name in WAITS and not named and len(node.args) <= WAITS[name] and _is_process(of, name):
            yield node.lineno, f"{of}.{name} without a timeout"


def _is_limited(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any("limits.limited(" in ast.unparse(item) for item in node.items)


def _holds_process(expression: ast.expr) -> bool:
    text = ast.unparse(expression)
    return text.startswith("subprocess.Popen(") or text in PROCESSES


def _reads(expression: ast.expr) -> bool:
    """Whether it is the output of a process; a thread may read that of `self`."""
    text = ast.unparse(expression)
    return text.endswith((".stdout", ".stderr")) and not text.startswith("self.")


def _is_process(of: str, verb: str) -> bool:
    return verb == "communicate" or of.split(".")[-1] in PROCESSES


@pytest.mark.parametrize(
    ("text", "is_limited"),
    [
        ("subprocess.run(x)", False),
        ("subprocess.run(x, timeout=1)", True),
        ("subprocess.run(x, **given)", True),
        ("with subprocess.Popen(x) as it: pass", False),
        ("with process: pass", False),
        ("for line in process.stdout: pass", False),
        ("next(line for line in process.stdout)", False),
        ("with limits.limited(process, 'it'):\n    for line in process.stdout: pass", True),
        ("worker.wait()", False),
        ("worker.wait(60)", True),
        ("process.communicate()", False),
        ("process.communicate('x', timeout=1)", True),
        ("async def f(): await worker.wait()", True),
        ("event.wait()", True),
    ],
)
def test_what_has_no_limit(text: str, is_limited: bool) -> None:
    """The look itself is tried."""
    assert (list(unlimited(ast.parse(text))) == []) is is_limited
