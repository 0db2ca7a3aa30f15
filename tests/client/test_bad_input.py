"""Bad input gets an error that names the fix, and nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import partial
from typing import Any

import pytest

from taskharbor import Harbor, Retry, chain, current
from taskharbor.core.names import NAME_LIMIT
from taskharbor.errors import (
    CapabilityMissing,
    ConfigError,
    DuplicateTask,
    HarborError,
    InvalidJob,
    JobExists,
    NotEncodable,
    PayloadTooLarge,
    UnknownTask,
    WrongArguments,
)
from world import World, virtual

NAN, INF = float("nan"), float("inf")


class Nowhere(tzinfo):
    """A time zone that does not know where it is."""

    def utcoffset(self, when: datetime | None) -> None:
        return None

    def dst(self, when: datetime | None) -> None:
        return None

    def tzname(self, when: datetime | None) -> None:
        return None


TEXTS: list[Any] = [None, 3, b"bytes", "", "x" * 600, "a\nb", "a\x00b", "\ud800", "a\u2028b", ["x"]]
DURATIONS: list[Any] = [-1, -0.001, NAN, INF, -INF, "60", True, timedelta(seconds=-1), [1]]
MOMENTS: list[Any] = [
    datetime(2026, 1, 1),  # noqa: DTZ001
    datetime(2026, 1, 1, tzinfo=Nowhere()),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
    date(2026, 1, 1),
    "2026-01-01T00:00:00Z",
    1_700_000_000,
    None,
]
WRONG: dict[str, list[Any]] = {
    "id": TEXTS,
    "queue": TEXTS,
    "priority": [-101, 101, 1.5, "5", True, None, NAN],
    "delay": [*DURATIONS, None],
    "run_at": MOMENTS,
    "expires": [*DURATIONS, *MOMENTS[:4], None],
    "idempotency_key": TEXTS,
    "max_attempts": [0, -1, 1.5, "3", True, INF],
    "max_crashes": [0, -1, 1.5, "3", True, INF],
    "timeout": [*DURATIONS, 0],
    "tags": ["mail", 3, None, {"a"}, [1], [""], ["a\nb"], ["x"] * 51],
    "headers": [None, "a=b", ["a"], {1: "x"}, {"": "x"}, {"a": 1}, {"a": None}, {"a": "\ud800"}, {"a": "x\x00"}],
}


@pytest.mark.parametrize(("option", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_every_option_is_checked_when_it_is_given(option: str, value: Any) -> None:
    """X5, P1: the error names the option, and nothing is stored."""
    world = World()

    @world.harbor.task
    def work() -> None: ...

    with pytest.raises(InvalidJob) as caught:
        work.using(**{option: value})
    named = {"tags": "tag", "headers": "header"}.get(option, option)
    assert named in str(caught.value)
    assert world.is_empty()


@pytest.mark.parametrize("value", [*DURATIONS, 0])
def test_the_life_of_a_key_is_checked(value: Any) -> None:
    """X5, I2."""
    world = World()

    @world.harbor.task
    def work() -> None: ...

    with pytest.raises(InvalidJob, match="idempotency_ttl"):
        work.using(idempotency_key="k", idempotency_ttl=value)


def test_options_that_contradict_each_other_are_refused() -> None:
    """X5: also when they were given one after the other."""
    world = World()

    @world.harbor.task
    def work() -> None: ...

    moment = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidJob, match="delay or run_at, not both"):
        work.using(delay=1, run_at=moment)
    with pytest.raises(InvalidJob, match="delay or run_at, not both"):
        work.using(delay=1).using(run_at=moment)
    with pytest.raises(InvalidJob, match="idempotency_ttl needs an idempotency_key"):
        work.using(idempotency_ttl=5)


def test_unknown_options_are_refused_by_name() -> None:
    """X5: with the list of those that exist."""
    world = World()

    @world.harbor.task
    def work() -> None: ...

    with pytest.raises(
        InvalidJob, match=r"unknown option 'dealy' \(did you mean 'delay'\?\); the options are .*priority, delay"
    ):
        work.using(dealy=5)  # type: ignore[call-arg]
    for foreign, ours in {
        "countdown": "delay",
        "eta": "run_at",
        "max_retries": "max_attempts",
        "task_id": "id",
    }.items():
        with pytest.raises(InvalidJob, match=rf"unknown option '{foreign}' \(did you mean '{ours}'\?\)"):
            work.using(**{foreign: 5})  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match=r"unknown option 'colour'; the options are"):
        work.using(colour=5)  # type: ignore[call-arg]
    with pytest.raises(InvalidJob, match=r"unknown option 'retry': it is set on the task, @harbor\.task\(ret"):
        work.using(retry=Retry())  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"@harbor\.task: unknown option 'delay'; the options are name, .*using"):
        world.harbor.task(delay=5)  # type: ignore[call-overload]
    for foreign, said in {
        "retries": r" \(did you mean 'max_attempts'\?\); max_attempts counts the first run as well: it is one more;",
        "time_limit": r" \(did you mean 'timeout'\?\); the options are",
        "autoretry_for": r" \(did you mean 'retry'\?\); every exception is retried, unless Retry\(retry_on=…",
        "bind": r"; the handler has no self: current\(\) is the running job; the options are",
    }.items():
        with pytest.raises(ConfigError, match=rf"@harbor\.task: unknown option '{foreign}'{said}"):
            world.harbor.task(**{foreign: 5})  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="concurency"):
        world.harbor.worker(concurency=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="max_attempt"):
        Harbor("memory://", max_attempt=5)  # type: ignore[call-arg]


def test_options_do_not_change_the_task_they_are_given_to() -> None:
    """P1."""
    world = World()

    @world.harbor.task(queue="mail")
    def work() -> None: ...

    other = work.using(queue="x", priority=5)
    assert other.step().options == {"queue": "x", "priority": 5}
    assert work.step().options == {"queue": "mail"}
    assert (other.name, getattr(other, "__name__", None), type(other)) == (work.name, "work", type(work))


@pytest.mark.parametrize("delay", [1e300, 1e15, timedelta.max])
@virtual
async def test_a_delay_beyond_the_calendar_means_its_end(delay: Any) -> None:
    """X5, N1: and is not an arithmetic error."""
    world = World()

    @world.harbor.task
    def work() -> None: ...

    key = {"idempotency_key": "k", "idempotency_ttl": delay}
    job = await work.using(delay=delay, expires=delay, timeout=delay, **key).aenqueue()
    record = await world.record(job)
    assert record.run_at == record.expires_at == record.key_expires_at
    assert record.run_at is not None
    assert record.run_at.year == 9999


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_crashes": 0}, "max_crashes"),
        ({"max_crashes": "5"}, "max_crashes"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"idempotency_ttl": -1}, "idempotency_ttl"),
        ({"payload_limit": 0}, "payload_limit"),
        ({"payload_limit": 1e6}, "payload_limit"),
        ({"keep_done": -1}, "keep_done"),
        ({"keep_dead": "30d"}, "keep_dead"),
        ({"store_timeout": 0}, "store_timeout"),
        ({"store_timeout": None}, "store_timeout"),
        ({"retry": 5}, "retry"),
    ],
)
def test_the_settings_of_a_harbor_are_checked(settings: dict[str, Any], rule: str) -> None:
    """X5."""
    with pytest.raises(ConfigError, match=rule):
        Harbor("memory://", **settings)


def test_a_retention_beyond_the_calendar_is_for_ever() -> None:
    """X5, X8."""
    harbor = Harbor("memory://", keep_done=1e300, keep_dead=timedelta.max)

    @harbor.task
    def work() -> None: ...

    job = work.enqueue()
    asyncio.run(harbor.adrain())
    kept = job.record().keep_until
    assert kept is not None
    assert kept.year == 9999


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 2.0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"lease": 0}, "lease"),
        ({"lease": -3}, "lease"),
        ({"lease": NAN}, "lease"),
        ({"lease": "30"}, "lease"),
        ({"lease": timedelta(seconds=30)}, "lease"),
        ({"grace": -1}, "grace"),
        ({"grace": INF}, "grace"),
        ({"grace": None}, "grace"),
    ],
)
@virtual
async def test_the_options_of_a_worker_are_checked(options: dict[str, Any], rule: str) -> None:
    """X5, D4."""
    world = World()
    with pytest.raises(ConfigError, match=rule):
        async with world.worker(**options):
            raise AssertionError
    assert world.log.calls() == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "write for example"),
        ("shop.db", "write for example sqlite:///taskharbor.db"),
        ("sqlite:/shop.db", "write for example"),
        ("://x", "write for example"),
        ("memory://#x", "fragment"),
        ("memory://?a=1&a=2", "twice"),
        ("http://[broken", "not a URL"),
        (3, "must be text"),
        (b"memory://", "must be text"),
    ],
)
def test_a_broken_url_is_refused_when_the_harbor_is_made(url: Any, says: str) -> None:
    """X5."""
    with pytest.raises(ConfigError, match=says):
        Harbor(url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("oracle://x", "no driver for oracle://; this version has memory://"),
        ("nats://u:secret@h/x", "the URL has a path, /x: NATS has no databases"),
        ("redis://u:secret@h/x", "'x' in the URL is not a database"),
        ("redis+tls://u:secret@h", "no driver for redis\\+tls://: write redis://"),
        ("nats+tls://u:secret@h", "no driver for nats\\+tls://: write nats://"),
        ("memory://host", "no host"),
        ("memory:///path", "no path"),
        ("memory://?colour=red", "no option 'colour'"),
    ],
)
def test_a_url_that_names_no_store_is_refused_at_the_first_use(url: str, says: str) -> None:
    """X5: and no password is shown."""
    harbor = Harbor(url)

    @harbor.task
    def work() -> None: ...

    with pytest.raises(ConfigError, match=says) as caught:
        asyncio.run(work.aenqueue())
    assert "secret" not in str(caught.value) + repr(harbor)


@virtual
async def test_arguments_are_checked_against_the_signature_at_the_enqueue() -> None:
    """X5, P3, F9: a worker would find out an hour later."""
    world = World()

    @world.harbor.task
    async def work(number: int, *, name: str = "x") -> None: ...

    calls: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, "number"),
        ((1, 2), {}, "takes at most one argument by position"),
        ((1,), {"nmae": "y"}, "nmae"),
        (("one",), {}, "parameter number wants int, got str"),
        ((1,), {"name": 5}, "parameter name wants str, got int"),
        ((object(),), {}, "number"),
        ((NAN,), {}, "number"),
    ]
    for args, kwargs, says in calls:
        with pytest.raises((WrongArguments, NotEncodable), match=says):
            await work.aenqueue(*args, **kwargs)
        with pytest.raises(TypeError):
            work.step(*args, **kwargs)
    assert world.is_empty()


@virtual
async def test_what_json_cannot_carry_is_named_by_its_path() -> None:
    """X5, P3."""
    world = World()

    @world.harbor.task
    async def work(data: dict[str, Any]) -> None: ...

    with pytest.raises(NotEncodable, match=r"data\.a\[1\]\.b"):
        await work.aenqueue({"a": [1, {"b": object()}]})
    assert world.is_empty()


@virtual
async def test_a_payload_over_the_limit_is_refused_with_its_size() -> None:
    """R4: at the limit it passes."""
    world = World(payload_limit=100)

    @world.harbor.task(name="t")
    async def work(text: str) -> None: ...

    room = 100 - len(b'{"v":1,"args":{"text":""}}')
    await work.aenqueue("x" * room)
    with pytest.raises(PayloadTooLarge, match=r"101 bytes, the limit is 100.*reference"):
        await work.aenqueue("x" * (room + 1))
    assert len(world.memory._store.jobs) == 1


@virtual
async def test_an_engines_own_limit_counts_too() -> None:
    """R4: never above the engine's own, for a job enqueued with another as well."""
    world = World()
    world.store.max_payload = 50

    @world.harbor.task(name="t", max_attempts=1)
    async def work(text: str) -> None: ...

    @world.harbor.task(name="p", max_attempts=1)
    async def parent() -> None:
        current().enqueue(work.step("x" * 100))

    with pytest.raises(PayloadTooLarge, match="the limit is 50"):
        await work.aenqueue("x" * 100)
    assert world.is_empty()
    job = await parent.aenqueue()
    await world.drain()
    record = await world.record(job)
    assert record.state == "dlq"
    assert "limit is 50" in (record.last_error or "")

    @world.harbor.task(name="r")
    async def returns() -> str:
        return "x" * 49

    job_with_result = await returns.aenqueue()
    await world.drain()
    assert (await world.record(job_with_result)).dlq_reason == "result_too_large"


@virtual
async def test_a_group_with_one_bad_step_stores_nothing() -> None:
    """D1, X5."""
    world = World()

    @world.harbor.task
    async def work(number: int) -> None: ...

    first = await work.using(id="a").aenqueue(1)
    assert first.id == "a"
    with pytest.raises(JobExists):
        await world.harbor.aenqueue_many([work.step(1), work.using(id="a").step(2)])
    with pytest.raises(JobExists):
        await world.harbor.aenqueue_many([work.using(id="b").step(1), work.using(id="b").step(2)])
    for wrong in (work, first, None, "step"):
        with pytest.raises(InvalidJob, match=r"only steps can be enqueued, such as task\.step"):
            await world.harbor.aenqueue_many([work.step(1), wrong])  # type: ignore[list-item]
    with pytest.raises(CapabilityMissing, match="tx="):
        await work.using(tx=object()).aenqueue(1)
    assert len(world.memory._store.jobs) == 1
    assert await world.harbor.aenqueue_many([]) == []


ODD_NAMES = ["ünïcödé", "キュー", "😀", "a/b c:d;e'f\"g\\h", "%s {0} $1", "../../etc", "x" * NAME_LIMIT, " ", "e\u0301"]


@pytest.mark.parametrize("name", ODD_NAMES)
@virtual
async def test_any_other_unicode_works_as_queue_key_id_tag_header_and_task(name: str) -> None:
    """X5: kept exactly as given."""
    world = World()

    @world.harbor.task(name=name, queue=name)
    async def work() -> str:
        return name

    job = await work.using(id=name, idempotency_key=name, tags=[name], headers={name: name}).aenqueue()
    assert job.id == name
    async with world.worker(name):
        assert await job.aresult() == name
    record = await world.record(name)
    assert (record.queue, record.type, record.idempotency_key, record.tags) == (name, name, name, (name,))


@pytest.mark.parametrize("name", ["", "x" * 256, "a\tb", "\ud800", 3, b"x"])
def test_a_task_needs_a_proper_name(name: Any) -> None:
    """X5."""
    world = World()
    with pytest.raises(InvalidJob, match="a task's name"):
        world.harbor.task(name=name)(print)


@virtual
async def test_a_parameter_may_have_any_name() -> None:
    """P1: options are never mixed with arguments, not even by their names."""
    world = World()

    @world.harbor.task
    async def work(self: int, queue: str, delay: int, *, args: int, kwargs: int) -> list[object]:
        return [self, queue, delay, args, kwargs]

    job = await work.aenqueue(self=1, queue="x", delay=3, args=4, kwargs=5)
    async with world.worker():
        assert await job.aresult() == [1, "x", 3, 4, 5]
    assert await work(self=1, queue="x", delay=3, args=4, kwargs=5) == [1, "x", 3, 4, 5]


def test_two_tasks_of_one_name_are_refused() -> None:
    """P4."""
    world = World()

    @world.harbor.task(name="t")
    def first() -> None: ...

    with pytest.raises(DuplicateTask, match=r"'t' exists already: give one of them another name="):

        @world.harbor.task(name="t")
        def second() -> None: ...

    assert world.harbor.tasks["t"].handler is first.__wrapped__  # type: ignore[attr-defined]


def test_only_functions_that_return_their_result_can_be_tasks() -> None:
    """X5."""
    world = World()

    class Thing: ...

    def generator() -> Generator[int]:
        yield 1

    async def agenerator() -> AsyncGenerator[int]:
        yield 1

    for wrong in (3, "text", None, Thing, generator, agenerator):
        with pytest.raises(ConfigError, match="takes a def or an async def"):
            world.harbor.task(name="t")(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="name="):
        world.harbor.task(partial(print, "x"))
    assert world.harbor.tasks == {}
    assert world.harbor.task(name="t")(partial(print, "x")).name == "t"


class Shop:
    """A class whose methods are declared as tasks."""

    def sell(self, item: str) -> None: ...

    @classmethod
    def open(cls) -> None: ...

    @staticmethod
    def close() -> None: ...


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (
            Shop.sell,
            r"not the method Shop\.sell: a worker has no object or class to call it on, so use a module-level",
        ),
        (Shop.__dict__["open"], r"not the classmethod Shop\.open: a worker has no object or class"),
        (Shop.__dict__["open"].__func__, r"not the method Shop\.open: a worker has no object or class"),
        (
            Shop.__dict__["close"],
            r"not the staticmethod Shop\.close: put the task decorator below @staticmethod",
        ),
        (lambda: None, "not a lambda: it has no name that a worker could find it by, so write a def"),
    ],
)
def test_what_a_worker_could_not_call_is_refused_with_the_reason(function: Any, why: str) -> None:
    """X5, P4: methods and lambdas, also with a name."""
    world = World()
    for decorator in (
        world.harbor.task,
        world.harbor.task(name="t"),
        world.harbor.recurring(every=60),
        world.harbor.recurring(every=60, name="t"),
    ):
        with pytest.raises(ConfigError, match=why):
            decorator(function)
    assert world.harbor.tasks == {}


def test_functions_inside_functions_and_bound_methods_can_be_tasks() -> None:
    """P4: tests use the first; the second has its object with it. So has a function of a class that needs none."""
    world = World()

    def inner(self: int) -> None: ...

    class Tools:
        @staticmethod
        @world.harbor.task
        def cut(length: int) -> None: ...

    assert world.harbor.task(inner).name.endswith("<locals>.inner")
    assert world.harbor.task(Shop().sell).name.endswith("Shop.sell")
    assert Tools.cut.step(5).task.name.endswith("Tools.cut")
    assert world.harbor.task(print).name == "builtins.print"


@virtual
async def test_a_list_of_steps_must_be_one() -> None:
    """X5: one step alone is a plausible mistake."""
    world = World()

    @world.harbor.task
    async def work(number: int) -> None: ...

    for wrong in (work.step(1), work, None, 5):
        with pytest.raises(
            InvalidJob, match=r"give a list of steps, such as \[task\.step\(1\), task\.step\(2\)\], not "
        ):
            await world.harbor.aenqueue_many(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="set up, yield, tear down"):
        world.harbor.lifespan(5)  # type: ignore[type-var]
    assert world.is_empty()


def test_a_key_that_may_be_missing_is_left_out() -> None:
    """X5: as from a header that a client did not send."""
    world = World()

    @world.harbor.task
    def work() -> None: ...

    options: dict[str, Any] = {"idempotency_key": None}
    with pytest.raises(
        InvalidJob, match=r"idempotency_key must be text, not None: leave it out for a job without one$"
    ):
        work.using(**options)


@virtual
async def test_named_arguments_must_be_named() -> None:
    """X5: and options go beside them."""
    world = World()

    @world.harbor.task(name="work")
    async def work(number: int, tags: str = "") -> None: ...

    for wrong in ([1], "number=1", 5):
        with pytest.raises(WrongArguments, match="the arguments of work must be a dict by the names of its parameters"):
            await world.harbor.aenqueue("work", wrong)  # type: ignore[arg-type]
    given: list[tuple[Any, str]] = [
        (work, r"text, not AsyncTask: write task\.enqueue\(…\), with its arguments as they are$"),
        (work.step(1), r"text, not <Step work>: a step enqueues itself, step\.enqueue\(\)$"),
        (chain(work.step(1)), r"a step enqueues itself"),
        (None, r"text, not None$"),
        (5, r"text, not int$"),
    ]
    for task, said in given:
        with pytest.raises(InvalidJob, match=f"a task's name must be {said}" if "text" in said else said):
            await world.harbor.aenqueue(task, {"number": 1})
    with pytest.raises(WrongArguments, match=r"'delay' is an option of the job: give it beside.*delay=…$"):
        await world.harbor.aenqueue("work", {"number": 1, "delay": 5})
    with pytest.raises(WrongArguments, match=r"parameter tags wants str, got int$"):
        await world.harbor.aenqueue("work", {"number": 1, "tags": 5})
    assert world.is_empty()


@virtual
async def test_a_task_of_a_task_is_a_task_of_its_own() -> None:
    """P4: attributes that a wrapped function carries do not overwrite the task's."""
    world = World()

    @world.harbor.task(name="outer")
    @world.harbor.task(name="inner", queue="elsewhere")
    async def work() -> int:
        return 4

    assert work.name == "outer"
    job = await work.aenqueue()
    record = await world.record(job)
    assert (record.type, record.queue) == ("outer", "default")
    async with world.worker():
        assert await job.aresult() == 4


@pytest.mark.parametrize("retry", [5, "fast", [1, 2]])
def test_a_retry_policy_must_be_one(retry: Any) -> None:
    """X5: refused when the task is made, not when it first fails; a number has another place."""
    world = World()
    with pytest.raises(
        ConfigError, match="retry must be a Retry.*max_attempts=" if retry == 5 else "retry must be a R"
    ):
        world.harbor.task(retry=retry)


@pytest.mark.parametrize("options", [{"queue": ""}, {"priority": 500}, {"max_attempts": 0}, {"max_crashes": 0}])
def test_the_options_of_a_task_are_checked_like_those_of_a_job(options: Any) -> None:
    """X5."""
    world = World()
    with pytest.raises(InvalidJob, match=next(iter(options))):
        world.harbor.task(**options)


def test_a_task_that_is_not_there_is_named_with_those_that_are() -> None:
    """X5."""
    world = World()

    @world.harbor.task(name="shop.mail")
    def mail() -> None: ...

    assert world.harbor.find("shop.mail").name == "shop.mail"
    with pytest.raises(UnknownTask, match=r"no task named 'shop.male'.*did you mean 'shop\.mail'.*there is shop\.mail"):
        world.harbor.find("shop.male")

    @world.harbor.task(name="bookshop.letters.send")
    def send() -> None: ...

    with pytest.raises(
        UnknownTask, match=r"no task named 'send' is registered \(did you mean 'bookshop\.letters\.send'"
    ):
        world.harbor.find("send")


def test_a_signature_that_cannot_be_read_is_named() -> None:
    """X5, P3."""
    world = World()

    @world.harbor.task(name="t")
    def work(thing: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    with pytest.raises(ConfigError, match=r"task t.*Missing"):
        work.step(3)


def test_every_error_of_the_library_has_one_root() -> None:
    """X5."""
    for error in (
        InvalidJob,
        ConfigError,
        DuplicateTask,
        NotEncodable,
        WrongArguments,
        PayloadTooLarge,
        JobExists,
        UnknownTask,
    ):
        assert issubclass(error, HarborError)
    assert issubclass(InvalidJob, ValueError)
    assert issubclass(NotEncodable, TypeError)
    assert issubclass(WrongArguments, TypeError)
    assert Retry() == Retry(base=0.5, multiplier=2, cap=30)
