"""`def` handlers in the thread of the test: they see its database connection, its transaction and its patches."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from taskharbor.client.portal import refuse_on_a_loop
from taskharbor.worker.crew import ValueOrError, lent

T = TypeVar("T")
LentCall = tuple[Callable[[], Any], contextvars.Context, "asyncio.Future[ValueOrError]"]
PATIENCE = 10.0


class LentThread:
    """An executor whose work runs in the thread that calls `serve`, one item after the other, until `stop`."""

    def __init__(self) -> None:
        self._handed: queue.SimpleQueue[LentCall | None] = queue.SimpleQueue()
        self._refuses = False

    def submit(self, function: Callable[[], Any]) -> asyncio.Future[ValueOrError]:
        future = asyncio.get_running_loop().create_future()
        self._handed.put((function, contextvars.copy_context(), future))
        if self._refuses:
            self._refuse_all()
        return future

    def close(self) -> None:
        """No-op: the executor does not belong to the worker."""

    def stop(self) -> None:
        """Let `serve` return."""
        self._handed.put(None)

    def serve(self) -> None:
        """Run the handlers that workers submit. Ctrl-C is raised to the caller, even in the middle of a handler."""
        while (call := self._handed.get()) is not None:
            self._run(call)

    def refuse(self) -> None:
        """Stop serving: reject what is still submitted."""
        self._refuses = True
        self._refuse_all()

    def _run(self, call: LentCall) -> None:
        function, context, future = call
        try:
            _hand_back(future, context.run(function), None)
        except BaseException as error:
            _hand_back(future, None, error)
            if isinstance(error, KeyboardInterrupt):
                raise

    def _refuse_all(self) -> None:
        with suppress(queue.Empty):
            while True:
                if (call := self._handed.get_nowait()) is not None:
                    _hand_back(call[2], None, InterruptedError("the test was interrupted"))


def _hand_back(future: asyncio.Future[ValueOrError], result: Any, error: BaseException | None) -> None:
    def deliver() -> None:
        if not future.done():
            future.set_result((result, error))

    with suppress(RuntimeError):  # the loop has ended
        future.get_loop().call_soon_threadsafe(deliver)


class _Beside:
    """Runs a coroutine on an event loop in another thread, while this thread runs `def` handlers for it."""

    def __init__(self, function: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._function = function
        self._lent = LentThread()
        self._ended: Future[Any] = Future()
        self._task: asyncio.Task[Any] | None = None
        self._interrupted = False

    def run(self) -> Any:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(self._work,), daemon=True)
        try:
            thread.start()
            self._lent.serve()
            thread.join()
        except BaseException:  # Ctrl-C, at any moment
            self._interrupt()
            if thread.ident is not None:
                thread.join(PATIENCE)
            raise
        return self._ended.result()

    def _interrupt(self) -> None:
        self._lent.refuse()
        self._interrupted = True  # set before the check: a task that is not created yet reads it
        if (task := self._task) is not None:
            with suppress(RuntimeError):  # it has ended
                task.get_loop().call_soon_threadsafe(task.cancel)

    def _work(self) -> None:
        lent.set(self._lent)
        try:
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                self._ended.set_result(runner.run(self._main()))
        except BaseException as error:
            self._ended.set_exception(error)
        finally:
            self._lent.stop()

    async def _main(self) -> Any:
        self._task = asyncio.current_task()
        if self._interrupted:
            return None
        return await self._function()


def run_beside(twin: str, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine to its end; `def` handlers of its workers run in the calling thread, one at a time."""
    refuse_on_a_loop(twin)
    result: T = _Beside(function).run()
    return result
