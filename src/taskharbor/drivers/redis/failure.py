"""Translates errors of Redis into ours, each with the fix."""

from __future__ import annotations

import re
import ssl

import hiredis

from taskharbor.drivers.redis.url import Address
from taskharbor.drivers.shared import tls
from taskharbor.errors import ConfigError, DriverError, DriverUnavailable, HarborError

LOGIN = ("NOAUTH", "WRONGPASS", "invalid password", "AUTH", "wrong number of arguments for 'auth'")
FORBIDDEN = ("NOPERM", "ACL failure", "The user executing the script can't run")
DATABASE = ("DB index is out of range", "invalid DB index", "SELECT is not allowed in cluster mode")
BUSY = {
    "LOADING": "it is loading its data: wait",
    "MASTERDOWN": "it is a replica without its primary: wait for the failover",
    "CLUSTERDOWN": "its cluster is down, or no node has the slot: look at CLUSTER INFO there",
    "TRYAGAIN": "its cluster is moving the slot: wait",
    "ASK": "its cluster is moving the slot: wait",
    "BUSY": "a script of another program blocks it: wait, or SCRIPT KILL there",
    "UNKILLABLE": "a script of another program blocks it: wait",
    "NOREPLICAS": "too few replicas are in touch: look at min-replicas-to-write there",
    "MISCONF": "it cannot write to its disk, and nothing was stored: look at its log",
    "READONLY": "it is a replica and takes no writes: wait for the failover, or name the primary in the URL",
    "OOM": "it is out of memory, and nothing was stored: raise maxmemory there, or let workers finish jobs",
    "max number of clients": "it has too many clients: raise maxclients there",
}

TOO_LONG = "Protocol error"
OTHERS = ("WRONGTYPE", "MOVED", "CROSSSLOT", "DENIED", TOO_LONG)
# Redis 6 puts words before the error of a command in a script, Redis 7 behind it.
WORD = re.compile(
    r"(?:ERR )?(?:Error running script.*?@user_script: ?\d+: )?-?"
    rf"({'|'.join(map(re.escape, (*LOGIN, *FORBIDDEN, *DATABASE, *BUSY, *OTHERS)))})\b"
)


class ReplyError(Exception):
    """An error that the server has answered; its connection is usable."""


class Refused(DriverError):
    """An error of a script, identified by `word`, the first of its message; or an unforeseen one of the server."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.word, _, self.rest = message.partition(" ")


def failure(error: BaseException, address: Address, *, asked: bool = False) -> BaseException:
    """Translate an error of a connection; return others as they are. `asked`: the request may have been received."""
    if isinstance(error, HarborError):
        return error
    if isinstance(error, ReplyError):
        return _answered(str(error), address)
    if isinstance(error, ssl.SSLCertVerificationError):
        return tls.unverified(error, address.where)
    if isinstance(error, ssl.SSLError) and not asked:
        return ConfigError(
            f"{address.where} offers no TLS that fits: write redis:// in the URL, or set it up ({error})"
        )
    if isinstance(error, hiredis.ProtocolError):
        return ConfigError(f"{address.where} does not answer as Redis does: check host and port in the URL ({error})")
    if isinstance(error, UnicodeError) and not asked:
        return ConfigError(f"{address.where}: that host cannot be a name: check it in the URL ({error})")
    if isinstance(error, OSError):
        return away(error, address, asked=asked)
    return error


def away(error: BaseException, address: Address, *, asked: bool) -> DriverUnavailable:
    """The error for a server that is gone or does not answer."""
    unknown = "; the operation may still take effect" if asked else ""
    hint = " If it has no TLS, write redis:// in the URL." if address.tls is not None and not asked else ""
    reason = str(error) or type(error).__name__
    return DriverUnavailable(f"{address.where} does not answer{unknown}: is it running and reachable?{hint} ({reason})")


def is_replica(error: BaseException) -> bool:
    """Whether the server has become a replica: another one is, or will be, the primary."""
    return isinstance(error, ReplyError) and _word(str(error)) in ("READONLY", "MASTERDOWN")


def _word(message: str) -> str:
    """The known word in an error of the server; empty for an error of our own scripts."""
    found = WORD.match(message)
    return found[1] if found else ""


def _answered(message: str, address: Address) -> HarborError:
    where, word = address.where, _word(message)
    if word in BUSY:
        return DriverUnavailable(f"{where}: {BUSY[word]} ({message})")
    if word in LOGIN:
        return ConfigError(f"{where} refuses the login: check user and password in the URL ({message})")
    if word in FORBIDDEN:
        user = address.user or "default"
        return ConfigError(f"{where}: the user {user} may not do this: change its ACL ({message})")
    if word in DATABASE:
        return ConfigError(f"{where}: there is no such database: check its number in the URL ({message})")
    if word == "WRONGTYPE":
        return ConfigError(
            f"{where}: another program uses keys that begin with {address.prefix}: add namespace=NAME to the URL "
            f"({message})"
        )
    if word in ("MOVED", "CROSSSLOT"):
        return ConfigError(
            f"{where}: another node of the cluster has the keys of namespace {address.namespace!r}: name that one in "
            f"the URL ({message})"
        )
    if word == "DENIED":
        return ConfigError(
            f"{where} takes clients of its own machine only: give it a password, and the URL too ({message})"
        )
    if word == TOO_LONG:
        return Refused(
            where, f"more than it takes in one call, so nothing was stored: enqueue fewer at once ({message})"
        )
    return Refused(where, message)
