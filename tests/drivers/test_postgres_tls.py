"""TLS by URL parameters, as libpq names them, and checked by default for hosts that are not local."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from servers.postgres import PostgresServer
from servers.tls import Authority, TlsDoor, has_openssl
from taskharbor.drivers import from_url, parse
from taskharbor.drivers.postgres.login import login
from taskharbor.errors import ConfigError, DriverUnavailable

# This machine by a name that is not local: what other hosts get by default.
FAR = "0.0.0.0"

pytestmark = pytest.mark.skipif(not has_openssl(), reason="needs the program openssl to make certificates")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "ours")


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Authority:
    return Authority(folder, "stranger")


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    name = postgres.new_database()
    opened(postgres.url(name, migrate="true"))
    return name


@pytest.fixture(scope="module")
def door(postgres: PostgresServer, authority: Authority) -> Generator[TlsDoor]:
    """The server behind a certificate for 127.0.0.1, localhost and the far name."""
    names = ("DNS:localhost", "IP:127.0.0.1", f"IP:{FAR}")
    with TlsDoor(postgres.port, authority.signed("server", *names)) as door:
        yield door


@pytest.fixture(scope="module")
def odd_door(postgres: PostgresServer, authority: Authority) -> Generator[TlsDoor]:
    """The server behind a certificate for another name."""
    with TlsDoor(postgres.port, authority.signed("odd", "DNS:db.example")) as door:
        yield door


@pytest.fixture(scope="module")
def strict_door(postgres: PostgresServer, authority: Authority) -> Generator[TlsDoor]:
    """A server that wants to see certificates itself."""
    server = authority.signed("strict", "IP:127.0.0.1")
    with TlsDoor(postgres.port, server, clients=authority.certificate) as door:
        yield door


def opened(url: str) -> None:
    async def act() -> None:
        await (await from_url(url)).close()

    asyncio.run(act())


def at(door: TlsDoor, database: str, host: str = "127.0.0.1", /, **options: str | Path) -> str:
    words = "&".join(f"{name}={value}" for name, value in options.items())
    return f"postgresql://postgres@{host}:{door.port}/{database}?{words}"


class TestChecking:
    @pytest.mark.parametrize("mode", ["verify-full", "verify-ca", "require"])
    def test_the_right_authority_is_accepted(
        self, door: TlsDoor, database: str, authority: Authority, mode: str
    ) -> None:
        before = door.encrypted
        opened(at(door, database, sslmode=mode, sslrootcert=authority.certificate))
        assert door.encrypted > before

    @pytest.mark.parametrize("mode", ["verify-full", "verify-ca", "require"])
    def test_a_wrong_authority_is_refused(self, door: TlsDoor, database: str, stranger: Authority, mode: str) -> None:
        """X5: with the fix. An authority that is named is asked, also with `require`."""
        with pytest.raises(ConfigError, match=r"nobody we trust has signed .*sslrootcert=/path/to/ca.pem"):
            opened(at(door, database, sslmode=mode, sslrootcert=stranger.certificate))

    @pytest.mark.parametrize("mode", ["verify-full", "verify-ca"])
    def test_without_an_authority_the_systems_are_asked(self, door: TlsDoor, database: str, mode: str) -> None:
        for url in (at(door, database, sslmode=mode), at(door, database, sslmode=mode, sslrootcert="system")):
            with pytest.raises(ConfigError, match="nobody we trust has signed"):
                opened(url)

    def test_require_alone_checks_nothing(self, odd_door: TlsDoor, database: str) -> None:
        opened(at(odd_door, database, sslmode="require"))
        assert odd_door.encrypted

    def test_another_name_is_refused_by_verify_full_only(
        self, odd_door: TlsDoor, database: str, authority: Authority
    ) -> None:
        with pytest.raises(ConfigError, match=r"a certificate for another name .*sslmode=verify-ca"):
            opened(at(odd_door, database, sslmode="verify-full", sslrootcert=authority.certificate))
        opened(at(odd_door, database, sslmode="verify-ca", sslrootcert=authority.certificate))

    def test_disable_does_without(self, door: TlsDoor, database: str) -> None:
        before = door.encrypted
        opened(at(door, database, sslmode="disable"))
        assert door.encrypted == before

    def test_a_certificate_of_our_own(self, strict_door: TlsDoor, database: str, authority: Authority) -> None:
        """sslcert and sslkey."""
        certificate, key = authority.signed("client")
        ours = {"sslrootcert": authority.certificate}
        opened(at(strict_door, database, **ours, sslcert=certificate, sslkey=key))
        with pytest.raises(DriverUnavailable):
            opened(at(strict_door, database, **ours))

    def test_files_that_are_no_certificates(self, door: TlsDoor, database: str, folder: Path) -> None:
        """X5: before anybody connects."""
        (folder / "empty.pem").touch()
        for name in ("sslrootcert", "sslcert"):
            with pytest.raises(ConfigError, match=f"cannot be used .*check {name}=.*empty.pem"):
                opened(at(door, database, **{name: folder / "empty.pem"}))


class TestDefaults:
    def test_a_host_elsewhere_is_checked_in_full(
        self, door: TlsDoor, odd_door: TlsDoor, database: str, authority: Authority
    ) -> None:
        """TLS, verified, unless the URL says otherwise."""
        with pytest.raises(ConfigError, match="nobody we trust has signed"):
            opened(at(door, database, FAR))
        with pytest.raises(ConfigError, match="for another name"):
            opened(at(odd_door, database, FAR, sslrootcert=authority.certificate))
        opened(at(door, database, FAR, sslrootcert=authority.certificate))

    def test_a_host_elsewhere_without_tls(self, postgres: PostgresServer, database: str) -> None:
        """X5: a server with ssl=off."""
        url = postgres.url(database).replace("127.0.0.1", FAR)
        with pytest.raises(ConfigError, match=r"offers no TLS: set ssl=on there, or add sslmode=disable"):
            opened(url)
        opened(f"{url}?sslmode=disable")

    def test_a_local_host_is_not_encrypted(self, door: TlsDoor, database: str) -> None:
        before = door.encrypted
        opened(at(door, database))
        assert door.encrypted == before

    def test_whoever_names_certificates_wants_them_used(
        self, door: TlsDoor, database: str, stranger: Authority
    ) -> None:
        """Also on this machine: the authority in the URL must not be forgotten silently."""
        with pytest.raises(ConfigError, match="nobody we trust has signed"):
            opened(at(door, database, sslrootcert=stranger.certificate))

    def test_a_unix_socket_needs_none(self, authority: Authority) -> None:
        url, options = parse(f"postgresql:///db?host=/run/pg&sslmode=verify-full&sslrootcert={authority.certificate}")
        assert login(url, options).tls is None
