"""A step: one call of a task, the smallest flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from taskharbor.client.client import Client
from taskharbor.client.job_builder import Call
from taskharbor.client.options import JobOptions, checked
from taskharbor.client.registered_task import Registered
from taskharbor.core.codec import encode_named
from taskharbor.core.collecting import collected
from taskharbor.core.names import check_name
from taskharbor.core.workflow import Edge, Outs
from taskharbor.errors import InvalidJob, WrongArguments
from taskharbor.workflows.flow import Single
from taskharbor.workflows.plan import Edges, Steps

R = TypeVar("R", covariant=True)


class Step(Call, Single[R]):
    """One call of a task, ready to be stored; its result will be an R."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Step {self.task.name}>"

    def lay(self, layout: Steps, wait: Edges) -> tuple[Outs, Edges]:
        return Edge(layout.add(self, wait)), []

    @property
    def beginnings(self) -> int:
        return 1

    def gives(self, *, collects: bool = False) -> Any:
        return collected(self.returns) if collects else self.returns


def named_step(client: Client, task: str, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> Step[Any]:
    """A call of a task by its name; if its code is not known here, the arguments are not checked."""
    session = client.session
    if not isinstance(task, str):
        raise InvalidJob(_by_name(task))
    if not isinstance(arguments, Mapping):
        kind = type(arguments).__name__
        raise WrongArguments(f"the arguments of {task} must be a dict by the names of its parameters, not {kind}")
    found = client.tasks.get(task)
    if found is None:
        elsewhere = Registered(check_name("a task's name", task), _elsewhere, session.settings.retry, {})
        return Step(client, elsewhere, encode_named(arguments, session.payload_limit), checked(options))
    try:
        payload = found.signature.encode((), arguments, session.payload_limit)
    except WrongArguments as error:
        options_of_jobs = JobOptions.__annotations__.keys() - found.signature.parameters
        if single := next((name for name in arguments if name in options_of_jobs), None):
            raise WrongArguments(
                f"{error}; {single!r} is an option of the job: give it beside the arguments, as {single}=…"
            ) from None
        raise
    return Step(client, found, payload, checked({**found.options, **options}))


def _by_name(given: object) -> str:
    """The message for a call by name with something else than a name: it says what to write instead."""
    if isinstance(given, Single):
        return f"a task's name must be text, not {given!r}: a step enqueues itself, step.enqueue()"
    kind = "None" if given is None else type(given).__name__
    own = ": write task.enqueue(…), with its arguments as they are" if hasattr(given, "registered") else ""
    return f"a task's name must be text, not {kind}{own}"


def _elsewhere() -> Any:
    """The handler of a task whose code is not here."""
