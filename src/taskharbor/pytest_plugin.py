"""The pytest plugin: the fixture `taskharbor`, a test bed for the application's harbors (`docs/testing.md`).

pytest imports this module whenever the package is installed, so it imports nothing of the package until a test asks.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from taskharbor.harbor import Harbor
    from taskharbor.testing.bed import TestBed

URL = "memory://"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("taskharbor_url", "Store behind the harbors of tests that use the fixture `taskharbor`.", default=URL)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "taskharbor(url): the store of this test's fixture `taskharbor`.")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test with the marker has the fixture before all others, also if it does not ask for it.

    Neither the test nor its other fixtures must reach the real store.
    """
    names = getattr(item, "fixturenames", None)  # other plugins have tests without fixtures
    if names is not None and item.get_closest_marker("taskharbor") is not None:
        others = [name for name in names if name != "taskharbor"]
        vars(item)["fixturenames"] = ["taskharbor", *others]  # a parametrized test has one list for all its cases


@pytest.fixture
def taskharbor_url(request: pytest.FixtureRequest) -> str:
    """The test's store: by the marker `taskharbor(url=…)`, else by the ini option. Override it for one of your own."""
    marker = request.node.get_closest_marker("taskharbor")
    if marker is not None and (unknown := marker.kwargs.keys() - {"url"}):
        raise pytest.UsageError(f"@pytest.mark.taskharbor(url=…) has no option {', '.join(sorted(unknown))}")
    if marker is not None and (marker.args or "url" in marker.kwargs):
        return str(marker.args[0] if marker.args else marker.kwargs["url"])
    return str(request.config.getini("taskharbor_url"))


@pytest.fixture
def taskharbor_harbors() -> Sequence[Harbor] | None:
    """The harbors to put the store behind; None for all of the process. Override it to name some."""
    return None


@pytest.fixture
def taskharbor(taskharbor_url: str, taskharbor_harbors: Sequence[Harbor] | None) -> Generator[TestBed]:
    """A store of its own behind the application's harbors until the end of the test, and a clock to move."""
    from taskharbor.testing.bed import TestBed

    with TestBed(taskharbor_url, taskharbor_harbors) as bed:
        yield bed
