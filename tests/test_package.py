"""The package as a whole: light to import, complete in what it shows, and true to its own rules."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import taskharbor
from limits import LIMIT

SOURCE = Path(taskharbor.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
NAMES = "AsyncTask FailedStep Flow Graph Harbor Job JobContext JobRecord LeaseLost Recycle Retry RetryAfter Run Snooze"
FUNCTIONS = "chain chord current group"
CODE = (".py", ".sql", ".lua")
PUBLIC = f"{NAMES} Step Task Unrecoverable {FUNCTIONS}".split()


def test_importing_it_brings_no_engine_and_no_terminal() -> None:
    """P: `import taskharbor` imports neither an engine nor the command line's packages."""
    program = (
        "import sys, taskharbor; from taskharbor import Harbor; Harbor('memory://'); "
        "heavy = {'apsw', 'sqlite3', 'asyncpg', 'hiredis', 'redis', 'nats', 'rich', 'click', 'cronsim', 'starlette', "
        "'uvicorn', 'jinja2', 'pydantic', 'hypothesis', 'pytest', 'pickle'}; "
        "print(*sorted(heavy & set(sys.modules)), *[m for m in sys.modules if m.startswith(('taskharbor.testing', "
        "'taskharbor.cli.', 'taskharbor.drivers.'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=LIMIT)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_public_names_are_sorted_complete_and_there() -> None:
    """P."""
    assert sorted(taskharbor.__all__) == taskharbor.__all__ == sorted(PUBLIC)
    for name in taskharbor.__all__:
        assert getattr(taskharbor, name) is not None
    shown = {name for name in vars(taskharbor) if name[0] not in "_@"}  # @: pytest rewrites modules of its plugins
    modules = {path.stem for path in SOURCE.iterdir()} | {"Any", "TYPE_CHECKING", "import_module"}
    assert shown - modules <= set(taskharbor.__all__)


@pytest.mark.parametrize("module", ["taskharbor.testing", "taskharbor.drivers.memory"])
def test_other_public_modules_keep_their_lists_sorted(module: str) -> None:
    names: list[str] = __import__(module, fromlist=["__all__"]).__all__
    assert names == sorted(names)


def test_the_interface_of_the_contract_is_there() -> None:
    """P: the names that programs outside rely on."""
    harbor = taskharbor.Harbor("memory://")

    @harbor.task
    def work() -> None: ...

    job = harbor.job("x")
    for thing, names in {
        harbor: "task middleware lifespan enqueue_many aenqueue_many enqueue aenqueue worker open stand_in admin",
        taskharbor.Harbor: "run_worker arun_worker drain adrain driver adriver migrate amigrate close aclose",
        work: "enqueue aenqueue using step name",
        job: "id created same_payload state result cancel astate aresult acancel",
        harbor.admin: "jobs dlq queues workers stats astats",
        taskharbor.JobContext: "id attempt lease_version progress cancelled enqueue",
    }.items():
        assert [name for name in names.split() if not hasattr(thing, name)] == []


def test_extras_that_are_named_exist() -> None:
    """P, X5: in messages and on every page."""
    root = SOURCE.parents[1]
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pages = [*MODULES, *root.glob("*.md"), *root.glob("docs/**/*.md")]
    named = {
        extra
        for page in pages
        for names in re.findall(r"taskharbor\[([\w,]+)\]", page.read_text(encoding="utf-8"))
        for extra in names.split(",")
    }
    assert {"fast", "postgres", "psycopg", "testing"} <= named <= extras.keys()


def test_every_extra_has_code_behind_it() -> None:
    """P: each package of an extra is imported somewhere."""
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = "\n".join(path.read_text(encoding="utf-8") for path in MODULES)
    for extra, requirements in project["optional-dependencies"].items():
        for requirement in requirements:
            name = re.split(r"\W", requirement, maxsplit=1)[0]
            imported = rf"^\s*(import|from) {name}\b|import_module\(\"{name}[\".]"
            assert re.search(imported, source, re.MULTILINE), f"{extra}: nothing imports {name}"


def test_the_source_distribution_has_the_docs_and_the_changelog(tmp_path: Path) -> None:
    """Built without a network, from a copy, as `python -m build --sdist --no-isolation` does it."""
    root, copy = SOURCE.parents[1], tmp_path / "copy"
    for name in ("src", "docs", "examples", "tests/typing"):
        shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in (*root.glob("*.md"), root / "pyproject.toml", root / "LICENSE", root / "MANIFEST.in"):
        shutil.copy(file, copy)
    program = "from setuptools.build_meta import build_sdist; print(build_sdist('dist'))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=copy, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    (archive,) = (copy / "dist").iterdir()
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    wanted = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "src/taskharbor/py.typed"}
    wanted |= {path.relative_to(root).as_posix() for path in (*root.glob("docs/**/*.md"), *root.glob("examples/*.py"))}
    wanted |= {path.relative_to(root).as_posix() for path in SOURCE.rglob("*.*") if path.suffix in CODE}
    assert wanted - names == set()
    assert not [name for name in names if name.startswith("tests/") or name.endswith(".pyc")]


def test_it_works_where_processes_do_not_fork_and_signals_are_few(tmp_path: Path) -> None:
    """X6: what Windows lacks is asked for before it is used."""
    program = """
import asyncio, os, signal
del os.fork, os.register_at_fork, signal.SIGHUP
from taskharbor import Harbor
from taskharbor.worker.signals import on_end_signals, stop_signals

class Loop(asyncio.SelectorEventLoop):
    def add_signal_handler(self, *args):
        raise NotImplementedError

harbor = Harbor("sqlite:///jobs.db")

@harbor.task(name="add")
def add(a: int, b: int) -> int:
    return a + b

async def main():
    on_end_signals(print)
    with stop_signals(print):
        job = await add.aenqueue(1, 2)
        await harbor.adrain()
        print(await job.aresult())
    await harbor.aclose()

with asyncio.Runner(loop_factory=Loop) as runner:
    runner.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_the_version_is_written_once() -> None:
    """The package's metadata and the changelog agree."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", version("taskharbor"))
    assert version("taskharbor") == taskharbor.__version__


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", [it for it in MODULES if it.stem == "__init__"], ids=lambda path: path.parent.name)
def test_every_package_says_what_may_import_it_or_what_it_imports(path: Path) -> None:
    assert "import" in (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")


def type_names(tree: ast.Module) -> Iterator[str]:
    """The classes of a module, and its aliases of types: capitalised names of something that is no call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and not isinstance(node.value, ast.Call | ast.Constant):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and re.match(r"_?[A-Z]\w*[a-z]", target.id):
                yield target.id


def test_a_class_name_occurs_once() -> None:
    """A search for a class or an alias finds one thing; an underscore makes no other name. The exception is public in
    two modules: `taskharbor.Task` is a handler that can be enqueued, `taskharbor.manager.Task` a task of agents."""
    found: dict[str, list[str]] = {}
    for path in MODULES:
        for name in type_names(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(name.lstrip("_"), []).append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {"Task": ["manager/task.py", "task.py"]}


def test_nothing_imports_the_standard_librarys_sqlite_or_pickle() -> None:
    """P3: two copies of SQLite in one process lose data; pickles run code."""
    pattern = re.compile(r"^\s*(import|from)\s+(sqlite3|pickle|marshal|shelve)\b", re.MULTILINE)
    assert [path.name for path in MODULES if pattern.search(path.read_text(encoding="utf-8"))] == []


def test_it_is_marked_as_typed() -> None:
    """P2."""
    assert (SOURCE / "py.typed").exists()


def test_every_error_stands_in_the_tree_of_its_docstring() -> None:
    """X5: drawn once, in `errors.py`."""
    from taskharbor import errors

    drawn = set(re.findall(r"^[│├└─ ]*(\w+)", errors.__doc__ or "", re.MULTILINE))
    defined = {name for name, what in vars(errors).items() if isinstance(what, type) and not name.startswith("_")}
    assert {name for name in defined if getattr(errors, name).__module__ == errors.__name__} <= drawn
