"""The parts of a URL: hosts, login, namespace, and how streams are made."""

from __future__ import annotations

import ssl
from urllib.parse import SplitResult, unquote

from msgspec import Struct

from taskharbor.drivers.shared import tls
from taskharbor.drivers.shared.address import check_at_signs
from taskharbor.errors import ConfigError

DEFAULT_NAMESPACE = "taskharbor"
LONGEST_NAMESPACE = 57
DEFAULT_PORT = 4222
MOST_PORTS = 65_535
MOST_REPLICAS = 5
STORAGES = ("file", "memory")
TLS_MODES = ("require", "verify-ca", "verify-full")
TLS_OPTIONS = ("sslmode", "sslrootcert", "sslcert", "sslkey")
OPTIONS = ("namespace", "replicas", "storage", "creds", "nkey")
HostPort = tuple[str, int]


class NatsAddress(Struct, frozen=True, kw_only=True):
    """Everything needed to connect. `replicas` and `storage` are None if streams may have any."""

    hosts: tuple[HostPort, ...] = (("localhost", DEFAULT_PORT),)
    user: str | None = None
    password: str | None = None
    token: str | None = None
    creds: str | None = None
    nkey: str | None = None
    namespace: str = DEFAULT_NAMESPACE
    replicas: int | None = None
    storage: str | None = None
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<NatsAddress {self.where}>"

    @property
    def where(self) -> str:
        """The server as named in messages."""
        return "NATS at " + ", ".join(named(host) for host in self.hosts)

    @property
    def prefix(self) -> str:
        """The first token of all subjects, and the beginning of the names of streams."""
        return encoded(self.namespace)


def named(host: HostPort) -> str:
    """A host and its port as in a URL."""
    name, port = host
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def encoded(name: str) -> str:
    """A name as part of a subject or of the name of a stream, reversibly: other bytes become `=` and two digits."""
    return "".join(
        chr(byte) if (chr(byte).isalnum() and byte < 128) or byte in b"-_" else f"={byte:02X}" for byte in name.encode()
    )


def address(url: SplitResult, options: dict[str, str]) -> NatsAddress:
    """Read a URL before any connection is made; takes all options out of the dict, and refuses unknown ones."""
    check_at_signs(url)
    if url.path.strip("/"):
        raise ConfigError(f"the URL has a path, {url.path}: NATS has no databases; add namespace=NAME instead")
    login, _, places = url.netloc.rpartition("@")
    user, colon, password = login.partition(":")
    creds, nkey = (options.pop(name, None) or None for name in ("creds", "nkey"))
    if sum(found is not None for found in (creds, nkey, login or None)) > 1:
        raise ConfigError("the URL has several logins: leave one of user, creds= and nkey=")
    found = NatsAddress(
        hosts=tuple(parsed(place) for place in places.split(",")),
        user=unquote(user) if colon else None,
        password=unquote(password) if colon else None,
        token=unquote(login) if login and not colon else None,
        creds=creds,
        nkey=nkey,
        namespace=_namespace(options),
        replicas=_replicas(options),
        storage=_storage(options),
        tls=_encryption(options) if url.scheme == "tls" else None,
    )
    _refuse(options)
    return found


def _refuse(options: dict[str, str]) -> None:
    if not options:
        return
    name = min(options)
    if name in TLS_OPTIONS:
        raise ConfigError(f"{name} in the URL is for TLS: write tls:// in front, or leave it out")
    known = f"{', '.join(OPTIONS)}, and with tls:// {', '.join(TLS_OPTIONS)}"
    raise ConfigError(f"the nats driver has no option {name!r}: it has {known} (see docs/nats.md)")


def parsed(place: str) -> HostPort:
    """A host and its port, of a URL."""
    if place.startswith("["):
        name, closed, rest = place[1:].partition("]")
        if not closed or rest[:1] not in ("", ":"):
            raise ConfigError(f"{place!r} in the URL is not a host: write an IPv6 address as [::1]:4222")
        port = rest[1:]
    else:
        name, _, port = place.partition(":")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= MOST_PORTS):
        raise ConfigError("a port in the URL is not a number between 1 and 65535 (in a password, write : / as %3A %2F)")
    return name or "localhost", int(port or DEFAULT_PORT)


def _namespace(options: dict[str, str]) -> str:
    name = options.pop("namespace", DEFAULT_NAMESPACE)
    if not name or len(name.encode()) > LONGEST_NAMESPACE or not name.isprintable():
        raise ConfigError(f"{name[:80]!r} cannot be a namespace: use 1 to {LONGEST_NAMESPACE} bytes of printable text")
    return name


def _replicas(options: dict[str, str]) -> int | None:
    text = options.pop("replicas", "")
    if text and text not in map(str, range(1, MOST_REPLICAS + 1)):
        raise ConfigError(f"replicas={text!r} in the URL: write a number from 1 to {MOST_REPLICAS}")
    return int(text) if text else None


def _storage(options: dict[str, str]) -> str | None:
    text = options.pop("storage", "") or None
    if text is not None and text not in STORAGES:
        raise ConfigError(f"storage={text!r} in the URL: write file, or memory for tests")
    return text


def _encryption(options: dict[str, str]) -> ssl.SSLContext:
    """Verified, unless the URL asks for less."""
    root, own, key = (options.pop(name, None) or None for name in ("sslrootcert", "sslcert", "sslkey"))
    mode = options.pop("sslmode", "verify-full")
    if mode not in TLS_MODES:
        raise ConfigError(
            f"sslmode={mode!r} in the URL: write one of {', '.join(TLS_MODES)}, or nats:// for no encryption"
        )
    if key is not None and own is None:
        raise ConfigError("sslkey in the URL needs sslcert beside it")
    return tls.context(mode, root, own, key)
