"""Where the URL comes from, and what a task is called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from limits import LIMIT
from taskharbor import Harbor
from taskharbor.config import DEFAULT_URL, URL_VARIABLE, project, project_list, shown_url, store_url
from taskharbor.errors import ConfigError


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with nothing in it, and no variable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    return tmp_path


def test_argument_then_variable_then_pyproject_then_default(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P."""
    assert store_url(None) == Harbor().url == DEFAULT_URL == "sqlite:///taskharbor.db"
    (empty_folder / "pyproject.toml").write_text('[tool.taskharbor]\nurl = "memory://?from=pyproject"\n')
    assert Harbor().url == "memory://?from=pyproject"
    monkeypatch.setenv(URL_VARIABLE, "memory://?from=variable")
    assert Harbor().url == "memory://?from=variable"
    assert Harbor("memory://?from=argument").url == "memory://?from=argument"
    monkeypatch.setenv(URL_VARIABLE, "")
    assert Harbor().url == "memory://?from=pyproject"
    assert not (empty_folder / "taskharbor.db").exists()


def test_the_nearest_pyproject_counts(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_folder / "pyproject.toml").write_text('[tool.taskharbor]\nurl = "memory://?outer=1"\n')
    inner = empty_folder / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert store_url(None) == "memory://?outer=1"
    (inner / "pyproject.toml").write_text('[tool.taskharbor]\napp = "shop:harbor"\n')
    assert store_url(None) == DEFAULT_URL
    assert project("app") == "shop:harbor"


def test_modules_to_include_are_a_list(empty_folder: Path) -> None:
    """C: `[tool.taskharbor] include`."""
    assert project_list("include") == []
    for content, says in (('"shop.mail"', "must be a list"), ('["shop.mail", 1]', "a list of texts")):
        (empty_folder / "pyproject.toml").write_text(f"[tool.taskharbor]\ninclude = {content}\n")
        with pytest.raises(ConfigError, match=says):
            project_list("include")
    (empty_folder / "pyproject.toml").write_text('[tool.taskharbor]\ninclude = ["shop.mail"]\n')
    assert project_list("include") == ["shop.mail"]


def test_a_url_is_shown_with_its_file_and_without_its_password(empty_folder: Path) -> None:
    """X5: what logs say about a store."""
    assert shown_url("sqlite:///jobs.db") == f"sqlite:///{empty_folder}/jobs.db"
    assert shown_url("sqlite:////var/jobs.db") == "sqlite:////var/jobs.db"
    assert shown_url("postgresql://me:secret@db/app?password=more") == "postgresql://me:***@db/app?password=***"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[tool.taskharbor]\nurl = 3\n", "url must be text"),
        ('[tool.taskharbor]\nulr = "memory://"\n', "has no 'ulr' .did you mean 'url'"),
        ("[tool\n", "cannot be read"),
        ('tool = "x"\n', "must be a table"),
        ('[tool]\ntaskharbor = "memory://"\n', "must be a table"),
    ],
)
def test_a_broken_pyproject_is_named(empty_folder: Path, content: str, says: str) -> None:
    """X5: unless the URL is given anyway."""
    (empty_folder / "pyproject.toml").write_text(content)
    with pytest.raises(ConfigError, match=says):
        Harbor()
    assert Harbor("memory://").url == "memory://"


@pytest.mark.parametrize(
    "content",
    [
        '[tool.taskharbor]\nurl = ["postgresql://me:hunter2@host/db"]\n',
        '[tool]\ntaskharbor = "postgresql://me:hunter2@host/db"\n',
        '[tool.taskharbor]\nurl = "me:hunter2@host/db"\n',
    ],
)
def test_a_broken_pyproject_is_named_without_its_password(empty_folder: Path, content: str) -> None:
    """X5."""
    (empty_folder / "pyproject.toml").write_text(content)
    with pytest.raises(ConfigError) as caught:
        Harbor()
    assert "hunter2" not in str(caught.value)


class Url:
    """Such as settings libraries have, which print themselves with all that is in them."""

    def __repr__(self) -> str:
        return "Url('postgresql://me:hunter2@host/db')"


@pytest.mark.parametrize("given", [Url(), b"postgresql://me:hunter2@host/db"])
def test_a_url_must_be_text(given: Any) -> None:
    """X5: says what it is, and does not show it."""
    with pytest.raises(ConfigError, match=r"must be text such as .* not a value of type (Url|bytes)") as caught:
        Harbor(given)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["me:hunter2@host/db", "postgresql:/me:hunter2@host/db", "sqlite://me:hunter2@host/x", "x://me:hunter2@h"]
)
def test_no_password_shows_of_a_url_that_names_no_store(url: str) -> None:
    """X5: in every refusal, and in what a debugger shows."""

    def use() -> None:
        harbor = Harbor(url)
        harbor.enqueue_many([harbor.step("t", {})])

    with pytest.raises(ConfigError) as caught:
        use()
    assert "hunter2" not in str(caught.value)


def test_a_pyproject_in_another_encoding_is_named(empty_folder: Path) -> None:
    """X5."""
    (empty_folder / "pyproject.toml").write_bytes(b"\xff\xfe[")
    with pytest.raises(ConfigError, match=r"pyproject\.toml cannot be read"):
        Harbor()


SHOP = """
from taskharbor import Harbor
harbor = Harbor("memory://")

@harbor.task
def mail(): ...

class Post:
    @staticmethod
    @harbor.task
    def parcel(): ...

def show():
    print(*sorted(harbor.tasks))

if __name__ == "__main__":
    show()
"""


def python(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_a_script_and_its_module_agree_on_the_names_of_tasks(empty_folder: Path) -> None:
    """P4."""
    (empty_folder / "shop.py").write_text(SHOP)
    names = "shop.Post.parcel shop.mail"
    assert python(empty_folder, "-c", "import shop; shop.show()") == names
    assert python(empty_folder, "shop.py") == names
    assert python(empty_folder, str(empty_folder / "shop.py")) == names
    assert python(empty_folder, "-m", "shop") == names


def test_a_module_of_a_package_agrees_as_well(empty_folder: Path) -> None:
    """P4: by `-m`, as a file, and by import."""
    package = empty_folder / "firm" / "shops"
    package.mkdir(parents=True)
    (empty_folder / "firm" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "shop.py").write_text(SHOP)
    names = "firm.shops.shop.Post.parcel firm.shops.shop.mail"
    assert python(empty_folder, "-c", "import firm.shops.shop as shop; shop.show()") == names
    assert python(empty_folder, "-m", "firm.shops.shop") == names
    assert python(empty_folder, "firm/shops/shop.py") == names


def test_the_main_module_of_a_package_agrees_as_well(empty_folder: Path) -> None:
    """P4: `python -m shop` runs `shop/__main__.py`, which a worker imports as `shop.__main__`."""
    package = empty_folder / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SHOP)
    names = "shop.Post.parcel shop.mail"
    assert python(empty_folder, "-m", "shop") == names
    assert python(empty_folder, "-c", "import shop.__main__ as shop; shop.show()") == names
    assert python(empty_folder, "shop/__main__.py") == names


def test_a_spawned_process_agrees_as_well(empty_folder: Path) -> None:
    """P4: multiprocessing imports the script again under another name."""
    program = SHOP.replace(
        "    show()\n\nif",
        "    pass\n\nif",
    )
    (empty_folder / "shop.py").write_text(
        program
        + """
    import multiprocessing
    process = multiprocessing.get_context("spawn").Process(target=show)
    process.start()
    process.join()
"""
    )
    first, second = python(empty_folder, "shop.py").splitlines()
    assert first == second == "shop.Post.parcel shop.mail"
    assert python(empty_folder, "-m", "shop").splitlines() == [first, first]


def test_without_a_file_the_name_stays_main(empty_folder: Path) -> None:
    """P4: there is no module to import."""
    program = "from taskharbor import Harbor; h = Harbor('memory://'); exec('def f(): ...'); print(h.task(f).name)"
    assert python(empty_folder, "-c", program) == "__main__.f"
