"""The parts of a URL: the address of the server, the login, and how safe the connection has to be."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote

import asyncpg
from msgspec import Struct

from taskharbor.drivers.postgres import libpq
from taskharbor.drivers.postgres.sql import DEFAULT_SCHEMA, quoted
from taskharbor.drivers.shared import tls
from taskharbor.drivers.shared.address import check_at_signs, check_one_host, port_of
from taskharbor.errors import ConfigError

if TYPE_CHECKING:
    import psycopg

TLS_MODES = ("disable", "require", "verify-ca", "verify-full")
# For one attempt. Callers retry, and recover within 5 s after the server is back (X2).
CONNECT_WITHIN = 3.0
DEFAULT_PORT = 5432
# A handler's own statement may take any time, but not on a dead connection.
ALIVE: dict[str, Any] = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
LENT = {"application_name": "taskharbor"}
# Statements are planned once, by their indexes: a plan made for a small table has to suit a large one.
SESSION = {
    **LENT,
    "default_transaction_isolation": "read committed",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


class Login(Struct, frozen=True, kw_only=True):
    """Everything needed to connect. `pooled` means that a pooler may give every transaction another session."""

    host: str
    port: int = 5432
    user: str | None = None
    password: str | None = None
    database: str | None = None
    schema: str = DEFAULT_SCHEMA
    pooled: bool = False
    tls: ssl.SSLContext | None = None
    libpq_options: Mapping[str, str] = {}  # the same as `tls`, for libpq

    def __repr__(self) -> str:
        return f"<Login {self.where}>"

    @property
    def where(self) -> str:
        """The server as named in messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        at = f"{self.host}/.s.PGSQL.{self.port}" if self.is_socket else f"{host}:{self.port}"
        return f"PostgreSQL at {at} (database {self.database or self.user or 'default'})"

    @property
    def is_socket(self) -> bool:
        """Whether the server is reached by a unix socket."""
        return self.host.startswith("/")

    async def connect(self, *, lent: bool = False) -> asyncpg.Connection[asyncpg.Record]:
        """Connect. A connection that is lent to handlers plans statements as the server does by default."""
        return await asyncpg.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            database=self.database,
            ssl=self.tls if self.tls is not None else False,
            direct_tls=False,
            timeout=CONNECT_WITHIN,
            statement_cache_size=0 if self.pooled else 256,
            max_cached_statement_lifetime=0,
            server_settings={} if self.pooled else LENT if lent else SESSION,
        )

    def connect_blocking(self, *, lent: bool = True) -> psycopg.Connection[Any]:
        """Connect for blocking calls, by psycopg 3 in autocommit mode; `lent` as for `connect`."""
        import psycopg

        return psycopg.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            dbname=self.database,
            connect_timeout=int(CONNECT_WITHIN),
            prepare_threshold=None if self.pooled else 5,
            autocommit=True,
            gssencmode="disable",
            options="" if self.pooled or lent else libpq.settings(SESSION),
            **ALIVE,
            **libpq.found(self.libpq_options),
        )


def login(url: SplitResult, options: dict[str, str]) -> Login:
    """Read a URL; takes the options that it knows out of the dict."""
    check_at_signs(url)
    host = _host(url, options)
    schema = options.pop("namespace", DEFAULT_SCHEMA)
    quoted(schema)
    encryption, words = _encryption(host, options)
    return Login(
        host=host,
        port=port_of(url, DEFAULT_PORT, options.pop("port", None)),
        user=_part("user", url.username, options),
        password=_part("password", url.password, options),
        database=unquote(url.path[1:]) or None,
        schema=schema,
        pooled=switch(options, "pgbouncer"),
        tls=encryption,
        libpq_options=words,
    )


def switch(options: dict[str, str], name: str) -> bool:
    """An option that is true or false."""
    text = options.pop(name, "false")
    if text not in ("true", "false"):
        raise ConfigError(f"{name}={text!r} in the URL: write true or false")
    return text == "true"


def _host(url: SplitResult, options: dict[str, str]) -> str:
    """A name, an address, or the folder of a unix socket: `?host=/run/postgresql`, `//%2Frun%2Fpostgresql/`."""
    place = url.netloc.rpartition("@")[2]
    named = unquote(place.partition(":")[0]) if place.startswith("%2") else url.hostname
    asked = options.pop("host", None)
    if asked and named and asked != named:
        raise ConfigError(f"the URL names two hosts, {named!r} and {asked!r}: leave one of them out")
    host = asked or named or "localhost"
    check_one_host(host)
    return host


def _part(name: str, given: str | None, options: dict[str, str]) -> str | None:
    """The user or the password, from the front of the URL or from its options."""
    asked = options.pop(name, None)
    if asked and given:
        raise ConfigError(f"the URL names the {name} twice: leave one of them out")
    return unquote(given) if given else asked or None


def _encryption(host: str, options: dict[str, str]) -> tuple[ssl.SSLContext | None, dict[str, str]]:
    """The encryption, for asyncpg and for libpq: verified by default, unless the server is on this machine."""
    root, own, key = (options.pop(name, None) or None for name in ("sslrootcert", "sslcert", "sslkey"))
    unsaid = "disable" if tls.is_local(host) and root is None and own is None else "verify-full"
    mode = options.pop("sslmode", unsaid)
    if mode not in TLS_MODES:
        raise ConfigError(
            f"sslmode={mode!r} in the URL: write one of {', '.join(TLS_MODES)} (prefer and allow give no protection)"
        )
    if key is not None and own is None:
        raise ConfigError("sslkey in the URL needs sslcert beside it")
    if mode == "disable" or host.startswith("/"):
        return None, {"sslmode": "disable"}
    return tls.context(mode, root, own, key), libpq.words(mode, root, own, key)
