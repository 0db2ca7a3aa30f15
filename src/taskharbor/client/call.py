"""A call of a task: bound and encoded, with the options of its job. The client stores it; a `Step` is one in a flow."""

from __future__ import annotations

from typing import Any

from taskharbor.client.client import Client
from taskharbor.client.options import JobOptions
from taskharbor.client.registered_task import JOIN, Registered


class Call:
    """One call of a task, ready to be stored as a job."""

    __slots__ = ("client", "options", "payload", "task")

    def __init__(self, client: Client, task: Registered, payload: bytes, options: JobOptions) -> None:
        self.client = client
        self.task = task
        self.payload = payload
        self.options = options

    @property
    def returns(self) -> Any:
        """The type of the result, as far as annotations tell."""
        return self.task.signature.returns

    def joining(self) -> Call:
        """A call that does nothing but wait for others, in the same queue."""
        queue: JobOptions = {"queue": self.options["queue"]} if "queue" in self.options else {}
        return Call(self.client, JOIN, JOIN.signature.encode((), {}), queue)
