"""Checks of the URL of a server, before any connection is made."""

from __future__ import annotations

from urllib.parse import SplitResult

from taskharbor.errors import ConfigError

MOST_PORTS = 65_535


def check_at_signs(url: SplitResult) -> None:
    """Refuse a second @: what looks like a database or an option may be half a password."""
    if "@" in url.path or "@" in url.query:
        raise ConfigError("the URL has an @ too many: in names and passwords, write @ / ? # % as %40 %2F %3F %23 %25")


def check_one_host(host: str) -> None:
    """Refuse a list of hosts."""
    if "," in host:
        raise ConfigError("the URL names several hosts: name one, such as the address that follows a failover")


def port_of(url: SplitResult, default: int, option: str | None = None) -> int:
    """The port, from an option if there is one."""
    try:
        given = option or url.port
        port = default if given is None else int(given)
    except ValueError:
        port = -1
    if not 0 < port <= MOST_PORTS:
        raise ConfigError(
            "the port in the URL is not a number between 1 and 65535 (in a password, write : / as %3A %2F)"
        )
    return port
