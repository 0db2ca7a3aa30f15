"""The code of the docs runs, block after block, in one process as a reader would type it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import limits
from pages import DOCS, ROOT, blocks, read_to_the_end
from servers.postgres import PostgresServer

PAGES = [
    "agents",
    "dead-letters",
    "guide",
    "idempotency",
    "leases",
    "operating",
    "processes",
    "recurring",
    "retries",
    "testing",
    "workflows",
]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_runs(page: str, tmp_path: Path) -> None:
    """P1, F4, D9, Q2, I1, N2, N5: what the page asserts, holds."""
    assert read_to_the_end(page, tmp_path) == ("read to the end\n", "")


def test_moving_to_postgres_takes_what_the_guide_says(tmp_path: Path, postgres: PostgresServer) -> None:
    """P: the README's program, its code as it is, by the guide's commands; only the address is another."""
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "hello.py").write_text(program, encoding="utf-8")
    section = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8").partition("## From SQLite to PostgreSQL")[2]
    (block,) = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    install, export, migrate, work = (line.removeprefix("$ ") for line in block.splitlines())
    assert install == "pip install '.[postgres]'  # in a clone"
    name = export.removeprefix("export ").partition("=")[0]
    place: dict[str, Any] = {
        "cwd": tmp_path,
        "env": {**os.environ, name: postgres.url(postgres.new_database())},
        "timeout": 120,
        "capture_output": True,
        "text": True,
        "check": True,
    }
    ours = [sys.executable, "-m"]
    assert "schema taskharbor: " in subprocess.run([*ours, *migrate.split()], **place).stdout
    enqueue = "from hello import greet; print(greet.enqueue('Ada').result(timeout=60))"
    worker = subprocess.Popen([*ours, *work.split()], cwd=tmp_path, env=place["env"])
    with limits.limited(worker, "a worker that runs one job and stops"):
        assert subprocess.run([sys.executable, "-c", enqueue], **place).stdout == "Ahoy, Ada!\n"
        worker.terminate()
        assert worker.wait(timeout=60) == 0
    assert not (tmp_path / "taskharbor.db").exists()


def test_the_page_on_transactions_runs_on_a_real_server(tmp_path: Path, postgres: PostgresServer) -> None:
    """D9, D13: the page takes the server from its environment, as an application would."""
    database = postgres.new_database()
    url, jobs = postgres.url(database), postgres.url(database, migrate="true")
    told = read_to_the_end("transactions", tmp_path, DATABASE_URL=url, TASKHARBOR_URL=jobs)
    assert told == ("read to the end\n", "")


def test_no_page_has_code_that_is_not_run() -> None:
    """Pages with Python are run here, or by the tests of their framework, server or driver."""
    elsewhere = {"django", "fastapi", "nats", "redis", "transactions", "writing-a-driver"}
    assert {path.stem for path in DOCS.glob("*.md") if blocks(path.stem, "python")} == {*PAGES, *elsewhere}
