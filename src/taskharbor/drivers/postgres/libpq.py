"""Encryption in the options of libpq, for psycopg: exactly as safe as with asyncpg.

For options that are not given, libpq looks into the environment and into ~/.postgresql, and it knows the system's
authorities under `verify-full` only. So every option is given.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskharbor.drivers.shared.tls import SYSTEM
from taskharbor.errors import ConfigError

# A file that cannot exist: libpq ignores what it does not find.
NOWHERE = f"{os.devnull}/nothing"
BUNDLES = ("ca-certificates.crt", "ca-bundle.crt")


def words(mode: str, root: str | None, own: str | None, key: str | None) -> dict[str, str]:
    """The options of libpq for `sslmode` and the certificates of a URL."""
    checks = mode != "require" or root is not None
    return {
        "sslmode": "verify-ca" if checks and mode == "require" else mode,
        "sslrootcert": (root or SYSTEM) if checks else NOWHERE,
        "sslcert": own or NOWHERE,
        "sslkey": key or own or NOWHERE,
        "sslcrl": NOWHERE,
    }


def settings(given: Mapping[str, str]) -> str:
    """Settings of the session as the `options` of a connection."""
    return " ".join(f"-c {name}={text.replace(' ', chr(92) + ' ')}" for name, text in given.items())


def found(words: Mapping[str, str]) -> dict[str, Any]:
    """The options with the file of the system's authorities filled in."""
    return {name: _authorities() if text == SYSTEM else text for name, text in words.items()}


def _authorities() -> str:
    """The authorities of Python: libpq's own copy of OpenSSL may look elsewhere."""
    paths = ssl.get_default_verify_paths()
    bundles = [Path(paths.capath, name) for name in BUNDLES] if paths.capath else []
    for file in ([Path(paths.cafile)] if paths.cafile else []) + bundles:
        if file.is_file():
            return str(file)
    raise ConfigError(
        "psycopg, for blocking calls, needs the authorities that this system trusts in one file, and there is none: "
        "name it with sslrootcert=/path/to/ca.pem in the URL"
    )
