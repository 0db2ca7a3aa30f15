"""URLs of Redis and Valkey."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from servers.tls import Authority
from taskharbor.drivers import parse
from taskharbor.drivers.redis.url import Address, address
from taskharbor.errors import ConfigError


def read(url: str) -> Address:
    parts, options = parse(url)
    found = address(parts, options)
    assert options == {}
    return found


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("redis://", Address()),
        ("redis://h", Address(host="h")),
        ("valkey://h", Address(host="h")),
        ("redis://h:7/2", Address(host="h", port=7, db=2)),
        ("redis://h?db=2", Address(host="h", db=2)),
        ("redis://h/", Address(host="h")),
        ("redis://[::1]:7", Address(host="::1", port=7)),
        ("redis://:p%40ss@h", Address(host="h", password="p@ss")),
        ("redis://me:p%2Fss@h", Address(host="h", user="me", password="p/ss")),
        ("redis://h?namespace=shop", Address(host="h", namespace="shop")),
        ("unix:///run/v.sock", Address(socket="/run/v.sock")),
        ("unix:///run/v.sock?db=3", Address(socket="/run/v.sock", db=3)),
        ("unix://me:pw@/run/v%20x.sock", Address(socket="/run/v x.sock", user="me", password="pw")),
    ],
)
def test_urls_are_read(url: str, found: Address) -> None:
    assert read(url) == found


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://h/jobs", "'jobs' in the URL is not a database"),
        ("redis://h/-1", "is not a database"),
        ("redis://h/99999999999", "is not a database"),
        ("redis://h:0", "port"),
        ("redis://h:x", "port"),
        ("redis://me:secret/x@h", "%40"),
        ("redis://a,b", "several hosts"),
        ("redis://h?namespace=", "namespace"),
        ("redis://h?namespace=a%0Ab", "namespace"),
        ("redis://h?namespace=" + "x" * 58, "namespace"),
        ("redis://h?namespace=a%7Db", "leave out"),
        ("unix://", "path of a socket"),
        ("unix://run/v.sock", "three slashes"),
        ("rediss://h?sslmode=prefer", "verify-full"),
        ("rediss://h?sslmode=disable", "redis:// for no encryption"),
        ("rediss://h?sslkey=/x", "sslcert"),
        ("rediss://h?sslrootcert=/no/such", "sslrootcert=/no/such"),
        ("redis://h?sslmode=require", "sslmode in the URL is for TLS: write rediss://"),
        ("redis://h/1?db=2", "in its path and with db="),
        ("redis://h?namspace=secret", "no option 'namspace': it has namespace, db, and with rediss:// sslmode"),
        ("redis://a:1,b:2/0", "several hosts"),
    ],
)
def test_bad_urls_are_refused_with_the_fix(url: str, says: str) -> None:
    """X5."""
    with pytest.raises(ConfigError, match=says) as caught:
        address(*parse(url))
    assert "secret" not in str(caught.value)


def test_certificates_are_checked_unless_the_url_says_otherwise(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ours").certificate
    modes = {
        url: (found.verify_mode, found.check_hostname)
        for url in (
            "rediss://h",
            "rediss://h?sslmode=verify-ca",
            "rediss://h?sslmode=require",
            f"rediss://h?sslrootcert={ca}",
        )
        if (found := read(url).tls) is not None
    }
    assert list(modes.values()) == [
        (ssl.CERT_REQUIRED, True),
        (ssl.CERT_REQUIRED, False),
        (ssl.CERT_NONE, False),
        (ssl.CERT_REQUIRED, True),
    ]


def test_no_password_is_shown() -> None:
    assert "secret" not in repr(read("redis://me:secret@h:7/1"))
    assert read("redis://me:secret@[::1]:7/1").where == "Redis at [::1]:7 (database 1)"
