"""The application and the store: -A, --url, the environment, pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import pytest

from taskharbor import config

from .desk import Desk


def test_a_look_never_makes_a_store(desk: Desk) -> None:
    """C, X5: exit 3 and a clear line, no new file."""
    for words in (["jobs", "ls"], ["jobs", "show", "x"], ["dlq", "ls"], ["dlq", "replay", "x"], ["stats"], ["health"]):
        complaint = desk.bad(3, *words, "--url", "sqlite:///nothing.db")
        assert f"there is no store {desk.folder / 'nothing.db'}: " in complaint
        assert "--url" in complaint
    assert not list(desk.folder.glob("nothing.db*"))


def test_a_name_with_odd_characters_is_looked_for_as_it_is(desk: Desk) -> None:
    """X5: percent signs in a URL encode characters of the file's name."""
    desk.good("enqueue", "far.away", "--url", "sqlite:///my%20jobs%23.db")
    assert (desk.folder / "my jobs#.db").is_file()
    assert len(desk.json("jobs", "ls", "--url", "sqlite:///my%20jobs%23.db")) == 1


def test_options_stand_before_or_after_the_command(desk: Desk) -> None:
    """C: `taskharbor -A shop:harbor jobs ls` and `taskharbor jobs ls -A shop:harbor`."""
    desk.enqueue("shop.welcome", "user_id=1")
    assert len(desk.json("-A", "shop:harbor", "jobs", "ls")) == 1
    assert len(desk.json("jobs", "ls", "-A", "shop:harbor")) == 1
    assert len(desk.json("--url", desk.url, "jobs", "ls")) == 1


def test_reading_by_url_imports_no_application(desk: Desk) -> None:
    """C: nothing of the application is imported, however the URL is given, even if pyproject.toml names one."""
    desk.good("enqueue", "far.away", "--url", desk.url)
    desk.pyproject(app="shop:harbor")
    desk.good("jobs", "ls", "--url", desk.url)
    desk.pyproject(app="shop:harbor", url=desk.url)
    desk.good("stats")
    desk.run("health")
    assert "shop" not in sys.modules


def test_the_environment_names_the_store(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """P: TASKHARBOR_URL goes before pyproject.toml, and an application named there is not imported."""
    monkeypatch.setenv("TASKHARBOR_URL", "sqlite:///other.db")
    desk.good("enqueue", "far.away")
    desk.pyproject(app="shop:harbor", url="sqlite:///nothing.db")
    assert len(desk.json("jobs", "ls")) == 1
    assert "shop" not in sys.modules


def test_the_application_of_pyproject_names_the_store_if_nothing_else_does(desk: Desk) -> None:
    """C: `[tool.taskharbor] app`."""
    desk.pyproject(app="shop:harbor")
    assert desk.json("enqueue", "shop.welcome", "user_id=1")["created"]
    assert (desk.folder / "jobs.db").is_file()
    assert len(desk.json("jobs", "ls")) == 1


def test_url_wins_over_the_applications_own(desk: Desk) -> None:
    """C: --url."""
    desk.good("enqueue", "-A", "shop:harbor", "--url", "sqlite:///other.db", "shop.welcome", "user_id=1")
    assert not (desk.folder / "jobs.db").exists()
    (job,) = desk.json("jobs", "ls", "--url", "sqlite:///other.db")
    assert job["queue"] == "mail"


def test_a_module_with_one_harbor_is_enough(desk: Desk) -> None:
    """C: `-A shop`."""
    desk.good("enqueue", "-A", "shop", "shop.welcome", "user_id=1")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nowhere:harbor", "no module 'nowhere'"),
        ("shop.nowhere:harbor", "no module 'shop.nowhere'"),
        ("shop.harbor", "no module 'shop.harbor' in"),
        ("shop.harbor", "; did you mean shop:harbor?"),
        ("shop:nothing", "nothing is not a Harbor; harbors in shop: harbor"),
        ("shop:welcome", "welcome is not a Harbor"),
        ("shop:harbor.url", "harbor.url is not a Harbor"),
        (":harbor", "module:harbor"),
        ("./shop.py:harbor", "module:harbor"),
        ("shop.py:harbor", "names a file: write the module, shop:harbor"),
        ("shop.py", "names a file: write the module, shop:harbor"),
        ("two", "two:east, two:west"),
        ("broken:harbor", "line 2: ZeroDivisionError: division by zero"),
        ("typo:harbor", "typo.py line 1: SyntaxError"),
        ("quitter:harbor", "SystemExit"),
        ("needy:harbor", "ModuleNotFoundError: No module named 'not_there'"),
        ("eager:harbor", "eager.py line 6: TimeoutError: job "),
    ],
)
def test_an_application_that_cannot_be_had(desk: Desk, spec: str, said: str) -> None:
    """C, X5: exit 2 and one line that says what is wrong and where."""
    harbors = "from taskharbor import Harbor\neast, west = Harbor(), Harbor()\n"
    for name, code in {
        "two": harbors,
        "broken": "x = 1\n1 / 0\n",
        "typo": "def (",
        "quitter": "raise SystemExit(0)",
        "needy": "import not_there",
        "eager": "from taskharbor import Harbor\nharbor = Harbor('memory://')\n"
        "@harbor.task\ndef greet() -> None:\n    pass\ngreet.enqueue().result(timeout=0)\n",
    }.items():
        (desk.folder / f"{name}.py").write_text(code, encoding="utf-8")
    assert said in desk.bad(2, "jobs", "ls", "-A", spec)


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("jobs.db", 2, "sqlite:///taskharbor.db"),
        ("mysql://host/jobs", 2, "no driver for mysql://"),
        ("nats://host/jobs", 2, "NATS has no databases"),
        ("sqlite:///jobs.db?colour=blue", 2, "colour"),
        ("sqlite://jobs.db", 2, "sqlite:///jobs.db"),
        ("sqlite:///", 2, "names a file"),
        ("postgresql://me:secret@host/db?x=1&x=2", 2, "names an option twice"),
    ],
)
def test_a_broken_url(desk: Desk, url: str, code: int, said: str) -> None:
    """X5: the line names the fix, and no password."""
    (desk.folder / "jobs.db").touch()
    complaint = desk.bad(code, "jobs", "ls", "--url", url)
    assert said in complaint
    assert "secret" not in complaint


def test_a_file_that_is_not_a_store(desk: Desk) -> None:
    """C, X5: exit 3, and the file stays as it is."""
    (desk.folder / "notes.txt").write_text("milk, bread, " * 1000, encoding="utf-8")
    before = Path("notes.txt").read_bytes()
    assert "notes.txt" in desk.bad(3, "jobs", "ls", "--url", "sqlite:///notes.txt")
    assert Path("notes.txt").read_bytes() == before


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:////proc/jobs.db", "cannot use /proc/jobs.db as a store: no files can be made in /proc"),
        ("sqlite:////dev/null", "cannot use /dev/null as a store: it is not an ordinary file"),
        ("sqlite:///.", "it is a folder; name a file in it"),
        ("sqlite:///shop.py/jobs.db", "shop.py is a file, not a folder"),
        ("sqlite:///no/where/jobs.db", "there is no folder"),
    ],
)
def test_a_path_that_cannot_be_used(desk: Desk, url: str, said: str) -> None:
    """X5, C: exit 2, one line with the path, the cause and the fix; no traceback."""
    assert said in desk.bad(2, "enqueue", "far.away", "--url", url)


def test_a_working_folder_that_was_deleted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """X5, C: likewise."""
    gone = desk.folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for words in (["stats"], ["enqueue", "-A", "shop", "shop.hang"]):
        assert "the working folder was deleted: change to another one" in desk.bad(2, *words)


def test_whatever_the_system_refuses_is_one_line(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """C: never a traceback."""

    def refuse(_: str) -> NoReturn:
        raise PermissionError(13, "Permission denied", "/etc/shadow")

    monkeypatch.setattr(config, "project", refuse)
    assert desk.bad(1, "stats") == "Permission denied: /etc/shadow"


def test_a_broken_pyproject(desk: Desk) -> None:
    """X5: exit 2 and the name of the file."""
    (desk.folder / "pyproject.toml").write_text("[tool.taskharbor\n", encoding="utf-8")
    assert "pyproject.toml cannot be read" in desk.bad(2, "jobs", "ls")
    (desk.folder / "pyproject.toml").write_text("[tool.taskharbor]\napp = 5\n", encoding="utf-8")
    assert "app must be text" in desk.bad(2, "jobs", "ls")
