"""URLs of NATS."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from servers.tls import Authority
from taskharbor.drivers import parse
from taskharbor.drivers.nats.url import NatsAddress, address, encoded
from taskharbor.errors import ConfigError


def read(url: str) -> NatsAddress:
    parts, options = parse(url)
    found = address(parts, options)
    assert options == {}
    return found


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("nats://", NatsAddress()),
        ("nats://h", NatsAddress(hosts=(("h", 4222),))),
        ("nats://h:7/", NatsAddress(hosts=(("h", 7),))),
        ("nats://a:1,b,[::1]:3", NatsAddress(hosts=(("a", 1), ("b", 4222), ("::1", 3)))),
        ("nats://[::1]", NatsAddress(hosts=(("::1", 4222),))),
        ("nats://me:p%40s%2Cs@a,b", NatsAddress(hosts=(("a", 4222), ("b", 4222)), user="me", password="p@s,s")),
        ("nats://s%3Acret@h", NatsAddress(hosts=(("h", 4222),), token="s:cret")),
        ("nats://h?creds=/x.creds", NatsAddress(hosts=(("h", 4222),), creds="/x.creds")),
        ("nats://h?nkey=/x.nk", NatsAddress(hosts=(("h", 4222),), nkey="/x.nk")),
        (
            "nats://h?namespace=shop&replicas=3&storage=memory",
            NatsAddress(hosts=(("h", 4222),), namespace="shop", replicas=3, storage="memory"),
        ),
    ],
)
def test_urls_are_read(url: str, found: NatsAddress) -> None:
    assert read(url) == found


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nats://h/jobs", "add namespace=NAME"),
        ("nats://h:0", "port"),
        ("nats://a,b:x", "port"),
        ("nats://h:99999999", "port"),
        ("nats://[::1", "not a URL"),
        ("nats://[::1]x", "not a URL|IPv6"),
        ("nats://me:secret/x@h", "%40"),
        ("nats://me:secret@h?creds=/x", "several logins"),
        ("nats://h?nkey=/x&creds=/x", "several logins"),
        ("nats://h?namespace=", "namespace"),
        ("nats://h?namespace=a%0Ab", "namespace"),
        ("nats://h?namespace=" + "x" * 58, "namespace"),
        ("nats://h?replicas=0", "from 1 to 5"),
        ("nats://h?replicas=x", "from 1 to 5"),
        ("nats://h?storage=disk", "write file"),
        ("tls://h?sslmode=prefer", "verify-full"),
        ("tls://h?sslkey=/x", "sslcert"),
        ("tls://h?sslrootcert=/no/such", "sslrootcert=/no/such"),
        ("nats://h?sslmode=require", "sslmode in the URL is for TLS: write tls://"),
        ("nats://h?namspace=secret", "no option 'namspace': it has namespace, replicas"),
    ],
)
def test_bad_urls_are_refused_with_the_fix(url: str, says: str) -> None:
    """X5."""
    with pytest.raises(ConfigError, match=says) as caught:
        address(*parse(url))
    assert "secret" not in str(caught.value)


def test_a_login_is_not_shown() -> None:
    """X5."""
    for url in ("nats://me:secret@a,b", "nats://secret@a,b"):
        assert repr(read(url)) == "<NatsAddress NATS at a:4222, b:4222>"


def test_certificates_are_checked_unless_the_url_says_otherwise(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ours").certificate
    modes = {
        f"sslrootcert={ca}": (ssl.CERT_REQUIRED, True),
        f"sslmode=verify-ca&sslrootcert={ca}": (ssl.CERT_REQUIRED, False),
        "sslmode=require": (ssl.CERT_NONE, False),
    }
    for options, wanted in modes.items():
        context = read(f"tls://h?{options}").tls
        assert context is not None
        assert (context.verify_mode, context.check_hostname) == wanted


def test_namespaces_become_names_of_streams_reversibly() -> None:
    assert encoded("shop_1-a") == "shop_1-a"
    assert encoded("a.b>*/=ü") == "a=2Eb=3E=2A=2F=3D=C3=BC"
