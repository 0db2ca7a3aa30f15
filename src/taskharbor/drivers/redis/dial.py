"""Sockets for threads, connected by a deadline: for the resolver, the addresses of a name, and TLS together.

Without a lock of `threading`: a signal handler may interrupt this, and connect as well.
"""

from __future__ import annotations

import socket
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from taskharbor.drivers.redis.url import Address

Endpoint: TypeAlias = tuple[int, Any]  # family and address


def connected(address: Address, deadline: float) -> socket.socket:
    """A connection, with TLS if the address has it, by `deadline` of the monotonic clock."""
    if address.socket is not None:
        return _dialled(socket.AF_UNIX, address.socket, deadline)
    line = _first_that_answers(_resolved(address, deadline), deadline)
    try:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line.settimeout(left(deadline))
        return line if address.tls is None else address.tls.wrap_socket(line, server_hostname=address.host)
    except BaseException:
        line.close()
        raise


def left(deadline: float) -> float:
    """The seconds until a deadline; `TimeoutError` if there are none."""
    if (seconds := deadline - time.monotonic()) <= 0:
        raise TimeoutError("no answer in time")
    return seconds


def _first_that_answers(places: Sequence[Endpoint], deadline: float) -> socket.socket:
    """A connection to the first address that answers; one that is silent leaves the others their share of the time."""
    for number, (family, place) in enumerate(places[:-1]):
        with suppress(OSError):
            return _dialled(family, place, time.monotonic() + left(deadline) / (len(places) - number))
    return _dialled(*places[-1], deadline)


def _dialled(family: int, place: Any, deadline: float) -> socket.socket:
    line = socket.socket(family)
    try:
        line.settimeout(left(deadline))
        line.connect(place)
    except BaseException:
        line.close()
        raise
    return line


def _resolved(address: Address, deadline: float) -> list[Endpoint]:
    """The addresses of a host. A thread looks names up, because the resolver knows no deadline."""
    with suppress(socket.gaierror):
        return _looked_up(address, socket.AI_NUMERICHOST)
    found: list[list[Endpoint] | Exception] = []
    done = allocate_lock()
    done.acquire()

    def look_up() -> None:
        try:
            found.append(_looked_up(address))
        except Exception as error:
            found.append(error)
        finally:
            done.release()

    try:
        start_new_thread(look_up, ())
    except RuntimeError:  # the interpreter ends
        look_up()
    if not done.acquire(timeout=left(deadline)):
        raise TimeoutError(f"the name {address.host} was not resolved in time")
    (answer,) = found
    if isinstance(answer, Exception):
        raise answer
    return answer


def _looked_up(address: Address, flags: int = 0) -> list[Endpoint]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, place) for family, _, _, _, place in found]
