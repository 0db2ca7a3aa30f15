"""The parts of a URL: the address of the server, the login, the database, and how safe the connection has to be."""

from __future__ import annotations

import ssl
from urllib.parse import SplitResult, unquote

from msgspec import Struct

from taskharbor.drivers.shared import tls
from taskharbor.drivers.shared.address import check_at_signs, check_one_host, port_of
from taskharbor.errors import ConfigError

DEFAULT_NAMESPACE = "taskharbor"
LONGEST_NAMESPACE = 57
DEFAULT_PORT = 6379
TLS_MODES = ("require", "verify-ca", "verify-full")
TLS_OPTIONS = ("sslmode", "sslrootcert", "sslcert", "sslkey")


class Address(Struct, frozen=True, kw_only=True):
    """Everything needed to connect. With `socket`, the path of a unix socket, host and port mean nothing."""

    host: str = "localhost"
    port: int = DEFAULT_PORT
    socket: str | None = None
    user: str | None = None
    password: str | None = None
    db: int = 0
    namespace: str = DEFAULT_NAMESPACE
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<Address {self.where}>"

    @property
    def where(self) -> str:
        """The server as named in messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"Redis at {self.socket or f'{host}:{self.port}'} (database {self.db})"

    @property
    def prefix(self) -> str:
        """The beginning of all keys: in braces, so that a cluster keeps them in one slot."""
        return f"{{{self.namespace}}}:"


def address(url: SplitResult, options: dict[str, str]) -> Address:
    """Read a URL before any connection is made; takes all options out of the dict, and refuses unknown ones."""
    check_at_signs(url)
    socket, db = _path(url, options)
    check_one_host(url.netloc.rpartition("@")[2])
    found = Address(
        host=url.hostname or "localhost",
        port=port_of(url, DEFAULT_PORT),
        socket=socket,
        user=_unquoted(url.username),
        password=_unquoted(url.password),
        db=_number(db),
        namespace=_namespace(options),
        tls=_encryption(options) if url.scheme == "rediss" else None,
    )
    _refuse(options)
    return found


def _refuse(options: dict[str, str]) -> None:
    if not options:
        return
    name = min(options)
    if name in TLS_OPTIONS:
        raise ConfigError(f"{name} in the URL is for TLS: write rediss:// in front, or leave it out")
    known = f"namespace, db, and with rediss:// {', '.join(TLS_OPTIONS)}"
    raise ConfigError(f"the redis driver has no option {name!r}: it has {known} (see docs/redis.md)")


def _path(url: SplitResult, options: dict[str, str]) -> tuple[str | None, str]:
    """The unix socket, if there is one, and the number of the database."""
    path = unquote(url.path)
    db = options.pop("db", "")
    if url.scheme != "unix":
        if db and path.strip("/"):
            raise ConfigError("the URL names a database in its path and with db=: leave one of them out")
        return None, path.strip("/") or db
    if not path.strip("/"):
        raise ConfigError("unix:// needs the path of a socket: write for example unix:///run/valkey/valkey.sock?db=0")
    if url.hostname:
        raise ConfigError(f"unix:// takes no host: write three slashes, unix:///{url.hostname}{path}")
    return path, db


def _number(db: str) -> int:
    if not db:
        return 0
    if not (db.isascii() and db.isdigit() and len(db) < 10):  # the server reads 32 bits
        raise ConfigError(f"{db[:80]!r} in the URL is not a database: Redis numbers them, write 0 or leave it out")
    return int(db)


def _unquoted(text: str | None) -> str | None:
    return unquote(text) if text else None


def _namespace(options: dict[str, str]) -> str:
    name = options.pop("namespace", DEFAULT_NAMESPACE)
    if not name or len(name.encode()) > LONGEST_NAMESPACE or not name.isprintable():
        raise ConfigError(f"{name[:80]!r} cannot be a namespace: use 1 to {LONGEST_NAMESPACE} bytes of printable text")
    if "{" in name or "}" in name:
        raise ConfigError(f"{name!r} cannot be a namespace: leave out {{ and }}, which mark the slot in a cluster")
    return name


def _encryption(options: dict[str, str]) -> ssl.SSLContext:
    """Verified, unless the URL asks for less."""
    root, own, key = (options.pop(name, None) or None for name in ("sslrootcert", "sslcert", "sslkey"))
    mode = options.pop("sslmode", "verify-full")
    if mode not in TLS_MODES:
        raise ConfigError(
            f"sslmode={mode!r} in the URL: write one of {', '.join(TLS_MODES)}, or redis:// for no encryption"
        )
    if key is not None and own is None:
        raise ConfigError("sslkey in the URL needs sslcert beside it")
    return tls.context(mode, root, own, key)
