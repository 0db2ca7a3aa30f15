"""Scripts on the thread of the caller, on connections that threads take in turn (ADR 23).

They are kept without a lock, by single steps of a deque: a signal handler or a finalizer may take one at any moment.
A connection on which anything unexpected happened, Ctrl-C included, is closed.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any
from weakref import WeakSet

from taskharbor.drivers.redis.failure import ReplyError, failure, is_replica
from taskharbor.drivers.redis.scripts import Script
from taskharbor.drivers.redis.url import Address
from taskharbor.drivers.redis.wire import CONNECT_WITHIN, Arg, BlockingLink, packed
from taskharbor.errors import DriverUnavailable

# More threads at once share the connections of the awaited verbs.
MOST_OPEN = 10
BURST = 0.005


class BlockingLinks:
    """The connections of all threads of a process."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: deque[BlockingLink] = deque()
        self._open: WeakSet[BlockingLink] = WeakSet()
        self._closed = False

    def has_free(self) -> bool:
        """Whether a connection is idle, or may be made."""
        return bool(self._idle) or len(self._open) < MOST_OPEN

    def run(self, script: Script, prefix: str, args: tuple[Arg, ...], timeout: float) -> Any:
        """Run a script; see `Server.run`."""
        deadline = time.monotonic() + timeout
        link = self._take(deadline)
        try:
            try:
                reply = link.request(packed(("EVALSHA", script.sha, 1, prefix, *args)), deadline)
            except ReplyError as error:
                if not str(error).startswith("NOSCRIPT"):
                    raise
                reply = link.request(packed(("EVAL", script.text, 1, prefix, *args)), deadline)
        except BaseException as error:
            if isinstance(error, ReplyError) and not is_replica(error):
                self._keep(link)
            else:
                self._drop(link)
            if (ours := failure(error, self._address, asked=True)) is not error:
                raise ours from error
            raise
        self._keep(link)
        return reply

    def _take(self, deadline: float) -> BlockingLink:
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                break
            if link.is_quiet(BURST):
                return link
            self._drop(link)
        if (left := deadline - time.monotonic()) <= 0:
            raise DriverUnavailable(f"{self._address.where} does not answer in time")
        try:
            link = BlockingLink(self._address, min(left, CONNECT_WITHIN))
        except Exception as error:
            if (ours := failure(error, self._address)) is not error:
                raise ours from error
            raise
        self._open.add(link)
        return link

    def _keep(self, link: BlockingLink) -> None:
        if self._closed or len(self._idle) >= MOST_OPEN:
            self._drop(link)
        else:
            self._idle.append(link)
            if self._closed:  # just now
                self._drop_idle()

    def _drop(self, link: BlockingLink) -> None:
        self._open.discard(link)
        link.close()

    def close(self) -> None:
        """Close all idle connections; the others are closed after use."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        while True:
            try:
                self._drop(self._idle.pop())
            except IndexError:
                return
