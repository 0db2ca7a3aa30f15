"""The fields of a login: user and password, a token, or a signature with the key of an NKey or .creds file.

Files are read at every connection, because credentials expire and are replaced.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from pathlib import Path

from taskharbor.drivers.nats.url import NatsAddress
from taskharbor.errors import ConfigError, MissingExtra

SEED, USER = 18 << 3, 20 << 3  # the first bits of a seed, and of the public key of a user
SEED_SIZE = 36  # two bytes of kind, the key, a checksum
JWT = re.compile(r"-BEGIN NATS USER JWT-+\s+(\S+)\s+-+END")
KEY = re.compile(r"-BEGIN USER NKEY SEED-+\s+(\S+)\s+-+END")


def login(address: NatsAddress) -> Callable[[str], dict[str, str]]:
    """A function from the nonce of a server to the fields of CONNECT."""
    fields = {"user": address.user, "pass": address.password, "auth_token": address.token}
    given = {name: value for name, value in fields.items() if value is not None}

    def fields_for(nonce: str) -> dict[str, str]:
        if address.creds is not None:
            text = _read("creds", address.creds)
            jwt, seed = JWT.search(text), KEY.search(text)
            if jwt is None or seed is None:
                raise ConfigError(f"creds={address.creds} holds no JWT and seed of a NATS user: name its .creds file")
            return {"jwt": jwt[1], "sig": _signed(seed[1], nonce, f"creds={address.creds}")[1]}
        if address.nkey is not None:
            seed_text = _read("nkey", address.nkey).strip()
            public, signature = _signed(seed_text, nonce, f"nkey={address.nkey}")
            return {"nkey": public, "sig": signature}
        return given

    return fields_for


def _read(option: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{option}={path} in the URL cannot be read: {error}") from error


def _signed(seed: str, nonce: str, where: str) -> tuple[str, str]:
    """The public key of a seed, and its signature of the nonce."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise MissingExtra(
            'to log in to NATS with a key, TaskHarbor needs cryptography: pip install "taskharbor[nats]"'
        ) from error
    key = Ed25519PrivateKey.from_private_bytes(_decoded(seed, where))
    public = bytes([USER]) + key.public_key().public_bytes_raw()
    signature = base64.urlsafe_b64encode(key.sign(nonce.encode()))
    return base64.b32encode(public + _checksum(public)).decode().rstrip("="), signature.decode().rstrip("=")


def _decoded(seed: str, where: str) -> bytes:
    """The 32 bytes of a seed."""
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except binascii.Error:
        raw = b""
    kind = ((raw[0] & 7) << 5 | raw[1] >> 3) if len(raw) == SEED_SIZE else 0
    if kind != USER or raw[0] & 0xF8 != SEED or raw[-2:] != _checksum(raw[:-2]):
        raise ConfigError(f"{where} in the URL holds no seed of a NATS user: it begins with SU")
    return raw[2:-2]


def _checksum(data: bytes) -> bytes:
    return binascii.crc_hqx(data, 0).to_bytes(2, "little")
