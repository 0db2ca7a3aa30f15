"""The pytest plugin, in test runs of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from limits import LIMIT
from pages import run_python, unpack

pytest_plugins = "pytester"

APP = """
from taskharbor import Harbor

harbor = Harbor("sqlite:///own.db")
seen = []


@harbor.task
def work(number: int) -> None:
    seen.append(number)
    if number < 0:
        raise ValueError("no such number")
"""
FORGETFUL = """
from datetime import date

from shop import send_invoice


def test_without_the_fixture():
    send_invoice.enqueue(7, due=date(2026, 1, 31))
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with an application; its own store must stay away."""
    pytester.makepyfile(app=APP)
    return pytester


def passed(suite: pytest.Pytester, tests: str, number: int = 1, *options: str) -> None:
    """Run these tests in a process of their own, where modules are imported once; all of them pass."""
    suite.makepyfile(test_it=tests)
    suite.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers", *options).assert_outcomes(passed=number)
    assert not (suite.path / "own.db").exists()


def test_blocking_tests_async_tests_and_threads(suite: pytest.Pytester) -> None:
    """P: each has an empty store, also if it imports the application itself, by whatever plugin it is run."""
    passed(
        suite,
        """
        import asyncio
        import threading

        import pytest


        @pytest.mark.parametrize("number", [1, 2])
        def test_here(taskharbor, number):
            from app import seen, work

            work.enqueue(number)
            assert [job.arguments for job in taskharbor.enqueued(work)] == [{"number": number}]
            assert taskharbor.drain() == 1
            assert seen[-1] == number


        def test_there(taskharbor):
            from app import work

            thread = threading.Thread(target=work.enqueue, args=(3,))
            thread.start()
            thread.join()
            assert taskharbor.drain() == 1


        def test_a_failure(taskharbor):
            from app import work

            work.enqueue(-1)
            with pytest.raises(ValueError, match="no such number"):
                taskharbor.drain()


        @pytest.fixture
        def anyio_backend():
            return "asyncio"


        @pytest.mark.anyio
        async def test_by_anyio(taskharbor):
            from app import work

            await work.aenqueue(1)
            assert len(await taskharbor.aenqueued(work)) == 1
            assert await taskharbor.adrain() == 1


        def test_by_asyncio(taskharbor):
            from app import work

            async def test():
                await work.aenqueue(1)
                assert await taskharbor.adrain() == 1

            asyncio.run(test())
        """,
        6,
    )


def test_a_store_by_the_marker(suite: pytest.Pytester) -> None:
    """P: for one test."""
    passed(
        suite,
        """
        import pathlib

        import pytest
        from app import work


        @pytest.mark.taskharbor(url="sqlite:///marked.db")
        def test_marked(taskharbor):
            work.enqueue(1)
            assert taskharbor.drain() == 1
            assert pathlib.Path("marked.db").exists()


        @pytest.mark.taskharbor("sqlite:///placed.db")
        def test_placed(taskharbor):
            assert taskharbor.url == "sqlite:///placed.db"


        @pytest.mark.taskharbor
        def test_bare(taskharbor):
            assert taskharbor.url == "memory://"
        """,
        3,
    )


def test_the_marker_alone_keeps_the_test_from_the_real_store(suite: pytest.Pytester) -> None:
    """P: on a function, a class and a `TestCase`; fixtures that enqueue have the test's store already."""
    passed(
        suite,
        """
        import unittest

        import pytest
        from app import harbor, work


        @pytest.fixture
        def job():
            return work.enqueue(1)


        @pytest.mark.taskharbor
        def test_marked(job):
            assert job.state() == "ready"


        @pytest.mark.taskharbor
        class TestMarked:
            def test_it(self, job):
                assert job.state() == "ready"


        @pytest.mark.taskharbor
        class TestCase(unittest.TestCase):
            def test_it(self):
                assert work.enqueue(1).state() == "ready"
        """,
        3,
    )


def test_the_marker_is_for_the_cases_that_have_it(suite: pytest.Pytester) -> None:
    """P: the cases of a parametrized test share one list of fixtures."""
    passed(
        suite,
        """
        import pytest


        @pytest.mark.parametrize("marked", [pytest.param(True, marks=pytest.mark.taskharbor), False])
        def test_it(marked, request):
            assert ("taskharbor" in request.node.funcargs) is marked
        """,
        2,
    )


def test_fixtures_of_a_test_that_takes_the_fixture_have_its_store_too(suite: pytest.Pytester) -> None:
    """P: also those that come by themselves, which pytest would make before it."""
    passed(
        suite,
        """
        import pytest
        from app import work


        @pytest.fixture(autouse=True)
        def job():
            return work.enqueue(1)


        @pytest.mark.taskharbor
        def test_it(taskharbor, job):
            assert [found.id for found in taskharbor.enqueued(work)] == [job.id]
        """,
    )


def test_an_unknown_option_of_the_marker_is_refused(suite: pytest.Pytester) -> None:
    """X5: the test would run on another store than the one it names."""
    suite.makepyfile(
        """
        import pytest


        @pytest.mark.taskharbor(uri="sqlite:///marked.db")
        def test_it(taskharbor): ...
        """
    )
    result = suite.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines("*UsageError: @pytest.mark.taskharbor(url=…) has no option uri*")


def test_a_store_by_the_configuration(suite: pytest.Pytester) -> None:
    """P: for all tests."""
    suite.makeini("[pytest]\ntaskharbor_url = sqlite:///configured.db\n")
    suite.makepyfile("def test_it(taskharbor): assert taskharbor.url == 'sqlite:///configured.db'")
    suite.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_a_store_and_harbors_by_fixtures(suite: pytest.Pytester) -> None:
    """P: what a conftest says goes first."""
    suite.makeconftest(
        """
        import pytest
        from app import harbor


        @pytest.fixture
        def taskharbor_url(tmp_path):
            return f"sqlite:///{tmp_path}/jobs.db"


        @pytest.fixture
        def taskharbor_harbors():
            return [harbor]
        """
    )
    passed(
        suite,
        """
        from app import harbor, work
        from taskharbor import Harbor


        def test_it(taskharbor, tmp_path):
            other = Harbor("memory://")
            work.enqueue(1)
            assert taskharbor.drain() == 1
            assert taskharbor.harbors == [harbor]
            assert (tmp_path / "jobs.db").exists()
        """,
    )


def test_the_plugin_explains_itself(suite: pytest.Pytester) -> None:
    """P: `--markers` and `--fixtures`."""
    suite.runpytest_inprocess("--markers").stdout.fnmatch_lines("*@pytest.mark.taskharbor(url)*")
    suite.runpytest_inprocess("--fixtures").stdout.fnmatch_lines(["taskharbor_url*", "taskharbor_harbors*"])


def test_the_plugin_costs_nothing_until_it_is_used(tmp_path: Path) -> None:
    """P: pytest loads it wherever the package is installed; what it needs is imported by the first test that asks."""
    (tmp_path / "test_it.py").write_text(
        """
import sys


def test_nothing_is_imported(pytestconfig):
    assert pytestconfig.pluginmanager.hasplugin("taskharbor")
    ours = {name for name in sys.modules if name.partition(".")[0] in ("taskharbor", "msgspec", "apsw")}
    assert ours == {"taskharbor", "taskharbor.pytest_plugin", "taskharbor.version"}
""",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout


def test_the_tests_of_the_page_run(tmp_path: Path) -> None:
    """P: in the store of the page's own conftest, by FastAPI's test client, and by Django's runner."""
    unpack("testing", tmp_path)
    pytest_it = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    (tmp_path / "test_forgetful.py").write_text(FORGETFUL, encoding="utf-8")
    tested = run_python(tmp_path, *pytest_it, "test_shop.py", "test_web.py", "test_forgetful.py")
    assert "7 passed" in tested.stdout, tested.stdout  # also one that does not take the fixture
    (tmp_path / "conftest.py").unlink()
    tested = run_python(tmp_path, *pytest_it, "test_shop.py", "test_web.py")
    assert "6 passed" in tested.stdout, tested.stdout
    django = run_python(tmp_path, "-m", "django", "test", DJANGO_SETTINGS_MODULE="bookshop.settings")
    assert "Ran 1 test" in django.stderr, django.stderr
    assert django.returncode == 0, django.stderr
    assert not (tmp_path / "taskharbor.db").exists()
