"""Translates errors of NATS into ours, each with the fix."""

from __future__ import annotations

import re
import ssl

from taskharbor.drivers.shared import tls
from taskharbor.errors import ConfigError, DriverError, DriverUnavailable, HarborError


class Denied(ConfigError):
    """The server has refused with `-ERR`: a login, or a subject that the user may not use."""


class TooLarge(DriverError):
    """A message that the server would answer by closing the connection; it was not sent."""


class ApiError(DriverError):
    """An error that JetStream has answered. `code` is that of HTTP, `err_code` says exactly what is wrong."""

    def __init__(self, where: str, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{where}: {description} ({err_code or code})")
        self.code, self.err_code, self.description = code, err_code, description


class Unready(ApiError, DriverUnavailable):
    """JetStream cannot do it now: a leader is being elected, or too few nodes are up."""


class StoreFull(ApiError, DriverUnavailable):
    """There is no room for a write: nothing of it was stored."""


ESCAPED = re.compile(r'\\(["\\])')
PERMISSIONS = "Permissions Violation for "
LOGIN = ("authorization", "authentication", "account authentication", "user authentication", "no auth", "revoked")
FULL = ("maximum ",)
# No resources, for the account, of storage; a stream says 10077 and which of its maxima is reached.
NO_ROOM, STREAM_FULL = (10002, 10023, 10047), 10077
# Not assigned, no leader, not the leader, stream or consumer offline, a write not yet applied, too many requests.
TEMPORARY = (10007, 10008, 10009, 10118, 10119, 10163, 10167)


def refusal(text: str, where: str) -> HarborError:
    """The error for an `-ERR` of the server."""
    low = text.lower()
    if text.startswith(PERMISSIONS):
        return Denied(
            f"{where}: the user in the URL lacks a permission: allow it in the configuration of the server ({text})"
        )
    if low.startswith(LOGIN):
        return Denied(f"{where} refuses the login: check user, password, token, creds= or nkey= in the URL ({text})")
    if low.startswith(FULL):
        return DriverUnavailable(f"{where} has reached a limit: raise it there ({text})")
    return DriverUnavailable(f"{where} has closed the connection; the operation may still take effect ({text})")


def forbidden_subject(text: str) -> str | None:
    """The subject that a refusal names; None if the refusal is about something else, and ends the connection."""
    if not text.startswith(PERMISSIONS):
        return None
    return ESCAPED.sub(r"\1", text.partition('"')[2].rpartition('"')[0])


def failure(error: BaseException, where: str, *, asked: bool = False) -> BaseException:
    """Translate an error of a connection; return others as they are. `asked`: the request may have been received."""
    if isinstance(error, HarborError):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        return tls.unverified(error, where)
    if isinstance(error, ssl.SSLError) and "certificate required" in str(error).lower().replace("_", " "):
        return ConfigError(f"{where} wants a certificate of yours: add sslcert= and sslkey= to the URL ({error})")
    if isinstance(error, ssl.SSLError) and not asked:
        return ConfigError(f"{where} offers no TLS that fits: write nats:// in the URL, or set it up ({error})")
    if isinstance(error, UnicodeError) and not asked:
        return ConfigError(f"{where}: that host cannot be a name: check it in the URL ({error})")
    if isinstance(error, OSError):
        return away(error, where, asked=asked)
    return error


def stranger(error: Exception, where: str) -> ConfigError:
    """The error for a server that greets otherwise than NATS."""
    return ConfigError(f"{where} does not answer as NATS does: check host and port in the URL ({error})")


def away(error: BaseException, where: str, *, asked: bool) -> DriverUnavailable:
    """The error for a server that is gone or does not answer."""
    unknown = "; the operation may still take effect" if asked else ""
    reason = str(error) or type(error).__name__
    return DriverUnavailable(f"{where} does not answer{unknown}: is it running and reachable? ({reason})")


def no_room(where: str, code: int, err_code: int, description: str) -> StoreFull | None:
    """The error for a write that was refused because a limit of storage is reached; None if it was not that."""
    if err_code not in NO_ROOM and not (err_code == STREAM_FULL and description.startswith(FULL)):
        return None
    fix = f"{description}: raise max_file of JetStream there, or the limits of the account or of the stream"
    return StoreFull(where, code, err_code, fix)


def answered(where: str, error: dict[str, object]) -> ApiError:
    """The exception for the `error` of an answer."""
    code, err_code = (number if isinstance(number := error.get(name), int) else 0 for name in ("code", "err_code"))
    description = str(error.get("description", "unknown error"))
    kind = Unready if err_code in TEMPORARY or (code == 503 and not err_code) else ApiError
    return kind(where, code, err_code, description)
