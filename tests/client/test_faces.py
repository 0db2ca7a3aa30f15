"""One face: every coroutine is `a` + the name of its blocking twin, and context managers serve both kinds of `with`."""

from __future__ import annotations

import asyncio
import inspect
import os
import runpy
import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import pytest

from taskharbor import AsyncTask, Harbor, Job, JobContext, Retry, Run, Task, current
from taskharbor.admin.base import AdminPart
from taskharbor.client.blocks import Managed
from taskharbor.client.handle import Collected
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import (
    BlockingCallInLoop,
    DriverClosed,
    DriverUnavailable,
    InvalidJob,
    JobFailed,
    WrongArguments,
)
from taskharbor.flow import group
from taskharbor.manager import TaskManager
from taskharbor.worker.launcher import RunningWorker
from taskharbor.workflows.flow import Single
from taskharbor.workflows.graph import Node

REFERENCE = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "reference.py"))


def _faces() -> list[type]:
    """The classes of the reference that applications use, and what the package derives from them."""
    faces: list[type] = []
    for title, home, names in REFERENCE["SECTIONS"]:
        if title == "Driver authors: the seam":  # it and what comes after it are not for applications
            break
        module = import_module(home)
        faces += [getattr(module, name) for name in names or REFERENCE["exported"](module)]
    found = dict.fromkeys(face for face in faces if isinstance(face, type) and not issubclass(face, BaseException))
    queue = list(found)
    while queue:
        derived = [each for each in queue.pop().__subclasses__() if each.__module__.startswith("taskharbor.")]
        queue += [each for each in derived if each not in found]
        found |= dict.fromkeys(derived)
    return list(found)


FACES = _faces()
SEAM = {"portal", "client", "registered"}  # what other modules of the package use: no part of the face


def _is_awaited(function: object) -> bool:
    """Whether what it gives has to be awaited."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return True
    try:
        twin = hasattr(function, "__wrapped__")  # its annotations are those of the coroutine
        gives = get_type_hints(function).get("return") if inspect.isfunction(function) and not twin else None
    except NameError:  # a name for type checkers alone
        gives = None
    made: object = get_origin(gives) or gives
    return isinstance(made, type) and issubclass(made, Awaitable)


def _public(face: type) -> Iterator[tuple[str, Any]]:
    for name, value in inspect.getmembers(face):
        if not name.startswith("_") and name not in SEAM:
            yield name, value


def _parameters(function: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_every_coroutine_is_a_and_the_name_of_its_blocking_twin(face: type) -> None:
    """P1: in what applications use, and nothing else is awaited."""
    names = dict(_public(face))
    awaited = {name for name, value in names.items() if _is_awaited(value)}
    assert all(name[0] == "a" and name[1:] in names for name in awaited), awaited
    for name in awaited:
        twin = names[name[1:]]
        assert not _is_awaited(twin)
        assert _parameters(names[name]) == _parameters(twin), name


def test_every_part_of_the_admin_is_looked_at() -> None:
    """P1: also one that was added lately."""
    parts = Harbor("memory://").admin
    found = {type(part) for part in (*vars(parts).values(), parts.recurring) if isinstance(part, AdminPart)}
    assert found <= set(FACES)


def test_the_classes_that_applications_use_are_looked_at() -> None:
    """P1: those of the reference, and those that its functions give."""
    given = (Harbor, Task, AsyncTask, Job, Run, JobContext, RunningWorker, TaskManager, Collected, Single, Node)
    assert set(given) <= set(FACES)


@pytest.mark.parametrize("face", [Managed, TaskManager], ids=lambda face: face.__name__)
def test_context_managers_serve_both_kinds_of_with(face: type) -> None:
    """P1: `with` and `async with`."""
    assert all(hasattr(face, name) for name in ("__enter__", "__exit__", "__aenter__", "__aexit__"))


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_nothing_public_is_a_context_manager_of_one_kind_only(face: type) -> None:
    """P1: what is made by `contextmanager` or `asynccontextmanager` serves one kind, so it is not public."""
    for name, value in _public(face):
        made = inspect.unwrap(value) if inspect.isfunction(value) else None
        generates = inspect.isgeneratorfunction(made) or inspect.isasyncgenfunction(made)
        assert not generates, f"{face.__name__}.{name}"


@pytest.mark.parametrize("name", ["worker", "open", "stand_in"])
def test_the_harbors_blocks_serve_both(name: str) -> None:
    """P1: they are all of the same kind, and say how to use them."""
    harbor = Harbor("memory://")
    block = getattr(harbor, name)(*(["memory://"] if name == "stand_in" else []))
    assert isinstance(block, Managed)
    assert "`with` or `async with`" in repr(block)


@pytest.mark.parametrize("old", ["arun_worker", "adrain", "adriver", "amigrate", "aclose", "aenqueue"])
def test_a_blocking_call_on_a_loop_names_its_twin(old: str) -> None:
    """P1: it would block the loop."""
    harbor = Harbor("memory://")
    given = ["task"] if old == "aenqueue" else []

    async def block() -> None:
        with pytest.raises(BlockingCallInLoop, match=f"`await ….{old}"):
            getattr(harbor, old[1:])(*given)

    asyncio.run(block())


@pytest.mark.parametrize("name", ["worker", "open", "stand_in"])
def test_a_blocking_with_on_a_loop_names_async_with(name: str) -> None:
    """P1: the block would block the loop."""
    harbor = Harbor("memory://")

    async def block() -> None:
        given = ["memory://"] if name == "stand_in" else []
        with pytest.raises(BlockingCallInLoop, match=f"`async with ….{name}"), getattr(harbor, name)(*given):
            pass

    asyncio.run(block())


class Shop:
    """A harbor with a task that writes down what it was called with."""

    def __init__(self, url: str = "memory://", **settings: Any) -> None:
        self.seen: list[Any] = []
        self.harbor = Harbor(url, **settings)

        @self.harbor.task(name="note")
        def note(what: str) -> str:
            self.seen.append((what, threading.current_thread().name))
            return what

        @self.harbor.task(name="anote")
        async def anote(what: str) -> str:
            self.seen.append((what, threading.current_thread().name))
            return what

        @self.harbor.task(name="fail", retry=Retry.fixed(3600))
        def fail(what: str) -> None:
            raise ValueError(what)

        self.note, self.anote, self.fail = note, anote, fail


def test_drain_runs_the_jobs_of_a_blocking_test() -> None:
    """P1: `def test(): task.enqueue(); harbor.drain()`."""
    shop = Shop()
    job = shop.note.enqueue("x")
    assert shop.harbor.drain() == 1
    assert [what for what, _ in shop.seen] == ["x"]
    assert job.result(timeout=5) == "x"
    assert shop.harbor.drain() == 0


def test_drain_is_for_any_thread(tmp_path: Path) -> None:
    """P1: async handlers run in the thread that drains, and the driver serves all of them."""
    shop = Shop(f"sqlite:///{tmp_path}/x.db")
    with shop.harbor.open():
        shop.anote.enqueue("here")
        assert shop.harbor.drain() == 1
        shop.anote.enqueue("there")
        thread = threading.Thread(target=shop.harbor.drain, name="another")
        thread.start()
        thread.join()
    assert shop.seen == [("here", threading.current_thread().name), ("there", "another")]


def test_drain_raises_what_a_handler_raised() -> None:
    """P: with `raise_failures=True`, once all has run; the notes name the job and the others."""
    shop = Shop()
    first, second = shop.fail.enqueue("first"), shop.fail.using(priority=-1).enqueue("second")
    shop.note.using(priority=-2).enqueue("x")
    with pytest.raises(ValueError, match="first") as caught:
        shop.harbor.drain(raise_failures=True, concurrency=1)
    assert caught.value.__notes__ == [
        f"raised by job {first.id} (fail), attempt 1",
        f"failed as well: job {second.id} (fail): ValueError: second",
    ]
    assert any(frame.name == "fail" for frame in caught.traceback)
    assert len(shop.seen) == 1
    assert first.state() == "scheduled"


def test_drain_is_silent_about_failures_unless_asked() -> None:
    """P: a failure belongs to its job."""
    shop = Shop()
    shop.fail.enqueue("first")
    assert shop.harbor.drain() == 1


def test_drain_raises_failures_without_an_exception_of_a_handler() -> None:
    """P: a timeout, an exit, and a result that cannot be stored."""
    harbor = Harbor("memory://")

    @harbor.task(name="slow", timeout=0.01)
    async def slow() -> None:
        await asyncio.sleep(60)

    @harbor.task(name="exit")
    def leave() -> None:
        raise SystemExit(3)

    @harbor.task(name="odd")
    def odd() -> object:
        return object()

    for task, words in ((slow, "timed out after 0.01 s"), (leave, "SystemExit: 3"), (odd, "NotEncodable")):
        task.enqueue()
        with pytest.raises(JobFailed, match=words):
            harbor.drain(raise_failures=True)


def test_drain_names_no_more_than_some_failures() -> None:
    """P: a note each would be a flood."""
    shop = Shop()
    shop.harbor.enqueue_many(shop.fail.step(str(number)) for number in range(30))
    with pytest.raises(ValueError, match=r"\d") as caught:
        shop.harbor.drain(raise_failures=True)
    assert caught.value.__notes__[-1] == "… and 10 more"
    assert len(caught.value.__notes__) == 21


def test_a_worker_beside_blocking_code() -> None:
    """P1: `with harbor.worker():`, in a thread of its own, also twice."""
    shop = Shop()
    with shop.harbor.worker() as worker, shop.harbor.worker(["other"]) as other:
        assert shop.anote.enqueue("x").result(timeout=30) == "x"
        assert worker.id != other.id
        assert (other.busy, other.finished) == (0, 0)
        assert repr(worker) == f"<RunningWorker {worker.id}>"
    assert worker.finished == 1
    assert shop.seen == [("x", "taskharbor-worker")]
    assert "taskharbor-worker" not in [thread.name for thread in threading.enumerate()]


def test_a_worker_block_that_raises_stops_its_worker() -> None:
    """P1: the exception propagates, through the lifespan too."""
    shop, heard = Shop(), list[str]()

    @shop.harbor.lifespan
    async def pool() -> AsyncGenerator[None]:
        try:
            yield
        except ValueError as error:
            heard.append(str(error))
            raise

    with pytest.raises(ValueError, match="mine"), shop.harbor.worker():
        raise ValueError("mine")
    assert heard == ["mine"]
    assert "taskharbor-worker" not in [thread.name for thread in threading.enumerate()]


def test_a_lifespan_that_swallows_does_so_for_both_kinds() -> None:
    """P1: as an async context manager may."""
    shop = Shop()
    swallowed: list[str] = []

    @shop.harbor.lifespan
    @asynccontextmanager
    async def forgiving() -> AsyncGenerator[None]:
        try:
            yield
        except ValueError as error:
            swallowed.append(str(error))

    async def block() -> None:
        async with shop.harbor.worker():
            raise ValueError("awaited")

    with shop.harbor.worker():
        raise ValueError("blocking")
    asyncio.run(block())
    assert swallowed == ["blocking", "awaited"]


def test_what_a_worker_cannot_begin_with_is_raised_by_its_block() -> None:
    """P1: also by the blocking kind; and what it cannot end with."""
    shop = Shop()
    broken = "first"

    @shop.harbor.lifespan
    async def pool() -> AsyncGenerator[None]:
        if broken == "first":
            raise KeyError("at first")
        yield
        raise KeyError("at last")

    with pytest.raises(KeyError, match="at first"), shop.harbor.worker():
        raise AssertionError("it has not begun")
    broken = "last"
    with pytest.raises(KeyError, match="at last"), shop.harbor.worker():
        pass
    assert "taskharbor-worker" not in [thread.name for thread in threading.enumerate()]


def test_ctrl_c_while_a_worker_block_waits_for_its_store_ends_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: nothing keeps working in an abandoned thread."""
    shop = Shop()
    asked = threading.Event()

    async def away() -> Any:
        asked.set()
        raise DriverUnavailable("it is away")

    monkeypatch.setattr(shop.harbor._session, "_connect", away)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        asked.wait(30)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt), shop.harbor.worker():
        raise AssertionError("it has not begun")
    for thread in threading.enumerate():
        if thread.name == "taskharbor-worker":
            thread.join(30)
            assert not thread.is_alive()


def test_ctrl_c_ends_a_drain() -> None:
    """P1: the run is stopped, its job goes back in line, and Ctrl-C goes on."""
    harbor = Harbor("memory://")

    @harbor.task(name="long")
    async def long() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(600)

    job = long.enqueue()
    with pytest.raises(KeyboardInterrupt):
        harbor.drain()
    assert job.state() == "ready"
    assert job.record().attempts == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_blocking_run_worker_stops_at_a_signal(number: signal.Signals) -> None:
    """P1, X6: in the main thread, and returns."""
    harbor = Harbor("memory://")
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    @harbor.task(name="stop")
    async def stop() -> str:
        os.kill(os.getpid(), number)
        await asyncio.sleep(0)
        return current().id

    job = stop.enqueue()
    harbor.run_worker(concurrency=2, lease=30)
    assert job.state() == "done"
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_the_blocking_run_worker_works_in_another_thread() -> None:
    """P1: without signals; a driver that is closed ends it."""
    driver = MemoryDriver()
    shop = Shop(driver=driver)
    ended: list[type[BaseException]] = []

    def work() -> None:
        try:
            shop.harbor.run_worker(grace=0)
        except Exception as error:
            ended.append(type(error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert shop.note.enqueue("x").result(timeout=30) == "x"
    asyncio.run(driver.close())
    thread.join(30)
    assert ended == [DriverClosed]


def test_a_harbor_opens_for_blocking_code(tmp_path: Path) -> None:
    """P1: and is closed at the end, with its thread."""
    shop = Shop(f"sqlite:///{tmp_path}/x.db")
    with shop.harbor.open() as same:
        assert same is shop.harbor
        assert shop.harbor._session.is_open
        assert shop.harbor.driver() is shop.harbor.driver()
    assert not shop.harbor._session.is_open
    assert shop.note.enqueue("again").created


def test_another_store_stands_in_for_blocking_code(tmp_path: Path) -> None:
    """P1: for all threads, until the end of the block, also one that raises."""
    shop = Shop(f"sqlite:///{tmp_path}/own.db")
    with shop.harbor.stand_in("memory://"):
        shop.note.enqueue("x")
        thread = threading.Thread(target=lambda: shop.note.enqueue("y"))
        thread.start()
        thread.join()
        assert shop.harbor.drain() == 2
    with pytest.raises(InvalidJob), shop.harbor.stand_in("memory://"):
        shop.note.using(delay=-1)
    assert not (tmp_path / "own.db").exists()
    assert shop.harbor.admin.jobs.list() == []


def test_a_store_that_stands_in_here_alone_does_so_for_this_thread(tmp_path: Path) -> None:
    """P1: `everywhere=False`; a drain and a worker of this thread are on it too."""
    shop = Shop(f"sqlite:///{tmp_path}/own.db")
    with shop.harbor.stand_in("memory://", everywhere=False):
        shop.note.enqueue("x")
        assert shop.harbor.drain() == 1
        with shop.harbor.worker():
            assert shop.note.enqueue("y").result(timeout=30) == "y"
        thread = threading.Thread(target=lambda: shop.note.enqueue("own"))
        thread.start()
        thread.join()
        assert shop.harbor.drain() == 0
    assert shop.harbor.drain() == 1


def test_blocks_can_be_used_again_and_inside_each_other() -> None:
    """P1: a block is what is done at its beginning and its end."""
    shop = Shop()
    block = shop.harbor.stand_in("memory://")
    with block:
        shop.note.enqueue("outer")
        with block:
            assert shop.harbor.drain() == 0
        assert shop.harbor.drain() == 1
    with block:
        assert shop.harbor.drain() == 0


def test_many_threads_may_stand_in_at_once(tmp_path: Path) -> None:
    """P1: each for itself."""
    shop = Shop(f"sqlite:///{tmp_path}/own.db")
    counts: list[int] = []
    ready = threading.Barrier(4)

    def test() -> None:
        with shop.harbor.stand_in("memory://", everywhere=False):
            ready.wait(30)
            shop.note.enqueue("x")
            ready.wait(30)
            counts.append(shop.harbor.drain())

    threads = [threading.Thread(target=test) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [1, 1, 1, 1]
    assert not (tmp_path / "own.db").exists()


# by name


@pytest.mark.parametrize("call", ["enqueue", "aenqueue"])
def test_a_job_by_name(call: str) -> None:
    """P: for programs that do not have the task's code; with the code, it is checked and its options hold."""
    shop = Shop()
    shop.harbor.task(name="queued", queue="mail", priority=3)(_nothing)

    def enqueue(*given: Any, **options: Any) -> Job[Any]:
        if call == "enqueue":
            return shop.harbor.enqueue(*given, **options)
        return asyncio.run(shop.harbor.aenqueue(*given, **options))

    job = enqueue("note", {"what": "x"}, idempotency_key="k", queue="other")
    again = enqueue("note", {"what": "x"}, idempotency_key="k", queue="other")
    assert (job.id, job.created, again.created) == (again.id, True, False)
    assert job.record().workflow_id is None
    assert job.record().queue == "other"
    assert enqueue("queued").record().queue == "mail"
    assert enqueue("queued").record().priority == 3
    assert enqueue("elsewhere.task", {"x": [1]}).record().type == "elsewhere.task"
    with pytest.raises(WrongArguments):
        enqueue("note", {"wat": 1})
    with pytest.raises(InvalidJob, match="unknown option 'qeue'"):
        enqueue("note", {"what": "x"}, qeue="other")
    assert shop.harbor.drain(["other"]) == 1


def _nothing() -> None: ...


def test_a_step_with_a_key_of_its_own_names_how_to_enqueue_it() -> None:
    """P: a step that is enqueued is a workflow of one job, whose key is the workflow's."""
    shop = Shop()
    step = shop.harbor.step("note", {"what": "x"}, idempotency_key="k")
    with pytest.raises(InvalidJob, match=r"harbor.enqueue\(name, {…}, idempotency_key=…\)"):
        step.enqueue()
    assert shop.harbor.enqueue_many([step])[0].created
    assert group([]).enqueue().state() == "done"


def test_a_job_by_name_within_a_transaction_of_ones_own(tmp_path: Path) -> None:
    """P, D12: `tx=` is an option like others."""
    import apsw

    path = tmp_path / "x.db"
    shop = Shop(f"sqlite:///{path}")
    with shop.harbor.open():
        own = apsw.Connection(str(path))
        try:
            with own:
                job = shop.harbor.enqueue("note", {"what": "x"}, tx=own)
            assert job.state() == "ready"
            with suppress(ValueError), own:
                lost = shop.harbor.enqueue("note", {"what": "y"}, tx=own)
                raise ValueError("roll back")
            assert shop.harbor.admin.jobs.list() == [job.record()]
            assert lost.id != job.id
        finally:
            own.close()
