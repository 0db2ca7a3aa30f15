"""The two streams of a namespace: made, checked, refused; and what they say about durability."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from typing import Any

import pytest

from complaints import no_complaint_of_asyncio
from servers.fixtures import NewNats
from servers.nats import NatsServer
from taskharbor.drivers import parse
from taskharbor.drivers.nats import streams
from taskharbor.drivers.nats.failure import ApiError, Denied, Unready, answered
from taskharbor.drivers.nats.streams import configurations, prepare
from taskharbor.drivers.nats.url import address
from taskharbor.errors import ConfigError, DriverUnavailable, HarborError, UnsafeStore

from .talk import opened, polite, pretender, said

__all__ = ["no_complaint_of_asyncio"]

DOCUMENTED = {
    "retention": "limits",
    "max_age": 0,
    "max_msgs_per_subject": 1,
    "discard": "new",
    "storage": "file",
    "num_replicas": 1,
    "allow_direct": True,
    "allow_atomic": True,
    "allow_msg_ttl": True,
    "allow_rollup_hdrs": False,
    "deny_delete": False,
    "deny_purge": False,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_msg_size": -1,
}


@pytest.fixture
def name(nats: NatsServer) -> Generator[str]:
    name = nats.new_namespace()
    yield name
    nats.drop_namespace(name)


def open_once(url: str) -> None:
    async def main() -> None:
        async with opened(url):
            pass

    asyncio.run(main())


def refused(url: str, kind: type[HarborError], says: str) -> str:
    with pytest.raises(kind, match=says) as caught:
        open_once(url)
    return str(caught.value)


def test_missing_streams_are_made_with_the_documented_settings(nats: NatsServer, name: str) -> None:
    open_once(nats.url(namespace=name))
    made = {stream: nats.api(f"STREAM.INFO.{stream}")["config"] for stream in nats.streams(name)}
    assert made.keys() == {f"{name}-JOBS", f"{name}-LINE"}
    for config in made.values():
        assert {field: config.get(field) for field in DOCUMENTED} == DOCUMENTED
    assert made[f"{name}-JOBS"]["subjects"] == [f"{name}.{kind}.>" for kind in "jkeoxdr"]
    assert made[f"{name}-LINE"]["subjects"] == [f"{name}.l.>"]
    open_once(nats.url(namespace=name))
    assert made == {stream: nats.api(f"STREAM.INFO.{stream}")["config"] for stream in made}


def test_many_may_make_them_at_once(nats: NatsServer, name: str) -> None:
    async def open_it() -> None:
        async with opened(nats.url(namespace=name)):
            pass

    async def main() -> None:
        await asyncio.gather(*(open_it() for _ in range(20)))

    asyncio.run(main())
    assert len(nats.streams(name)) == 2


def test_namespaces_may_have_any_name(nats: NatsServer) -> None:
    odd = "a.b *>/\\ü$"
    prefix = address(*parse(nats.url(namespace=odd))).prefix
    open_once(nats.url(namespace=odd))
    assert nats.streams(prefix) == [f"{prefix}-JOBS", f"{prefix}-LINE"]
    nats.drop_namespace(prefix)


WRONG: list[tuple[dict[str, Any], type[HarborError], str]] = [
    ({"max_msgs_per_subject": -1}, UnsafeStore, "max_msgs_per_subject -1 instead of 1"),
    ({"max_age": 3_600_000_000_000}, UnsafeStore, "max_age 3600000000000 instead of 0"),
    ({"discard": "old"}, UnsafeStore, "discard old instead of new"),
    ({"retention": "interest"}, UnsafeStore, "retention interest instead of limits"),
    ({"storage": "memory"}, UnsafeStore, "storage memory instead of file"),
    ({"allow_atomic": False}, ConfigError, "allow_atomic False instead of True"),
    ({"allow_direct": False}, ConfigError, "allow_direct False instead of True"),
    ({"allow_msg_ttl": False}, ConfigError, "allow_msg_ttl False instead of True"),
    ({"allow_rollup_hdrs": True}, ConfigError, "allow_rollup_hdrs True instead of False"),
    ({"deny_delete": True}, ConfigError, "deny_delete True instead of False"),
    ({"deny_purge": True}, ConfigError, "deny_purge True instead of False"),
    ({"no_ack": True}, ConfigError, "no_ack True instead of False"),
    ({"persist_mode": "async", "allow_atomic": False}, ConfigError, "persist_mode async instead of none"),
    ({"discard_new_per_subject": True}, ConfigError, "discard_new_per_subject True instead of False"),
    ({"max_msg_size": 1_000}, ConfigError, "max_msg_size 1000 instead of -1"),
    ({"subject_delete_marker_ttl": 60_000_000_000, "allow_rollup_hdrs": True}, ConfigError, "marker_ttl 60000000000"),
    ({"consumer_limits": {"inactive_threshold": 1_000_000_000}}, ConfigError, "consumer_limits"),
    ({"subjects": ["$.j.>"]}, ConfigError, "subjects"),
]


@pytest.mark.parametrize(("change", "kind", "says"), WRONG, ids=[says for _, _, says in WRONG])
def test_a_stream_with_other_settings_is_refused(
    nats: NatsServer, name: str, change: dict[str, Any], kind: type[HarborError], says: str
) -> None:
    """X5: with the difference."""
    url = nats.url(namespace=name)
    (stream, wanted), _ = configurations(address(*parse(url))).items()
    if "subjects" in change:
        change = {"subjects": [f"{name}.j.>"]}
    nats.api(f"STREAM.CREATE.{stream}", {**wanted, **change})
    message = refused(url, kind, says)
    assert f"the stream {stream} has " in message
    assert "nats stream edit" in message
    assert "namespace=NAME" in message


@pytest.mark.parametrize(
    "change",
    [
        {"max_bytes": 1_000_000},
        {"max_msgs": 1_000},
        {"compression": "s2"},
        {"description": "mine"},
        {"duplicate_window": 1_000_000_000},
        {"metadata": {"team": "shop"}},
    ],
    ids=str,
)
def test_what_an_operator_may_set_is_accepted(nats: NatsServer, name: str, change: dict[str, Any]) -> None:
    url = nats.url(namespace=name)
    for stream, wanted in configurations(address(*parse(url))).items():
        nats.api(f"STREAM.CREATE.{stream}", {**wanted, **change})
    open_once(url)


def test_streams_with_other_replicas_than_the_url_says(nats: NatsServer, name: str) -> None:
    open_once(nats.url(namespace=name))
    open_once(nats.url(namespace=name, replicas="1"))
    refused(nats.url(namespace=name, replicas="3"), ConfigError, "num_replicas 1 instead of 3")


def test_subjects_of_another_program(nats: NatsServer, name: str) -> None:
    """X5."""
    nats.api(f"STREAM.CREATE.{name}-theirs", {"name": f"{name}-theirs", "subjects": [f"{name}.j.*"]})
    refused(nats.url(namespace=name), ConfigError, "another program has a stream.*namespace=NAME")
    assert nats.streams(name) == [f"{name}-theirs"]


def test_more_replicas_than_nodes(nats: NatsServer, name: str) -> None:
    """X5."""
    refused(nats.url(namespace=name, replicas="3"), ConfigError, "write replicas=1 in the URL, or name a cluster")
    assert nats.streams(name) == []


def test_without_jetstream(new_nats: NewNats) -> None:
    """X5."""
    refused(new_nats(jetstream=False).url(), ConfigError, "JetStream is not enabled: start the server with -js")


def test_accounts_without_jetstream_or_room(new_nats: NewNats) -> None:
    """X5."""
    accounts = """accounts {
        SYS { users: [ { user: sys, password: pw } ] }
        NONE { users: [ { user: none, password: pw } ] }
        ONE { jetstream: { max_streams: 1 }, users: [ { user: one, password: pw } ] }
    }
    system_account: SYS"""
    nats = new_nats(config=accounts, login="one:pw")
    refused(nats.url("none:pw"), ConfigError, "JetStream is not enabled for this account")
    refused(nats.url("one:pw"), ConfigError, "raise max_streams of the account")


def test_an_account_that_wants_a_limit(new_nats: NewNats) -> None:
    """X5: streams that an operator made with one are accepted."""
    limits = "max_file: 1GB, max_bytes_required: true"
    nats = new_nats(
        config=f"accounts {{ A {{ jetstream: {{ {limits} }}, users: [ {{ user: me, password: pw }} ] }} }}",
        login="me:pw",
    )
    refused(nats.url(), ConfigError, "make both streams by hand, with max_bytes")
    for stream, wanted in configurations(address(*parse(nats.url()))).items():
        nats.api(f"STREAM.CREATE.{stream}", {**wanted, "max_bytes": 1_000_000})
    open_once(nats.url())


def permitted(*subjects: str) -> str:
    allowed = json.dumps(["none", *subjects])
    user = f'user: me, password: pw, permissions {{ publish: {allowed}, subscribe: ["_INBOX.>"] }}'
    return f"authorization {{ users: [ {{ {user} }}, {{ user: root, password: pw }} ] }}"


def test_missing_permissions_are_found_out(new_nats: NewNats) -> None:
    """X5: not hung."""
    needed = ["INFO", "STREAM.INFO.taskharbor-JOBS", "STREAM.CREATE.taskharbor-JOBS"]
    needed += ["STREAM.INFO.taskharbor-LINE", "STREAM.CREATE.taskharbor-LINE"]
    subjects = [f"$JS.API.{subject}" for subject in needed]
    for number, missing in enumerate(subjects):
        nats = new_nats(config=permitted(*subjects[:number]))
        assert f'"{missing}"' in refused(nats.url("me:pw"), Denied, "lacks a permission: allow it")
    nats = new_nats(config=permitted(*subjects))
    open_once(nats.url("me:pw"))


@pytest.mark.parametrize("version", ["2.14.3", "2.11.0-RC.1", "2", ""])
def test_an_old_server_is_refused_with_the_reason(version: str) -> None:
    """X5: before anything is made there."""
    asked: list[bytes] = []

    def answer(line: bytes) -> bytes:
        asked.append(line)
        return polite(line)

    async def main() -> None:
        async with pretender(said(version=version), answer) as port:
            with pytest.raises(
                ConfigError, match=r"NATS 2\.15 or newer on all nodes, because older ones can store half"
            ):
                async with opened(f"nats://127.0.0.1:{port}"):
                    pass

    asyncio.run(main())
    assert not [line for line in asked if line.startswith(b"PUB")]


def test_an_old_jetstream_is_refused() -> None:
    """X5: a new server may be connected to older ones."""

    async def api(subject: str, body: object | None = None) -> dict[str, Any]:
        return {"api": {"level": 1}}

    with pytest.raises(ConfigError, match="JetStream API level 1: TaskHarbor needs"):
        asyncio.run(prepare(api, {"version": "2.15.0", "jetstream": True}, address(*parse("nats://h"))))


def test_a_cluster_without_a_leader_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PAUSE", 0.0)
    asked: list[str] = []

    async def api(subject: str, body: object | None = None) -> dict[str, Any]:
        asked.append(subject)
        if subject == "INFO":
            return {"api": {"level": 2}}
        if len(asked) < 5:
            raise answered("NATS", {"code": 503, "err_code": 10008, "description": "temporarily unavailable"})
        config = configurations(address(*parse("nats://h")))[subject.rpartition(".")[2]]
        return {"config": {**config, "max_msg_size": -1}}

    asyncio.run(prepare(api, {"version": "2.15.0"}, address(*parse("nats://h"))))
    assert asked == ["INFO", *["STREAM.INFO.taskharbor-JOBS"] * 4, "STREAM.INFO.taskharbor-LINE"]

    async def never(subject: str, body: object | None = None) -> dict[str, Any]:
        raise answered("NATS", {"code": 503, "err_code": 10008, "description": "temporarily unavailable"})

    monkeypatch.setattr(streams, "WITHIN", 0.0)
    with pytest.raises(DriverUnavailable, match="temporarily unavailable"):
        asyncio.run(prepare(never, {"version": "2.15.0"}, address(*parse("nats://h"))))


@pytest.mark.parametrize("error", [10058, 10049])
def test_a_stream_that_another_process_made_meanwhile_is_compared(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have other settings, which an operator may set. Of twenty creators, one may get 10049 from a server."""
    monkeypatch.setattr(streams, "PAUSE", 0.0)
    config = configurations(address(*parse("nats://h")))["taskharbor-JOBS"]
    answers: list[dict[str, Any]] = [
        {"code": 404, "err_code": 10059},
        {"code": 400, "err_code": error},
        {"config": {**config, "max_msg_size": -1, "max_bytes": 5}},
    ]

    async def api(subject: str, body: object | None = None) -> dict[str, Any]:
        if "code" in (found := answers.pop(0)):
            raise answered("NATS", found)
        return found

    async def main() -> None:
        where = address(*parse("nats://h"))
        found = await streams._ensure(api, "taskharbor-JOBS", config, where)
        assert found["config"]["max_bytes"] == 5
        answers.extend([{"code": 404, "err_code": 10059}, {"code": 400, "err_code": error}] * 3)
        with pytest.raises(ConfigError, match="cannot be made"):
            await streams._ensure(api, "taskharbor-JOBS", config, where)

    asyncio.run(main())


def test_errors_that_pass_are_unavailability() -> None:
    for error, kind in (
        ({"code": 503, "err_code": 10008, "description": "x"}, Unready),
        ({"code": 500, "err_code": 10118, "description": "stream is offline"}, Unready),
        ({"code": 503, "description": "no responders"}, Unready),
        ({"code": 503, "err_code": 10039, "description": "not enabled"}, ApiError),
        ({"code": 404, "err_code": 10059, "description": "x"}, ApiError),
        ({}, ApiError),
    ):
        assert type(answered("NATS", error)) is kind


def test_durability_is_said(nats: NatsServer, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """G2."""
    streams._warned.clear()

    async def main() -> None:
        async with opened(nats.url(namespace=name)), opened(nats.url(namespace=name)) as server:
            found = {setting.name: setting for setting in await server.durability()}
        assert {field: (setting.value, setting.level) for field, setting in found.items()} == {
            "version": (found["version"].value, "fine"),
            "api level": (found["api level"].value, "fine"),
            f"replicas of {name}-JOBS": ("1", "fine"),
            f"replicas of {name}-LINE": ("1", "fine"),
            "storage": ("file", "fine"),
            "sync_interval": (None, "warning"),
        }
        assert str(found["version"].value).startswith("2.")
        assert "power cut" in found["sync_interval"].message
        assert "sync_interval: always" in found["sync_interval"].message

    asyncio.run(main())
    said_once = [record.getMessage() for record in caplog.records if record.name == "taskharbor.nats"]
    assert len(said_once) == 1
    assert "sync_interval unknown" in said_once[0]


def test_memory_is_an_error_unless_the_url_asks_for_it(nats: NatsServer, name: str) -> None:
    """G2."""

    async def main() -> None:
        async with opened(nats.url(namespace=name, storage="memory")) as server:
            (storage,) = [setting for setting in await server.durability() if setting.name == "storage"]
            assert (storage.value, storage.level) == ("memory", "error")
            assert "a restart" in storage.message

    asyncio.run(main())
    refused(nats.url(namespace=name), UnsafeStore, "storage memory instead of file")


def test_replicas_that_lag_are_named() -> None:
    peers = [
        {"name": "a", "current": True},
        {"name": "c", "current": False},
        {"name": "b", "current": True, "offline": True},
    ]
    found = {"config": {"storage": "file", "num_replicas": 3}, "cluster": {"replicas": peers}}
    (_, _, setting, *_) = streams._settings({}, {}, {"X": found})
    assert (setting.value, setting.level) == ("3, 2 of them behind", "warning")
    assert setting.message.endswith("b, c")
