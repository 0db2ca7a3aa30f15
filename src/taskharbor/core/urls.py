"""Store URLs: redacted for messages (X5), or with other options."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, urlencode

_SECRET = re.compile(r"(?i)((?:pass\w*|pwd|secret|token)=)[^&]*")
TOKENS = ("nats", "tls")  # where a login without a password is a token, and there may be several hosts
_HOSTS = re.compile(
    r"(nats|tls)://(?:(?:[\w.-]*|\[[\da-fA-F:]+\])(?::\d+)?,)+(?:[\w.-]*|\[[\da-fA-F:]+\])(?::\d+)?(?:[/?#]|$)"
)
_NO_PORT = re.compile(r"(://[^/?#:@\[\]]*:)(?!\d*(?:[/?#]|$))[^/?#]*")  # credentials without an @host
_URL = re.compile(r"[\w+.-]+://\S+")


def redacted(url: str) -> str:
    """The URL without its password, for messages and logs."""
    url = _SECRET.sub(r"\1***", url)
    before, at, after = url.rpartition("@")
    if not at:
        return url if _HOSTS.match(url) else _NO_PORT.sub(r"\1***", url)
    scheme, found, login = before.partition("://") if "://" in before else ("", "", before)
    user, colon, _ = login.partition(":")
    if not colon and scheme in TOKENS:
        user = "***"
    return f"{scheme}{found}{user}{':***' if colon else ''}@{after}"


def without_passwords(text: str) -> str:
    """A text with all URLs in it redacted."""
    return _URL.sub(lambda found: redacted(found.group()), text)


def with_options(url: str, **given: str | None) -> str:
    """The URL with these options set; None removes one."""
    place, _, query = url.partition("?")
    kept = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name not in given]
    new = [(name, value) for name, value in given.items() if value is not None]
    options = urlencode([*kept, *new], safe="/", quote_via=quote)
    return f"{place}?{options}" if options else place
