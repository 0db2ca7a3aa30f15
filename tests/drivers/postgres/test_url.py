"""`postgresql://` URLs: their meaning, refusals, and that no message ever shows a password."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from servers.fixtures import NewPostgres
from servers.postgres import PostgresServer
from taskharbor import Harbor
from taskharbor.driver import Driver
from taskharbor.drivers import from_url, migrate, parse, redacted
from taskharbor.drivers.postgres.login import Login, login
from taskharbor.drivers.shared.tls import is_local
from taskharbor.errors import ConfigError, DriverUnavailable, HarborError, MissingExtra

NOBODY = "postgresql://nowhere.invalid/db"


def read(url: str) -> Login:
    """The login that the driver reads from a URL; every option must be known."""
    parts, options = parse(url)
    found = login(parts, options)
    assert options == {}
    return found


def opened(url: str) -> None:
    async def act() -> None:
        driver: Driver = await from_url(url)
        await driver.close()

    asyncio.run(act())


def refusal(url: str, kind: type[HarborError] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        opened(url)
    return str(caught.value)


@pytest.mark.parametrize(
    ("url", "host", "port", "user", "password", "database"),
    [
        ("postgresql://", "localhost", 5432, None, None, None),
        ("postgresql://localhost", "localhost", 5432, None, None, None),
        ("postgresql://me:pw@localhost:6543/shop", "localhost", 6543, "me", "pw", "shop"),
        ("postgresql://me@localhost/", "localhost", 5432, "me", None, None),
        (
            "postgresql://m%40e:p%3A%2F%3F%23%40%25w@localhost/my%20shop",
            "localhost",
            5432,
            "m@e",
            "p:/?#@%w",
            "my shop",
        ),
        ("postgresql://me:p+w@localhost/a+b", "localhost", 5432, "me", "p+w", "a+b"),
        ("postgresql://me:pw@[::1]:6543/shop", "::1", 6543, "me", "pw", "shop"),
        ("postgresql:///shop?host=/run/pg&port=6543", "/run/pg", 6543, None, None, "shop"),
        ("postgresql://me@/shop?host=/My%20Folder", "/My Folder", 5432, "me", None, "shop"),
        ("postgresql://me@%2Frun%2FPG:6543/shop", "/run/PG", 6543, "me", None, "shop"),
        ("postgresql:///shop?user=me&password=p%26w", "localhost", 5432, "me", "p&w", "shop"),
        ("postgres://me@localhost/shop", "localhost", 5432, "me", None, "shop"),
    ],
)
def test_what_a_url_says(
    url: str, host: str, port: int, user: str | None, password: str | None, database: str | None
) -> None:
    """P: the forms that other programs take, percent signs included."""
    found = read(url)
    assert (found.host, found.port, found.user, found.password, found.database) == (
        host,
        port,
        user,
        password,
        database,
    )
    assert found.schema == "taskharbor"
    assert not found.pooled


def test_options() -> None:
    """P: namespace, pgbouncer."""
    found = read("postgresql://localhost/db?namespace=my%20shop&pgbouncer=true")
    assert (found.schema, found.pooled) == ("my shop", True)
    assert not read("postgresql://localhost/db?pgbouncer=false").pooled


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("postgresql://me:pw@db.example:6543/shop", "PostgreSQL at db.example:6543 (database shop)"),
        ("postgresql://me:pw@[::1]/shop", "PostgreSQL at [::1]:5432 (database shop)"),
        ("postgresql://me:pw@/?host=/run/pg", "PostgreSQL at /run/pg/.s.PGSQL.5432 (database me)"),
        ("postgresql://localhost", "PostgreSQL at localhost:5432 (database default)"),
    ],
)
def test_how_messages_name_a_server(url: str, where: str) -> None:
    """X5: no password, not even in what a debugger shows."""
    found = read(url)
    assert found.where == where
    assert "pw" not in repr(found)


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        (":port/db", "port"),
        (":0/db", "port"),
        (":65536/db", "port"),
        ("/db?port=x", "port"),
        ("/db?pgbouncer=yes", "write true or false"),
        ("/db?migrate=1", "write true or false"),
        ("/db?sslmode=prefer", "disable, require, verify-ca, verify-full"),
        ("/db?sslkey=key.pem", "needs sslcert"),
        ("/db?sslrootcert=/not/there.pem", "sslrootcert=/not/there.pem"),
        ("/db?sslmode=verify-ca&sslcert=/not/there.pem", "sslcert=/not/there.pem"),
        ("/db?colour=blue", "no option 'colour'"),
        ("/db?namespace=", "cannot be a namespace"),
        ("/db?namespace=a&namespace=b", "names an option twice"),
        ("/db?host=/tmp", "two hosts"),
        ("/db?user=you", "the user twice"),
        ("/db?password=hunter2", "the password twice"),
        (",other/db", "several hosts"),
        ("/db#x", "fragment"),
    ],
)
def test_what_a_url_cannot_say(rest: str, said: str) -> None:
    """X5: refused with the fix, before connecting, and without the password."""
    message = refusal(f"postgresql://me:hunter2@nowhere.invalid{rest}")
    assert said in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "password", ["hunter/2", "9/hunter", "hunter?2", "9?hunter", "hunter#2", "hunter@2", "h[unter"]
)
def test_a_password_that_was_not_encoded(password: str) -> None:
    """X5: what such a URL seems to say must not show in the message either."""
    message = refusal(f"postgresql://me:{password}@nowhere.invalid/db", HarborError)
    assert "hunter" not in message
    assert "h[unter" not in message


def test_a_host_that_python_refuses() -> None:
    """X5: Python's own message would show the whole login."""
    message = refusal("postgresql://me:hunter2@nowhere\u2100.invalid/db")
    assert "%XX" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:pw@h/db?namespace=x", "postgresql://me:***@h/db?namespace=x"),
        ("postgresql://h/db?user=me&password=pw&namespace=x", "postgresql://h/db?user=me&password=***&namespace=x"),
        ("postgresql://me:p@w@h/db", "postgresql://me:***@h/db"),
    ],
)
def test_urls_are_shown_without_passwords(url: str, shown: str) -> None:
    assert redacted(url) == shown
    assert "pw" not in repr(Harbor(url))


def test_sqlalchemys_way_of_writing_it() -> None:
    """X5: a URL that was copied from elsewhere."""
    assert "write postgresql://" in refusal("postgresql+asyncpg://localhost/db")


def test_without_asyncpg(monkeypatch: pytest.MonkeyPatch) -> None:
    """P: the error names the pip command; for migrate as well."""
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    migrating: Callable[[str], object] = lambda url: asyncio.run(migrate(url))  # noqa: E731
    for act in (opened, migrating):
        with pytest.raises(MissingExtra, match=r'pip install "taskharbor\[postgres\]"'):
            act("postgresql://localhost/db")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("/run/postgresql", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("db", False),
        ("localhost.example.com", False),
    ],
)
def test_which_hosts_are_local(host: str, local: bool) -> None:
    """Only the way to these may do without TLS by default."""
    assert is_local(host) == local


def test_both_ways_in(postgres: PostgresServer) -> None:
    """By TCP and by unix socket, also under the other name."""
    database = postgres.new_database()
    opened(postgres.url(database, migrate="true"))
    opened(postgres.socket_url(database))
    opened(postgres.url(database).replace("postgresql://", "postgres://"))


def test_no_server_there() -> None:
    """X2: a dead port, a folder without a socket, a name that does not exist."""
    for url in ("postgresql://127.0.0.1:1/db", "postgresql:///db?host=/nowhere", f"{NOBODY}?sslmode=disable"):
        assert "does not answer" in refusal(url, DriverUnavailable)


def test_passwords(new_postgres: NewPostgres) -> None:
    """X5: scram; a wrong or missing one, a wrong user or database are named, never shown."""
    server = new_postgres()
    server.execute("CREATE ROLE ada LOGIN SUPERUSER PASSWORD 'very secret: /@'")
    require_passwords(server)
    good = f"postgresql://ada:very%20secret%3A%20%2F%40@127.0.0.1:{server.port}/postgres"
    opened(f"{good}?migrate=true")
    for url in (
        good.replace("very", "Very"),
        good.replace(":very%20secret%3A%20%2F%40", ""),
        good.replace("ada", "bob"),
    ):
        message = refusal(url)
        assert "check user, password and database in the URL" in message
        assert "ecret" not in message
    assert 'database "nowhere" does not exist' in refusal(good.replace("/postgres", "/nowhere"))


def require_passwords(server: PostgresServer) -> None:
    """By TCP; the unix socket stays open."""
    rules = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
    Path(server.folder, "data", "pg_hba.conf").write_text(rules, encoding="utf-8")
    server.execute("SELECT pg_reload_conf()")
