"""The fields of a login: user and password, token, or a signed nonce."""

from __future__ import annotations

from collections.abc import Callable

from taskharbor.drivers.nats.url import Address


def login(address: Address) -> Callable[[str], dict[str, str]]:
    """A function from the nonce of the server to fields of CONNECT."""
    fields = {"user": address.user, "pass": address.password, "auth_token": address.token}
    given = {name: value for name, value in fields.items() if value is not None}
    return lambda nonce: given
