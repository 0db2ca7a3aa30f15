"""A task: a function that can be enqueued as well as called.

Two classes, so that a direct call keeps its type: `Task` for `def`, `AsyncTask` for `async def`. Options live in
`using(…)` and are never mixed with the function's own arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, cast

from taskharbor.client.client import Client
from taskharbor.client.enqueue import SingleCall
from taskharbor.client.handle import Job
from taskharbor.client.options import JobOptions, checked, misplaced
from taskharbor.client.other_names import TASK_ELSEWHERE, TASK_NAMES, hinting
from taskharbor.client.portal import Portal
from taskharbor.client.registered_task import Registered
from taskharbor.errors import WrongArguments
from taskharbor.workflows.step import Step

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self", bound="_Enqueueable[..., Any]")


class _Enqueueable(Generic[P, R]):
    """The common base of both kinds of task."""

    def __init__(self, registered: Registered, client: Client, options: JobOptions) -> None:
        update_wrapper(cast(Callable[..., Any], self), registered.handler)  # first: it copies attributes
        self._registered = registered
        self._client = client
        self._options = options

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    if not TYPE_CHECKING:
        __getattr__ = hinting(TASK_NAMES, lambda task: vars(task).get("__name__", "task"), TASK_ELSEWHERE)

    @property
    def name(self) -> str:
        """The name by which jobs and workers find this task."""
        return self._registered.name

    @property
    def registered(self) -> Registered:
        return self._registered

    @property
    def options(self) -> JobOptions:
        """The options of its jobs."""
        return self._options

    @property
    def portal(self) -> Portal:
        return self._client.portal

    def using(self: Self, **options: Unpack[JobOptions]) -> Self:
        """The same task with options for its jobs: delay, queue, priority, idempotency_key, …"""
        return type(self)(self._registered, self._client, checked({**self._options, **options}))

    def step(self, /, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        """A call of this task as a value, for `enqueue_many`, flows and `current().enqueue`."""
        try:
            return self._step(args, kwargs)
        except WrongArguments as error:
            if args or (kwargs and not self._lacks_first_alone(kwargs)):
                raise
            better = f"write .then(task, {next(iter(kwargs))}=…)" if kwargs else "pass the task itself, not a step"
            hint = f"for a task that takes the result before it in a chain or chord, {better}"
            raise WrongArguments(f"{error} ({hint})") from None

    def _lacks_first_alone(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether these arguments are right as far as their names go, and the first parameter has no value."""
        names = list(parameters := self._registered.signature.parameters)
        if not names or parameters[names[0]].default is not inspect.Parameter.empty:
            return False
        return kwargs.keys() <= {*names[1:]}

    def following(self, given: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step[Any]:
        """A call of this task whose first argument will be the result of another step, of the type `given`."""
        return self._step(args, kwargs, partial(self._registered.signature.encode_rest, given))

    def _step(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], encode: Callable[..., bytes] | None = None
    ) -> Step[Any]:
        registered, client = self._registered, self._client  # a class with `__getattr__` has slow attributes
        signature = registered.signature
        try:
            payload = (encode or signature.encode)(args, kwargs, client.session.settings.payload_limit)
        except WrongArguments as error:
            if (hint := misplaced(self.name, kwargs, signature.parameters)) is None:
                raise
            before = f"{error};" if signature.takes_any_name else f"task {self.name}:"
            raise WrongArguments(f"{before} {hint}") from None
        return Step(client, registered, payload, self._options)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job that will make this call. Returns after the commit."""
        return await self._client.submit(SingleCall(self._client, self._step(args, kwargs)))

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """The blocking twin of `aenqueue`. A `tx=` is used in the calling thread."""
        step = self._step(args, kwargs)
        return step.client.submit_blocking("aenqueue", SingleCall(step.client, step))


class Task(_Enqueueable[P, R]):
    """A task made from a `def`."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, without a job."""
        handler: Callable[P, R] = self._registered.handler
        return handler(*args, **kwargs)


class AsyncTask(_Enqueueable[P, R]):
    """A task made from an `async def`."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function directly, without a job."""
        handler: Callable[P, Coroutine[Any, Any, R]] = self._registered.handler
        return handler(*args, **kwargs)
