"""Drivers of other packages: found by their entry point, opened and migrated like built-in ones (D13, C)."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

from taskharbor import Harbor
from taskharbor.cli import cli
from taskharbor.drivers import from_url
from taskharbor.errors import ConfigError
from taskharbor.testing import run

# A store in memory with two steps of a schema, which a class attribute remembers.
DRIVER = """
    from collections.abc import Callable
    from urllib.parse import SplitResult

    from taskharbor.driver import Migration
    from taskharbor.drivers.memory import MemoryDriver

    STEPS = ("0001_boxes", "0002_labels")


    class BoxDriver(MemoryDriver):
        name = "boxes"
        version = 0


    async def connect(url: SplitResult, options: dict[str, str]) -> BoxDriver:
        options.pop("size", None)
        return BoxDriver()


    async def migrate(
        url: SplitResult, options: dict[str, str], *, dry: bool, tell: Callable[[str], object]
    ) -> Migration:
        steps = STEPS[BoxDriver.version :]
        if not dry:
            for step in steps:
                tell(step)
            BoxDriver.version = len(STEPS)
        return Migration(what=f"boxes of {url.netloc}", version=len(STEPS), steps=steps, sql="pile up;\\n")
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution with two entry points: a module, and a function."""
    (tmp_path / "boxes.py").write_text(dedent(DRIVER), encoding="utf-8")
    info = tmp_path / "boxes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: boxes\nVersion: 1.0\n", encoding="utf-8")
    points = "[taskharbor.drivers]\nboxes = boxes\nplain = boxes:connect\n"
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "boxes", raising=False)


def migrate(*words: str) -> str:
    result = CliRunner().invoke(cli, ["migrate", *words])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("url", ["boxes://shelf?size=3", "plain://shelf"])
def test_jobs_run_in_the_store_of_an_entry_point(url: str) -> None:
    """D13: a module with `connect`, or the function itself."""
    harbor = Harbor(url)

    @harbor.task
    def double(number: int) -> int:
        return 2 * number

    with harbor.open():
        job = double.enqueue(21)
        assert harbor.drain() == 1
        assert job.result() == 42


def test_an_option_that_connect_does_not_take_is_refused() -> None:
    """X5: with its name."""
    with pytest.raises(ConfigError, match="'colour'"):
        run(from_url("boxes://shelf?size=3&colour=red"))


def test_its_schema_is_migrated_by_the_command() -> None:
    """C, D13: planned, printed, done once, then up to date."""
    what = "boxes of shelf"
    assert migrate("--plan", "boxes://shelf") == f"{what}: 2 steps to do: 0001_boxes, 0002_labels\n"
    assert migrate("--sql", "boxes://shelf") == "pile up;\n"
    assert migrate("boxes://shelf") == f"  0001_boxes\n  0002_labels\n{what}: 2 steps\n"
    assert migrate("boxes://shelf") == f"{what} is up to date (version 2)\n"


def test_its_schema_is_migrated_by_a_harbor() -> None:
    """D13: `Harbor.migrate` gives what the driver says."""
    told: list[str] = []
    found = Harbor("boxes://shelf").migrate(tell=told.append)
    assert found is not None
    assert (found.what, list(found.steps)) == ("boxes of shelf", told)


def test_without_migrate_a_store_needs_none() -> None:
    """C: an entry point that names only `connect` says so."""
    assert Harbor("plain://shelf").migrate() is None
    assert "plain:// needs no migration" in migrate("plain://shelf")
