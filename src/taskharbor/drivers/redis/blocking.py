"""Scripts on the thread of the caller, on connections that threads take in turn (decision 23).

A connection on which anything unexpected happened, Ctrl-C included, is closed.
"""

from __future__ import annotations

import time
from typing import Any

from taskharbor.drivers.redis.failure import ReplyError, failure, is_replica
from taskharbor.drivers.redis.scripts import Script
from taskharbor.drivers.redis.url import Address
from taskharbor.drivers.redis.wire import CONNECT_WITHIN, Arg, BlockingLink, packed
from taskharbor.drivers.shared.idle import IdleConnections
from taskharbor.errors import DriverUnavailable

# More threads at once share the connections of the awaited verbs.
MOST_OPEN = 10
BURST = 0.005


class BlockingLinks:
    """The connections of all threads of a process."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connections = IdleConnections[BlockingLink](MOST_OPEN, BURST)

    def has_free(self) -> bool:
        """Whether a connection is idle, or may be made."""
        return self._connections.idle > 0 or self._connections.open < MOST_OPEN

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
                self._connections.keep(link)
            else:
                self._connections.drop(link)
            if (ours := failure(error, self._address, asked=True)) is not error:
                raise ours from error
            raise
        self._connections.keep(link)
        return reply

    def _take(self, deadline: float) -> BlockingLink:
        if (link := self._connections.take()) is not None:
            return link
        if (left := deadline - time.monotonic()) <= 0:
            raise DriverUnavailable(f"{self._address.where} does not answer in time")
        try:
            link = BlockingLink(self._address, min(left, CONNECT_WITHIN))
        except Exception as error:
            if (ours := failure(error, self._address)) is not error:
                raise ours from error
            raise
        self._connections.add(link)
        return link

    def close(self) -> None:
        """Close all idle connections; the others are closed after use."""
        self._connections.close()
