"""TLS for tests: authorities that sign certificates, and a door in front of a server that was built without TLS.

The door does what PostgreSQL does with `ssl=on`: it answers the client's question for TLS, shakes hands with a real
certificate, and passes the rest on; a `direct` one shakes hands at once, as Redis does. The servers in the wheels
cannot do that themselves.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Self

import trustme

ASKS_FOR_TLS = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
PATIENCE = 30.0


class Authority:
    """Signs certificates; `certificate` is what clients trust. One `under` another is not the end of a chain."""

    def __init__(self, folder: Path, name: str, under: Authority | None = None) -> None:
        self._folder, self._name = folder, name
        self._ca: trustme.CA = trustme.CA() if under is None else under._ca.create_child_ca()
        self.certificate = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.certificate)

    def signed(self, name: str, *names: str) -> tuple[Path, Path]:
        """A certificate for these names and addresses, with the authorities between, and its key."""
        made = self._ca.issue_cert(*names, common_name=name)
        certificate, key = (self._folder / f"{self._name}-{name}.{end}" for end in ("pem", "key"))
        certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        key.touch(0o600)
        key.write_bytes(made.private_key_pem.bytes())
        return certificate, key


class TlsDoor:
    """Listens on a free port of this machine while `with` is open; `clients` is whose certificates it demands."""

    def __init__(
        self, server_port: int, certificate: tuple[Path, Path], clients: Path | None = None, *, direct: bool = False
    ) -> None:
        self._server_port = server_port
        self._direct = direct
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients)
        self._context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13 sets it, PostgreSQL does not
        self._context.load_cert_chain(*certificate)
        if clients is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._opened: Future[int] = Future()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: set[asyncio.Task[None] | None] = set()  # nothing else keeps them alive
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.encrypted = 0
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._opened.result(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda *_: None)  # handshakes that fail are what is tested
        door = await asyncio.start_server(self._welcome, "127.0.0.1", 0, ssl=self._context if self._direct else None)
        self._opened.set_result(door.sockets[0].getsockname()[1])
        await self._stop.wait()
        door.close()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(asyncio.current_task())
        try:
            first = b"" if self._direct else await reader.readexactly(8)
            self.encrypted += self._direct
            if first == ASKS_FOR_TLS:
                writer.write(b"S")
                await writer.start_tls(self._context)
                self.encrypted += 1
                first = b""
            theirs, ours = await asyncio.open_connection("127.0.0.1", self._server_port)
            ours.write(first)
            await asyncio.gather(_pass_on(reader, ours), _pass_on(theirs, writer))
        except (OSError, EOFError):
            pass  # one of the two has left
        finally:
            writer.close()
            self._clients.discard(asyncio.current_task())


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
    except OSError:
        pass
    finally:
        target.close()
