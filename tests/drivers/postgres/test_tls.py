"""TLS by URL parameters, as libpq names them, and checked by default for hosts that are not local."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from itertools import product
from pathlib import Path

import psycopg
import pytest

from servers.postgres import PostgresServer
from servers.tls import Authority, TlsDoor
from taskharbor.drivers import from_url, parse
from taskharbor.drivers.postgres import libpq
from taskharbor.drivers.postgres.login import TLS_MODES, login
from taskharbor.errors import ConfigError, DriverUnavailable

# This machine by a name that is not local: what other hosts get by default.
FAR = "0.0.0.0"


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
    names = ("localhost", "127.0.0.1", FAR)
    with TlsDoor(postgres.port, authority.signed("server", *names)) as door:
        yield door


@pytest.fixture(scope="module")
def odd_door(postgres: PostgresServer, authority: Authority) -> Generator[TlsDoor]:
    """The server behind a certificate for another name."""
    with TlsDoor(postgres.port, authority.signed("odd", "db.example")) as door:
        yield door


@pytest.fixture(scope="module")
def between(folder: Path, authority: Authority) -> Authority:
    """One that ours has signed."""
    return Authority(folder, "between", under=authority)


@pytest.fixture(scope="module")
def deep_door(postgres: PostgresServer, between: Authority) -> Generator[TlsDoor]:
    """The server behind a certificate of the authority between, which it shows as well."""
    with TlsDoor(postgres.port, between.signed("deep", "127.0.0.1")) as door:
        yield door


@pytest.fixture(scope="module")
def strict_door(postgres: PostgresServer, authority: Authority) -> Generator[TlsDoor]:
    """A server that wants to see certificates itself."""
    server = authority.signed("strict", "127.0.0.1")
    with TlsDoor(postgres.port, server, clients=authority.certificate) as door:
        yield door


def opened(url: str) -> None:
    async def act() -> None:
        await (await from_url(url)).close()

    asyncio.run(act())


def opened_blocking(url: str) -> None:
    """The same by psycopg, which has TLS of its own."""
    login(*parse(url)).connect_blocking().close()


def both_open(url: str) -> bool:
    """Whether one gets in, by either library."""
    opens = [_opens(opened, url), _opens(opened_blocking, url)]
    assert len(set(opens)) == 1, f"asyncpg, psycopg: {opens} with {url}"
    return opens[0]


def _opens(way: Callable[[str], None], url: str) -> bool:
    try:
        way(url)
    except (ConfigError, DriverUnavailable, psycopg.OperationalError):
        return False
    return True


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
        with pytest.raises(ConfigError, match=r"no trusted authority has signed .*sslrootcert=/path/to/ca.pem"):
            opened(at(door, database, sslmode=mode, sslrootcert=stranger.certificate))

    @pytest.mark.parametrize("mode", ["verify-full", "verify-ca"])
    def test_without_an_authority_the_systems_are_asked(self, door: TlsDoor, database: str, mode: str) -> None:
        for url in (at(door, database, sslmode=mode), at(door, database, sslmode=mode, sslrootcert="system")):
            with pytest.raises(ConfigError, match="no trusted authority has signed"):
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

    def test_a_certificate_that_only_newer_pythons_refuse(
        self, postgres: PostgresServer, database: str, authority: Authority
    ) -> None:
        """The list of names is empty, which is against the standard. libpq does not mind, on any Python."""
        with TlsDoor(postgres.port, authority.signed("nameless")) as door:
            assert both_open(at(door, database, sslmode="verify-ca", sslrootcert=authority.certificate))

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

    def test_a_certificate_and_its_key_in_one_file(
        self, strict_door: TlsDoor, database: str, authority: Authority, folder: Path
    ) -> None:
        """sslcert alone."""
        both = folder / "both.pem"
        both.touch(0o600)
        both.write_bytes(b"".join(file.read_bytes() for file in authority.signed("one file")))
        assert both_open(at(strict_door, database, sslrootcert=authority.certificate, sslcert=both))

    def test_a_key_that_others_can_read(
        self, strict_door: TlsDoor, database: str, authority: Authority, folder: Path
    ) -> None:
        """X5: refused by both, before connecting."""
        certificate, key = authority.signed("careless")
        url = at(strict_door, database, sslrootcert=authority.certificate, sslcert=certificate, sslkey=key)
        assert both_open(url)
        key.chmod(0o644)
        for way in (opened, opened_blocking):
            with pytest.raises(ConfigError, match=r"others can read or change the key in .*careless\.key: chmod 600"):
                way(url)

    def test_files_that_are_no_certificates(self, door: TlsDoor, database: str, folder: Path) -> None:
        """X5: before connecting."""
        (folder / "empty.pem").touch()
        for name in ("sslrootcert", "sslcert"):
            with pytest.raises(ConfigError, match=f"cannot be used .*check {name}=.*empty.pem"):
                opened(at(door, database, **{name: folder / "empty.pem"}))


class TestDefaults:
    def test_a_host_elsewhere_is_checked_in_full(
        self, door: TlsDoor, odd_door: TlsDoor, database: str, authority: Authority
    ) -> None:
        """TLS, verified, unless the URL says otherwise."""
        with pytest.raises(ConfigError, match="no trusted authority has signed"):
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

    def test_named_certificates_are_used(self, door: TlsDoor, database: str, stranger: Authority) -> None:
        """Also on this machine: the authority in the URL must not be forgotten silently."""
        with pytest.raises(ConfigError, match="no trusted authority has signed"):
            opened(at(door, database, sslrootcert=stranger.certificate))

    def test_a_unix_socket_needs_none(self, authority: Authority) -> None:
        url, options = parse(f"postgresql:///db?host=/run/pg&sslmode=verify-full&sslrootcert={authority.certificate}")
        assert login(url, options).tls is None


class TestBothLibraries:
    """A `def` handler's transaction goes by psycopg: its line is as safe as that of asyncpg, no more and no less."""

    @pytest.mark.parametrize("name", ["door", "odd_door", "deep_door"])
    def test_they_agree_about_every_mode_and_authority(
        self, request: pytest.FixtureRequest, name: str, database: str, authority: Authority, stranger: Authority
    ) -> None:
        door: TlsDoor = request.getfixturevalue(name)
        between: Authority = request.getfixturevalue("between")
        roots = {"ours": authority, "a stranger's": stranger, "no end of a chain": between}
        found: set[tuple[str, str]] = set()
        for mode, root in product(("", *TLS_MODES), ("", "system", *roots)):
            options: dict[str, str | Path] = {"sslmode": mode} if mode else {}
            if root:
                options["sslrootcert"] = roots[root].certificate if root in roots else root
            if both_open(at(door, database, **options)):
                found.add((mode, root))
        unchecked = {("", ""), ("require", ""), *(("disable", root) for root in ("", "system", *roots))}
        checked = {(mode, "ours") for mode in ("", "require", "verify-ca", "verify-full")}
        named_otherwise = {("", "ours"), ("verify-full", "ours")} if name == "odd_door" else set()
        assert found == unchecked | checked - named_otherwise

    @pytest.mark.parametrize("mode", TLS_MODES)
    def test_they_trust_the_same_system(
        self, door: TlsDoor, database: str, authority: Authority, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        for host in ("127.0.0.1", FAR):
            assert both_open(at(door, database, host))
            assert both_open(at(door, database, host, sslmode=mode))
            assert both_open(at(door, database, host, sslmode=mode, sslrootcert="system"))

    def test_they_agree_about_a_host_elsewhere(self, postgres: PostgresServer, door: TlsDoor, database: str) -> None:
        assert not both_open(at(door, database, FAR))
        assert both_open(at(door, database, FAR, sslmode="require"))
        assert not both_open(postgres.url(database).replace("127.0.0.1", FAR))

    def test_what_lies_about_at_home_or_in_the_environment_changes_nothing(
        self,
        door: TlsDoor,
        database: str,
        authority: Authority,
        stranger: Authority,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Files and variables that psql would take."""
        home = tmp_path / ".postgresql"
        home.mkdir()
        for file in ("postgresql.crt", "postgresql.key", "root.crl"):
            (home / file).write_text("no certificate", encoding="utf-8")
        (home / "root.crt").write_bytes(stranger.certificate.read_bytes())
        monkeypatch.setenv("HOME", str(tmp_path))
        modes = [
            at(door, database, sslmode="require"),
            at(door, database, sslmode="verify-full", sslrootcert=authority.certificate),
        ]
        assert [both_open(url) for url in modes] == [True, True]
        for name, value in {
            "PGSSLMODE": "disable",
            "PGSSLROOTCERT": stranger.certificate,
            "PGSSLCERT": home / "postgresql.crt",
            "PGSSLKEY": home / "postgresql.key",
            "PGSSLCRL": home / "root.crl",
        }.items():
            monkeypatch.setenv(name, str(value))
        before = door.encrypted
        assert [both_open(url) for url in modes] == [True, True]
        assert door.encrypted == before + 4

    def test_the_systems_authorities_may_be_in_a_folder(
        self, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """X5: libpq wants one file with all of them."""
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nothing"))
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
        words = libpq.words("verify-ca", None, None, None)
        with pytest.raises(ConfigError, match=r"sslrootcert=/path/to/ca\.pem"):
            libpq.found(words)
        (tmp_path / "ca-certificates.crt").write_bytes(authority.certificate.read_bytes())
        assert libpq.found(words)["sslrootcert"] == str(tmp_path / "ca-certificates.crt")
