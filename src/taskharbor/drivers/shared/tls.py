"""TLS to a server, set by the options that libpq has too: sslmode, sslrootcert, sslcert and sslkey."""

from __future__ import annotations

import os
import ssl
from ipaddress import ip_address
from pathlib import Path

from taskharbor.errors import ConfigError

SYSTEM = "system"  # as sslrootcert: the authorities of this machine
# X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
OTHER_NAMES = (62, 64)


def context(mode: str, root: str | None, own: str | None, key: str | None) -> ssl.SSLContext:
    """How to encrypt: checked against the authority `root`, showing the certificate `own` with its key."""
    named = {"sslrootcert": root, "sslcert": own, "sslkey": key}
    try:
        context = ssl.create_default_context(cafile=None if root == SYSTEM else root)
        if own is not None:
            context.load_cert_chain(own, key, password=_no_password)
            _check_private(key or own)
    except OSError as error:
        files = ", ".join(f"{name}={file}" for name, file in named.items() if file is not None)
        raise ConfigError(f"the certificates in the URL cannot be used ({error}): check {files}") from error
    context.check_hostname = mode == "verify-full"
    # From Python 3.13 on they are set. libpq checks neither way, and both connections must agree.
    context.verify_flags &= ~(ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT)
    if mode == "require" and root is None:  # with one it is checked, as libpq does
        context.verify_mode = ssl.CERT_NONE
    return context


def _check_private(key: str) -> None:
    """As libpq does: a key is for its owner, or root's and for a group."""
    info = Path(key).stat()
    if os.name == "posix" and info.st_mode & (0o037 if info.st_uid == 0 else 0o077):
        raise ConfigError(f"others can read or change the key in {key}: chmod 600 it")


def _no_password() -> str:
    raise ConfigError("the key in sslkey has a password: use one without, that only this user can read")


def unverified(error: ssl.SSLCertVerificationError, where: str) -> ConfigError:
    """The error for a certificate that was refused, with the fix."""
    if error.verify_code in OTHER_NAMES:
        return ConfigError(
            f"{where} shows a certificate for another name ({error.verify_message}): write the host as the "
            "certificate names it, or add sslmode=verify-ca to the URL"
        )
    return ConfigError(
        f"{where} shows a certificate that no trusted authority has signed ({error.verify_message}): name its "
        "authority with sslrootcert=/path/to/ca.pem in the URL, or go unchecked with sslmode=require"
    )


def is_local(host: str) -> bool:
    """Whether this host is on this machine."""
    if host.startswith("/") or host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
