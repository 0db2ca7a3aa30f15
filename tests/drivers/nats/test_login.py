"""Logins by key: an NKey, and a .creds file of an operator's account."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from complaints import no_complaint_of_asyncio
from servers.fixtures import NewNats
from taskharbor.drivers.nats.failure import Denied
from taskharbor.errors import ConfigError, MissingExtra

from .talk import opened

__all__ = ["no_complaint_of_asyncio"]

OPERATOR, ACCOUNT, USER, SEED = 14 << 3, 0, 20 << 3, 18 << 3


class Key:
    """A key of an operator, account or user."""

    def __init__(self, kind: int) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.public = text(bytes([kind]) + self._key.public_key().public_bytes_raw())
        self.seed = text(bytes([SEED | kind >> 5, (kind & 31) << 3]) + self._key.private_bytes_raw())

    def jwt(self, kind: str, subject: Key, name: str, **claims: object) -> str:
        """A claim about another key, signed by this one."""
        body = {"jti": name, "iat": 1_700_000_000, "iss": self.public, "sub": subject.public, "name": name}
        parts = ({"typ": "JWT", "alg": "ed25519-nkey"}, {**body, "nats": {"type": kind, "version": 2, **claims}})
        signed = ".".join(url64(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{url64(self._key.sign(signed.encode()))}"


def text(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def url64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def damaged(seed: str) -> str:
    return seed[:20] + ("A" if seed[20] != "A" else "B") + seed[21:]


def creds(jwt: str, seed: str) -> str:
    """A file as `nsc` writes it."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\nNKEY Seed printed below ...\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def test_an_nkey(new_nats: NewNats, tmp_path: Path) -> None:
    key, other = Key(USER), Key(USER)
    nats = new_nats(config=f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}")
    mine, theirs = tmp_path / "mine.nk", tmp_path / "theirs.nk"
    mine.write_text(key.seed + "\n", encoding="utf-8")
    theirs.write_text(other.seed, encoding="utf-8")

    async def main() -> None:
        async with opened(nats.url(nkey=str(mine))) as server:
            assert await server.api("INFO")
        with pytest.raises(Denied, match="nkey=") as caught:
            async with opened(nats.url(nkey=str(theirs))):
                pass
        assert other.seed not in str(caught.value)

    asyncio.run(main())


def test_credentials_of_an_operators_account(new_nats: NewNats, tmp_path: Path) -> None:
    operator, account, system, user = Key(OPERATOR), Key(ACCOUNT), Key(ACCOUNT), Key(USER)
    unlimited = {"subs": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "data": -1, "payload": -1}
    jetstream = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1, "wildcards": True}
    of_account = operator.jwt("account", account, "shop", limits={**unlimited, **jetstream})
    of_system = operator.jwt("account", system, "SYS", limits=unlimited)
    of_user = account.jwt("user", user, "worker", subs=-1, data=-1, payload=-1)
    nats = new_nats(
        config=f"operator: {operator.jwt('operator', operator, 'us')}\n"
        f"system_account: {system.public}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account.public}: {of_account}, {system.public}: {of_system} }}"
    )
    file = tmp_path / "worker.creds"
    file.write_text(creds(of_user, user.seed), encoding="utf-8")

    async def main() -> None:
        async with opened(nats.url(creds=str(file))) as server:
            assert await server.api("INFO")
            file.write_text(creds(of_user, Key(USER).seed), encoding="utf-8")  # read again at the next connection
            (await server.wire()).abort()
            with pytest.raises(Denied, match="creds="):
                await server.api("INFO")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("option", "content", "says"),
    [
        ("nkey", None, "cannot be read"),
        ("creds", None, "cannot be read"),
        ("creds", "SUABC", r"name its \.creds file"),
        ("creds", creds("a.b.c", "SUABC"), "begins with SU"),
        ("nkey", "", "begins with SU"),
        ("nkey", "s3cret!", "begins with SU"),
        ("nkey", Key(ACCOUNT).seed, "begins with SU"),
        ("nkey", damaged(Key(USER).seed), "begins with SU"),
        ("nkey", Key(USER).public, "begins with SU"),
    ],
    ids=["no-nkey", "no-creds", "bare", "short", "empty", "text", "account", "damaged", "public"],
)
def test_what_is_no_key_is_refused(
    new_nats: NewNats, tmp_path: Path, option: str, content: str | None, says: str
) -> None:
    """X5: and nothing of the file is shown."""
    nats = new_nats(config=f"authorization {{ users: [ {{ nkey: {Key(USER).public} }} ] }}")
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content, encoding="utf-8")

    async def main() -> None:
        with pytest.raises(ConfigError, match=says) as caught:
            async with opened(nats.url(**{option: str(file)})):
                pass
        assert not content or content not in str(caught.value)

    asyncio.run(main())


def test_without_cryptography(new_nats: NewNats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X5."""
    key = Key(USER)
    nats = new_nats(config=f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}")
    file = tmp_path / "mine.nk"
    file.write_text(key.seed, encoding="utf-8")
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)

    async def main() -> None:
        with pytest.raises(MissingExtra, match=r'pip install "taskharbor\[nats\]"'):
            async with opened(nats.url(nkey=str(file))):
                pass

    asyncio.run(main())
