"""Pages of the docs as programs: blocks that begin with a file's name become that file, the others run in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from logged import unexpected

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"\A# ([\w/]+\.\w+)\b.*\n")


def text_of(page: str) -> str:
    """The text of a page."""
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in this language."""
    return [code for name, code in BLOCK.findall(text_of(page)) if name == language]


def table(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table with this text in its head, without the head."""
    lines = iter(text_of(page).splitlines())
    assert any(line.startswith("|") and heading in line for line in lines), f"{page}.md has no table with {heading!r}"
    next(lines)
    rows: list[list[str]] = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


def unpack(page: str, folder: Path) -> Path:
    """Write the files of a page, and one program of the other blocks; its path."""
    code: list[str] = []
    for block in blocks(page, "python"):
        if named := FILE.match(block):
            file = folder / named.group(1)
            if file.parent != folder:
                file.parent.mkdir(exist_ok=True)
                (file.parent / "__init__.py").touch()
            file.write_text(block, encoding="utf-8")
        else:
            code.append(block)
    program = folder / f"{page}_page.py"
    program.write_text("\n".join([*code, 'print("read to the end")']), encoding="utf-8")
    return program


def run_python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with warnings as errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def read_to_the_end(page: str, folder: Path, **environment: str) -> tuple[str, str]:
    """Run the blocks of a page; what they print, and what they complain about."""
    done = run_python(folder, str(unpack(page, folder)), **environment)
    return done.stdout, unexpected(done.stderr)
