"""URLs in messages have no passwords; URLs get other options."""

from __future__ import annotations

import pytest

from taskharbor.core.urls import redacted, with_options, without_passwords


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:pw@host:5432/db?namespace=x", "postgresql://me:***@host:5432/db?namespace=x"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://:pw@host/db", "postgresql://:***@host/db"),
        ("postgresql://me:p@w:x/y?z#@host/db", "postgresql://me:***@host/db"),
        (
            "postgresql://host/db?user=me&password=pw&namespace=x",
            "postgresql://host/db?user=me&password=***&namespace=x",
        ),
        ("redis://host/0?PASSWD=pw", "redis://host/0?PASSWD=***"),
        ("me:pw@host/db", "me:***@host/db"),
        ("postgresql:/me:pw@host/db", "postgresql:***@host/db"),
        ("postgresql://me:pw", "postgresql://me:***"),
        ("postgresql://me:pw/db", "postgresql://me:***/db"),
        ("postgresql://me:5pw?x=1", "postgresql://me:***?x=1"),
        ("nats://token@host:4222,b/?namespace=x", "nats://***@host:4222,b/?namespace=x"),
        ("tls://token@host", "tls://***@host"),
        ("nats://me:pw@a:1,b:2", "nats://me:***@a:1,b:2"),
        ("nats://me:pw,b:2", "nats://me:***"),
        ("nats://me:5,b:2pw/x", "nats://me:***/x"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    """X5: nor half of one that was not encoded, or of a URL that is none."""
    assert redacted(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "sqlite:////var/lib/me@home/jobs.db",
        "sqlite:///C:/jobs.db",
        "postgresql://host:5432/db",
        "nats://a:1,b:2,[::1]:3,c/?namespace=x",
        "tls://a,b:2",
        "postgresql://host:5432",
        "postgresql://[::1]:5432/db",
        "postgresql:///db?host=/run/postgresql&port=5433",
        "nonsense",
    ],
)
def test_what_has_no_password_is_shown_as_it_is(url: str) -> None:
    """X5: a message names the URL that it is about."""
    assert redacted(url) == without_passwords(url) == url


def test_a_text_with_urls_in_it() -> None:
    """X5: every password in the text."""
    said = "Got unexpected arguments (postgresql://me:pw@host/db postgres://you:pw@host) a@b see http://host:80/"
    assert without_passwords(said) == (
        "Got unexpected arguments (postgresql://me:***@host/db postgres://you:***@host) a@b see http://host:80/"
    )


@pytest.mark.parametrize(
    ("url", "given", "result"),
    [
        ("postgresql:///db", {"namespace": "x"}, "postgresql:///db?namespace=x"),
        (
            "postgresql://me:p%20w@h/db?namespace=y&migrate=true&host=/run/my%20pg&empty=",
            {"namespace": "x", "migrate": None},
            "postgresql://me:p%20w@h/db?host=/run/my%20pg&empty=&namespace=x",
        ),
        ("postgresql://h/db?migrate=true", {"migrate": None}, "postgresql://h/db"),
    ],
)
def test_other_options(url: str, given: dict[str, str | None], result: str) -> None:
    """P: the place stays as it was written; an empty host, too."""
    assert with_options(url, **given) == result
