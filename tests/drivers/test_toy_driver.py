"""The driver of docs/writing-a-driver.md keeps the contract; it is found as one of another package (D14)."""

from __future__ import annotations

import ast
import asyncio
import os
import re
from itertools import count
from pathlib import Path
from textwrap import indent

import pytest

from pages import ROOT, blocks, text_of
from taskharbor import Harbor
from taskharbor.core.filter import Filter
from taskharbor.driver import Counters, Inspect, Registry, Schedules, WaitForWork, WorkflowStore, capability
from taskharbor.drivers import from_url
from taskharbor.errors import ConfigError, DriverUnavailable, StoreGone
from taskharbor.testing import run, simulation
from taskharbor.testing.kit import DriverKit, Harness, NewStore
from taskharbor.testing.kit.jobs import T0, group, job

EXAMPLE = ROOT / "examples" / "toy_driver.py"


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution with the entry point, also for processes that a test starts."""
    info = tmp_path / "toy_driver-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-driver\nVersion: 1.0\n", encoding="utf-8")
    (toml,) = blocks("writing-a-driver", "toml")
    (point,) = re.findall(r'^(\w+) = "(\w+)"$', toml, re.MULTILINE)
    (info / "entry_points.txt").write_text(f"[taskharbor.drivers]\n{' = '.join(point)}\n", encoding="utf-8")
    for folder in (tmp_path, EXAMPLE.parent):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(EXAMPLE.parent))))


class TestToy(DriverKit):
    """Every case for the protocols that the driver has."""

    histories = 40

    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        numbers = count()
        lacks = (WorkflowStore, Schedules, Registry, Counters, WaitForWork)
        return lambda: Harness(url=f"toy:///{tmp_path}/{next(numbers)}.log", lacks=lacks)


harbor = Harbor("memory://")


@harbor.task(name="charge")
async def charge(order: int) -> None:
    await asyncio.sleep(order)


async def orders(cluster: simulation.Cluster) -> None:
    cluster.workers(harbor, count=3, concurrency=4, lease=10)

    async def customer() -> None:
        order = 0
        while order < 10:
            try:
                await charge.using(idempotency_key=f"order {order}").aenqueue(order)
                order += 1
            except DriverUnavailable:
                await asyncio.sleep(1)

    await cluster.client(harbor, customer).ended.wait()


@pytest.mark.parametrize("seed", range(5))
def test_the_simulation_holds(seed: int, tmp_path: Path) -> None:
    """D14: a store for every seed."""
    faults = simulation.Faults(kills=30, pauses=60, lost_replies=0.02)
    simulation.assert_holds(orders, seed, driver=f"toy:///{tmp_path}/{seed}.log", faults=faults)


async def _stored(path: Path, *ids: str) -> list[str]:
    """Enqueue jobs and close the store; the ids of all jobs, the oldest first."""
    driver = await from_url(f"toy:///{path}")
    try:
        await driver.enqueue([group(job(id)) for id in ids], T0)
        return [each.id for each in await capability(driver, Inspect).query(Filter(), T0, 99)][::-1]
    finally:
        await driver.close()


@pytest.mark.parametrize("left", [b"\0" * 40, b"\xff" * 40, b"\0\0\0\x09", b"whole"], ids=repr)
def test_a_commit_that_was_cut_short_has_never_happened(left: bytes, tmp_path: Path) -> None:
    """D1, G2: its rest is ignored by readers and overwritten by the next commit."""
    path = tmp_path / "jobs.log"
    assert run(_stored(path, "a")) == ["a"]
    whole = path.read_bytes()
    path.write_bytes(whole + (whole[:-1] if left == b"whole" else left))
    assert run(_stored(path)) == ["a"]
    assert run(_stored(path, "b")) == ["a", "b"]
    assert run(_stored(path)) == ["a", "b"]


def test_a_log_that_was_deleted_is_noticed(tmp_path: Path) -> None:
    """X9: by the next call."""

    async def delete() -> None:
        driver = await from_url(f"toy:///{tmp_path}/jobs.log")
        (tmp_path / "jobs.log").unlink()
        with pytest.raises(StoreGone):
            await driver.enqueue([group(job())], T0)
        await driver.close()

    run(delete())


@pytest.mark.parametrize("url", ["toy://", "toy:///", "toy://host/jobs.log", "toy:///no/folder/jobs.log"])
def test_a_wrong_url_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X5: with the fix."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"three slashes|No such file"):
        run(from_url(url))


def test_it_imports_what_is_public() -> None:
    """P1: a driver of another package needs nothing that the reference does not list."""
    page = text_of("reference")
    tree = ast.parse(EXAMPLE.read_text(encoding="utf-8"))
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = {(str(it.module), name.name) for it in froms if "taskharbor" in str(it.module) for name in it.names}
    modules = {(home, name) for home, name in ours if f"`from {home}.{name} import …`" in page}
    sections = re.findall(r"^`from (\S+) import …`$(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    listed = {(home, name) for home, text in sections for name in re.findall(r"^### `(\w+)", text, re.MULTILINE)}
    assert len(modules) > 7
    assert ours - modules - listed == set()


def test_the_page_shows_the_code_that_is_tested() -> None:
    """Each paragraph of its blocks is in the example or in this file; imports work."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (EXAMPLE, Path(__file__)))
    paragraphs = [each.strip("\n") for block in blocks("writing-a-driver", "python") for each in block.split("\n\n")]
    imports = [each for each in paragraphs if each.startswith(("import ", "from "))]
    exec("\n".join(imports), {})
    code = [each for each in paragraphs if each not in imports]
    assert len(code) > 9
    assert [each for each in code if each not in sources and indent(each, "    ") not in sources] == []
