"""The line's encryption in the words of libpq, for psycopg: as safe as asyncpg's, no more and no less.

Where nothing is said, libpq looks into the environment and into ~/.postgresql, and it knows the system's authorities
under `verify-full` only. So everything is said.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskharbor.errors import ConfigError

SYSTEM = "system"
# A file that cannot be there. libpq goes without what it does not find.
NOWHERE = f"{os.devnull}/nothing"
BUNDLES = ("ca-certificates.crt", "ca-bundle.crt")


def words(mode: str, root: str | None, own: str | None, key: str | None) -> dict[str, str]:
    """What `sslmode` and the certificates of a URL come to."""
    checks = mode != "require" or root is not None
    return {
        "sslmode": "verify-ca" if checks and mode == "require" else mode,
        "sslrootcert": (root or SYSTEM) if checks else NOWHERE,
        "sslcert": own or NOWHERE,
        "sslkey": key or own or NOWHERE,
        "sslcrl": NOWHERE,
    }


def found(words: Mapping[str, str]) -> dict[str, Any]:
    """The words with a file for the system's authorities."""
    return {name: _authorities() if text == SYSTEM else text for name, text in words.items()}


def _authorities() -> str:
    """Those of Python: libpq's own copy of OpenSSL may look elsewhere."""
    paths = ssl.get_default_verify_paths()
    bundles = [Path(paths.capath, name) for name in BUNDLES] if paths.capath else []
    for file in ([Path(paths.cafile)] if paths.cafile else []) + bundles:
        if file.is_file():
            return str(file)
    raise ConfigError(
        "a transaction in a `def` handler needs the authorities that this system trusts in one file, and there is "
        "none: name it with sslrootcert=/path/to/ca.pem in the URL"
    )
