"""FastAPI as docs/fastapi.md says: the page's application, by FastAPI's own test client and by its ASGI interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import read_to_the_end, run_python, unpack

AWAY = """
from fastapi.testclient import TestClient

from app import app, harbor
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing import LostRequest

away = LostRequest(MemoryDriver(), lambda verb: verb == "enqueue")
with harbor.stand_in(away), TestClient(app) as client:
    answer = client.post("/reports/2026-11")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5"), answer.text
"""

SLOW = """
from fastapi.testclient import TestClient

from app import app, harbor

with harbor.stand_in("memory://"), TestClient(app) as client:
    answer = client.get("/reports/2026-11")  # no worker is there
    assert answer.status_code == 503, answer.text
    job = answer.json()["detail"].rpartition("/")[2]
    assert client.get(f"/reports/jobs/{job}").json()["state"] == "ready"
    assert harbor.job(job).cancel()
    assert client.post("/reports/2026-11").json()["job"] != job  # the key was freed
    assert client.get(f"/reports/jobs/{job}").json()["state"] == "cancelled"
"""

BAD = """
from fastapi.testclient import TestClient

from app import app, harbor
from taskharbor import Unrecoverable


@harbor.middleware
async def broken(job, call_next):
    raise Unrecoverable("no data")


with harbor.stand_in("memory://"), TestClient(app) as client:
    job = client.post("/reports/2026-11").json()["job"]
    harbor.drain()
    assert client.get(f"/reports/jobs/{job}").json() == {"state": "dlq", "report": None}
    assert client.get("/reports/2026-11").status_code == 502
"""


def test_every_block_of_the_page_runs(tmp_path: Path) -> None:
    """P1, I1: blocking tests, an async one, and a worker beside the application."""
    assert read_to_the_end("fastapi", tmp_path) == ("read to the end\n", "")


@pytest.mark.parametrize("program", [AWAY, SLOW, BAD], ids=["away", "slow", "bad"])
def test_the_application_answers_when_something_is_wrong(program: str, tmp_path: Path) -> None:
    """X2, I2: a store that is away, no worker, a job that fails: each has an answer of its own."""
    unpack("fastapi", tmp_path)
    (tmp_path / "check.py").write_text(program, encoding="utf-8")
    done = run_python(tmp_path, "check.py")
    assert done.returncode == 0, done.stderr
