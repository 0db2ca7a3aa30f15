"""docs/reference.md is the public surface, and what is not in it says that it is internal."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from limits import LIMIT

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "taskharbor"
# Whose names the page lists, or that are run, not imported.
PUBLIC = {
    *("__init__.py", "__main__.py", "errors.py", "flow.py", "harbor.py", "pytest_plugin.py", "task.py"),
    *("driver/__init__.py", "drivers/__init__.py", "manager/__init__.py", "testing/__init__.py"),
    *("testing/check/__init__.py", "testing/check/__main__.py", "testing/kit/__init__.py", "testing/recorder.py"),
    *("testing/simulation/__init__.py", "testing/simulation/__main__.py"),
}
MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def test_the_page_is_what_the_code_says() -> None:
    """P1: names, signatures and docstrings are those of the code."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert (done.returncode, done.stderr) == (0, "")


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


@pytest.mark.parametrize("module", sorted(set(MODULES) - PUBLIC))
def test_what_is_not_public_says_so(module: str) -> None:
    """P1: by an underscore, or in its docstring or that of a package around it."""
    packages = [folder / "__init__.py" for folder in (SOURCE / module).parents if folder.is_relative_to(SOURCE)]
    said = any("nternal" in _docstring(path) for path in (SOURCE / module, *packages[:-1]))
    assert said or Path(module).name.startswith("_")
