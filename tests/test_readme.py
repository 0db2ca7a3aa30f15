"""The README's program is run as it stands, and prints what the README says."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, containing: str) -> str:
    """The fenced block of this language that contains a text."""
    found: list[str] = [
        text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if containing in text
    ]
    assert len(found) == 1
    return found[0]


def test_the_first_program_prints_what_the_readme_says(tmp_path: Path) -> None:
    """G1, P4: five lines, one command, and the job's result comes back across processes."""
    (tmp_path / "hello.py").write_text(block("python", "def greet"), encoding="utf-8")
    lines = block("console", "hello:harbor").splitlines()
    worker_command, client_command = (line.removeprefix("$ ") for line in lines if line.startswith("$ "))
    expected = [line for line in lines if not line.startswith("$ ")]
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("TASKHARBOR_URL", None)

    worker = subprocess.Popen(shlex.split(worker_command.removesuffix("&")), cwd=tmp_path, env=environment)
    try:
        client = subprocess.run(
            shlex.split(client_command),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=60) == 0
    assert (client.stdout.splitlines(), client.stderr, client.returncode) == (expected, "", 0)


def test_the_readme_sells_and_starts_it_within_60_lines() -> None:
    """The two commands, the program, the comparison and the links fit on one screen or two."""
    head = "\n".join(README.splitlines()[:60])
    for needed in ("make demo", "make test", "Harbor()", "| |", "docs/semantics.md", "docs/architecture.md"):
        assert needed in head


def test_every_example_is_linked_from_the_docs() -> None:
    """Each can be found."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for example in (ROOT / "examples").glob("*.py"):
        assert f"](../examples/{example.name})" in index
    assert "](examples)" in README


def test_links_lead_somewhere() -> None:
    """Every relative link of README and docs names a file that exists."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
