"""The wire on a real server, on servers that only pretend, and fed byte by byte."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from complaints import no_complaint_of_asyncio
from servers.fixtures import NewNats
from servers.nats import NatsServer
from taskharbor.drivers.nats import wire as module
from taskharbor.drivers.nats.failure import Denied, TooLarge
from taskharbor.drivers.nats.wire import NatsMessage, NatsWire, header, publication, status
from taskharbor.errors import ConfigError, DriverUnavailable
from taskharbor.testing.proxy import Proxy

from .talk import polite, pretender, said, wired

__all__ = ["no_complaint_of_asyncio"]

PATIENCE = 30.0


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def offline() -> tuple[NatsWire, Transport]:
    """A wire that was greeted, on no network."""
    wire = NatsWire("NATS", lambda _: {}, None, "host")
    transport = Transport()
    wire.connection_made(transport)
    wire.data_received(said() + b"PONG\r\n")
    transport.written = b""
    return wire, transport


def run(main: Callable[[], Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(limited())


async def echoed(wire: NatsWire, subject: str) -> None:
    """Answer each request of a subject with its own body."""
    wire.subscribe(subject, lambda message: wire.write(publication(message.reply.decode(), b"", message.body)))


def test_requests_get_their_own_replies(nats: NatsServer) -> None:
    async def main() -> None:
        async with wired(nats.port) as wire:
            subject = wire.inbox()
            await echoed(wire, subject)
            found = await asyncio.gather(*(wire.request(subject, b"%d" % number) for number in range(2_000)))
            assert [message.body for message in found] == [b"%d" % number for number in range(2_000)]
            assert wire._waiting == {}

    run(main)


def test_headers_go_and_come(nats: NatsServer) -> None:
    async def main() -> None:
        async with wired(nats.port) as wire:
            got: asyncio.Queue[NatsMessage] = asyncio.Queue()
            subject = wire.inbox()
            wire.subscribe(subject, got.put_nowait)
            for reply in (b"", b"r.1"):
                for headers in (b"", b"A: 1\r\nNats-B:  two \r\n"):
                    wire.write(publication(subject, reply, b"body\r\n", headers))
                    message = await got.get()
                    assert (message.subject, message.reply, message.body) == (subject.encode(), reply, b"body\r\n")
                    assert message.headers == (b"NATS/1.0\r\n" + headers + b"\r\n" if headers else b"")
                    assert status(message.headers) == 0

    run(main)


def test_headers_are_read() -> None:
    headers = b"NATS/1.0\r\nA: 1\r\nNats-B:  two \r\n\r\n"
    assert header(headers, b"Nats-B") == b"two"
    assert header(headers, b"A") == b"1"
    assert header(headers, b"B") is None
    assert header(b"", b"A") is None
    assert [status(found) for found in (headers, b"", b"NATS/1.0 404 No\r\n\r\n", b"NATS/1.0 x\r\n\r\n")] == [
        0,
        0,
        404,
        0,
    ]


def test_a_request_that_nobody_answers_is_answered_503(nats: NatsServer) -> None:
    async def main() -> None:
        async with wired(nats.port) as wire:
            assert status((await wire.request("nobody.there")).headers) == 503
            found = await wire.collect("nobody.there")
            assert [status(message.headers) for message in found] == [503]

    run(main)


def test_a_batched_get_is_collected(nats: NatsServer) -> None:
    name = nats.new_namespace()
    nats.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "allow_direct": True})

    async def main() -> None:
        async with wired(nats.port) as wire:
            for number in range(5):
                await wire.request(f"{name}.{number}", b"%d" % number)
            get = f"$JS.API.DIRECT.GET.{name}"
            asked = json.dumps({"multi_last": [f"{name}.>"]}).encode()
            one, other = await asyncio.gather(wire.collect(get, asked), wire.collect(get, asked))
            for found in (one, other):
                assert [message.body for message in found] == [b"0", b"1", b"2", b"3", b"4", b""]
                assert status(found[-1].headers) == 204
            nothing = await wire.collect(get, json.dumps({"multi_last": [f"{name}.no"]}).encode())
            assert [status(message.headers) for message in nothing] == [404]

    run(main)
    nats.drop_namespace(name)


def test_several_requests_in_one_write(nats: NatsServer) -> None:
    async def main() -> None:
        async with wired(nats.port) as wire:
            subject = wire.inbox()
            await echoed(wire, subject)
            tickets = [wire.ticket(subject) for _ in range(3)]
            many, collected = wire.tickets_many("nobody.there")
            parts = [publication(subject, reply, b"%d" % number) for number, (reply, _) in enumerate(tickets)]
            wire.write(b"".join([*parts, publication("nobody.there", many, b"")]))
            assert [(await future).body for _, future in tickets] == [b"0", b"1", b"2"]
            assert len(await collected) == 1

    run(main)


def test_unsubscribed_is_silent(nats: NatsServer) -> None:
    async def main() -> None:
        async with wired(nats.port) as wire:
            got: list[NatsMessage] = []
            subject = wire.inbox()
            sid = wire.subscribe(subject, got.append)
            wire.write(publication(subject, b"", b"1"))
            await wire.request("nobody.there")
            wire.write(publication(subject, b"", b"2"))
            wire.unsubscribe(sid)  # at once: what is on its way is dropped
            wire.unsubscribe(sid)
            assert status((await wire.request(subject)).headers) == 503
            assert [message.body for message in got] == [b"1"]

    run(main)


def test_a_callback_that_fails_takes_no_other_message_with_it() -> None:
    async def main() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
        wire, _ = offline()
        future = wire.request("x")

        def fails(_: NatsMessage) -> None:
            raise ValueError("oops")

        sid = wire.subscribe("s", fails)
        reply = wire._inbox + b"1"
        wire.data_received(b"MSG s %b 1\r\na\r\nMSG %b 1 2\r\nok\r\n" % (sid, reply))
        assert (await future).body == b"ok"
        assert [str(about["exception"]) for about in complaints] == ["oops"]

    run(main)


def test_messages_are_read_however_they_are_cut() -> None:
    bodies = [b"", b"x", b"\r\n", b"MSG a 1 1\r\n\r\n", b"y" * 70_000, b"PING\r\n"]

    async def main() -> None:
        rng = random.Random(1)
        for size in (1, 2, 3, 7, 50, 4_096, 200_000):
            wire, transport = offline()
            got: list[NatsMessage] = []
            sid = wire.subscribe("s.x", got.append)
            stream, wanted = b"", []
            for body in bodies:
                for reply in (b"", b"r.1"):
                    for headers in (b"", b"NATS/1.0 204 EOB\r\nA: b\r\n\r\n"):
                        words = [b"HMSG" if headers else b"MSG", b"s.x", sid, *([reply] if reply else [])]
                        words += [b"%d" % len(headers)] if headers else []
                        line = b" ".join([*words, b"%d" % (len(headers) + len(body))])
                        stream += line + b"\r\n" + headers + body + b"\r\nPING\r\n"
                        wanted.append(NatsMessage(b"s.x", reply, headers, body))
            pos = 0
            while pos < len(stream):
                step = size if size < 4 else rng.randint(1, size)
                wire.data_received(stream[pos : pos + step])
                pos += step
            assert got == wanted
            assert transport.written.count(b"PONG\r\n") == len(wanted)
            wire.connection_lost(None)

    run(main)


@pytest.mark.parametrize(
    "sent", [b"HTTP/1.1 400 Bad Request\r\n", b"x" * 70_000, b"MSG a b c d e f\r\n", b"INFO {\r\n"]
)
def test_what_is_not_nats_is_refused(sent: bytes) -> None:
    async def main() -> None:
        wire, transport = offline()
        future = wire.request("x")
        wire.data_received(sent)
        assert transport.aborted
        with pytest.raises(DriverUnavailable, match="may still take effect"):
            await future
        with pytest.raises(DriverUnavailable):
            await wire.request("x")

    run(main)


def test_nothing_is_written_to_a_closed_connection() -> None:
    """uvloop would raise."""

    async def main() -> None:
        wire, transport = offline()
        transport.aborted = True
        with pytest.raises(DriverUnavailable):
            await wire.request("x")
        wire.subscribe("x", lambda _: None)
        assert transport.written == b""
        wire.connection_lost(None)

    run(main)


def test_a_handshake_that_does_not_end_is_given_up() -> None:
    def handshakes() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if "_encrypt" in repr(task.get_coro())]

    async def main() -> None:
        async with pretender(said(tls_required=True), lambda _: b"") as port:
            with pytest.raises(TimeoutError):
                await NatsWire.connect(
                    "127.0.0.1", port, where="", login=lambda _: {}, tls=ssl.create_default_context(), within=0.05
                )
            await asyncio.wait(handshakes() or [asyncio.ensure_future(asyncio.sleep(0))], timeout=PATIENCE / 10)
            assert handshakes() == []

    run(main)


def test_left_requests_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """X3: neither the replies nor the table keep what a cancelled caller has asked for."""

    async def main() -> None:
        wire, _ = offline()
        answered, silent, many = wire.request("x"), wire.request("x"), wire.collect("x")
        for future in (answered, silent, many):
            future.cancel()
        wire.data_received(b"MSG %b1 1 2\r\nok\r\n" % wire._inbox)
        wire.data_received(b"MSG %b3 1 2\r\nok\r\n" % wire._inbox)
        assert list(wire._waiting) == [b"2"]
        wire._look()
        assert wire._waiting == {}
        wire.data_received(b"MSG %b2 1 2\r\nok\r\n" % wire._inbox)  # late
        wire.connection_lost(None)

    run(main)


def test_a_request_without_an_answer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """X2."""
    monkeypatch.setattr(module, "ANSWER_WITHIN", 0.02)
    monkeypatch.setattr(module, "LOOK_EVERY", 0.01)

    async def main() -> None:
        async with pretender() as port, wired(port) as wire:
            with pytest.raises(DriverUnavailable, match=r"may still take effect.*no answer within"):
                await wire.request("x")
            assert wire.suspect  # of having lost its cluster
            assert not wire.closed.done()

    run(main)


def test_requests_are_given_the_whole_time() -> None:
    async def main() -> None:
        wire, _ = offline()
        looks = round(module.ANSWER_WITHIN / module.LOOK_EVERY)
        early = wire.request("x")
        for _ in range(looks):
            wire._heard = True
            wire._look()
        late = wire.request("x")
        assert not early.done()
        wire._heard = True
        wire._look()
        assert early.done()
        assert not late.done()
        wire.connection_lost(None)

    run(main)


@pytest.mark.parametrize("use", ["request", "subscription"])
def test_a_silent_connection_is_given_up(new_nats: NewNats, use: str) -> None:
    """X2: a half-open one is found by its ping, also if it only listens."""
    server = new_nats()

    async def main() -> None:
        async with wired(server.port) as wire:
            server.freeze()
            future = wire.request("x") if use == "request" else None
            wire.subscribe("x", lambda _: None)
            for _ in range(3):
                wire._look()
            if future is not None:
                with pytest.raises(DriverUnavailable, match=r"may still take effect.*silent"):
                    await future
            await wire.closed
            server.thaw()

    run(main)


def test_a_quiet_connection_is_kept(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers the pings."""

    async def main() -> None:
        async with wired(nats.port) as wire:
            wire.subscribe("x", lambda _: None)
            lines: asyncio.Queue[bytes] = asyncio.Queue()
            monkeypatch.setattr(wire, "_control", lines.put_nowait)
            for _ in range(5):
                wire._look()  # it has heard the server since the last look
                wire._look()
                assert await lines.get() == b"PONG"
            assert not wire.closed.done()

    run(main)


def test_no_request_no_ping() -> None:
    async def main() -> None:
        wire, transport = offline()
        future = wire.request("x")
        wire.data_received(b"MSG %b1 1 2\r\nok\r\n" % wire._inbox)
        await future
        transport.written = b""
        wire._look()
        wire._look()
        assert wire._timer is None
        assert transport.written == b""

    run(main)


def test_a_reset_fails_all_that_is_under_way(nats: NatsServer) -> None:
    """X2."""

    async def main() -> None:
        async with Proxy("127.0.0.1", nats.port) as proxy, wired(proxy.port) as wire:
            proxy.stall("to_client")
            futures: list[asyncio.Future[Any]] = [wire.request("x"), wire.collect("x"), wire.request("y")]
            proxy.reset()
            for found in await asyncio.gather(*futures, return_exceptions=True):
                assert isinstance(found, DriverUnavailable)
                assert "may still take effect" in str(found)
            await wire.closed
            with pytest.raises(DriverUnavailable) as caught:
                await wire.request("x")
            assert "may still take effect" not in str(caught.value)

    run(main)


def test_cut_at_any_byte_of_the_answer(nats: NatsServer) -> None:
    """X2: a connection that ends in the midst of a message."""

    async def main() -> None:
        async with Proxy("127.0.0.1", nats.port) as proxy:
            for cut in range(1, 60, 7):
                async with wired(proxy.port) as wire:
                    for link in proxy.links:
                        link.cut_after(cut, "to_client")
                    with pytest.raises(DriverUnavailable):
                        await wire.request("nobody.there")

    run(main)


def test_too_much_is_refused_before_it_ends_the_connection(new_nats: NewNats) -> None:
    server = new_nats(max_payload=2_000)

    async def main() -> None:
        async with wired(server.port) as wire:
            subject = wire.inbox()
            await echoed(wire, subject)
            assert len((await wire.request(subject, b"x" * 1_988)).body) == 1_988
            await wire.request("no.body", b"x" * 1_980, b"A:bcd\r\n"[:-2] + b"\r\n")
            for body, headers in ((b"x" * 1_989, b""), (b"x" * 1_982, b"A:bcd\r\n")):
                with pytest.raises(TooLarge, match="raise max_payload"):
                    wire.request(subject, body, headers)
            longest = module.LONGEST_LINE - len(wire._inbox) - 60
            await wire.request("a." + "x" * (longest - 2))
            with pytest.raises(TooLarge, match="longer than the server takes"):
                wire.request("a." + "x" * (longest - 1))
            await wire.request("nobody.there")

    run(main)


def test_a_missing_permission_is_found_out(new_nats: NewNats, caplog: pytest.LogCaptureFixture) -> None:
    """Not hung: the server only says so by the way."""
    permissions = 'permissions { publish: ["ok.>"], subscribe: ["_INBOX.>"] }'
    server = new_nats(config=f"authorization {{ users: [ {{ user: me, password: pw, {permissions} }} ] }}")

    async def main() -> None:
        async with wired(server.port, {"user": "me", "pass": "pw"}) as wire:
            fine, no, many = wire.request("ok.x"), wire.request("no.x"), wire.collect("no.x")
            for future in (no, many):
                with pytest.raises(Denied, match=r"no\.x"):
                    await future
            assert status((await fine).headers) == 503
            odd = 'no."ü\\'
            with pytest.raises(Denied):
                await wire.request(odd)
            wire.subscribe("no.z", lambda _: None)
            for _ in range(2):
                wire.write(publication("no.part", b"", b""))
            assert status((await wire.request("ok.x")).headers) == 503

    run(main)
    (complaint,) = [record.getMessage() for record in caplog.records if record.name == "taskharbor.nats"]
    assert '"no.z"' in complaint  # said once for each connection


def test_without_permission_for_the_inbox_it_does_not_connect(new_nats: NewNats) -> None:
    permissions = 'permissions { publish: [">"], subscribe: ["mine.>"] }'
    server = new_nats(config=f"authorization {{ users: [ {{ user: me, password: pw, {permissions} }} ] }}")

    async def main() -> None:
        with pytest.raises(Denied, match="_INBOX"):
            async with wired(server.port, {"user": "me", "pass": "pw"}):
                pass

    run(main)


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("Authorization Violation", ConfigError, "refuses the login"),
        ("maximum connections exceeded", DriverUnavailable, "raise it there"),
        ("Server Shutdown", DriverUnavailable, "Server Shutdown"),
    ],
)
def test_refusals_at_the_door(text: str, kind: type[Exception], says: str) -> None:
    def answer(line: bytes) -> bytes:
        return b"-ERR '%b'\r\n" % text.encode() if line == b"PING\r\n" else b""

    async def main() -> None:
        async with pretender(answer=answer) as port:
            with pytest.raises(kind, match=says):
                async with wired(port):
                    pass

    run(main)


def test_the_reason_of_an_end_is_told() -> None:
    def answer(line: bytes) -> bytes:
        return b"-ERR 'Stale Connection'\r\n" if line.startswith(b"PUB") else polite(line)

    async def main() -> None:
        async with pretender(answer=answer) as port, wired(port) as wire:
            with pytest.raises(DriverUnavailable, match="Stale Connection"):
                await wire.request("x")
            await wire.closed

    run(main)


def test_a_retired_one_ends_after_its_last_answer() -> None:
    async def main() -> None:
        wire, transport = offline()
        future, sid = wire.request("x"), wire.subscribe("s", lambda _: None)
        wire.retire()
        wire._look()
        wire.data_received(b"MSG %b1 1 2\r\nok\r\n" % wire._inbox)
        await future
        wire._look()
        assert not transport.aborted
        wire.unsubscribe(sid)
        wire._look()
        assert transport.aborted

    run(main)
