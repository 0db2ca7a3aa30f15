"""The page on NATS says what is so: code, configurations and permissions are tried on real servers, tables complete."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

import pytest

from pages import blocks, read_to_the_end, table
from servers.fixtures import NewNats
from servers.nats import ROUTES, NatsServer
from servers.postgres import free_port
from taskharbor import Harbor, chain
from taskharbor.drivers import nats as driver
from taskharbor.drivers.nats import url
from taskharbor.drivers.nats.subjects import Subjects
from taskharbor.manager import TaskManager

FOLDER = Path(driver.__file__).parent
NAMED = re.compile(r"`([^`]+)`")
PUBLISHED = re.compile(r"<<- \[H?PUB (\S+)")
SUBSCRIBED = re.compile(r"<<- \[SUB (\S+)")


class PageNode(NatsServer):
    """A node with the configuration of the page, on ports and in a folder of its own. It logs what clients send."""

    others: Sequence[NatsServer] = ()

    def _configuration(self) -> str:
        settings, users = (block.partition("\n")[2] for block in blocks("nats", "text"))
        (self.folder / "users.conf").write_text(users, encoding="utf-8")
        routes = ", ".join(f"nats://127.0.0.1:{node.port + ROUTES}" for node in self.others)
        for text, own in {
            "nats-1\nlisten: 0.0.0.0:4222": f"{self.name}\nlisten: 127.0.0.1:{self.port}",
            "http: 127.0.0.1:8222": f"http: 127.0.0.1:{free_port()}",
            "/var/lib/nats": f"{self.folder}/js",
            "0.0.0.0:6222": f"127.0.0.1:{self.port + ROUTES}",
            "nats://nats-1:6222, nats://nats-2:6222, nats://nats-3:6222": routes,
        }.items():
            assert settings.count(text) == 1
            settings = settings.replace(text, own)
        return f"{settings}\ntrace: true\n"

    @property
    def said(self) -> str:
        """Its log."""
        return self.guarded.log.read_text(encoding="utf-8", errors="replace")


@pytest.fixture
def nodes() -> Generator[list[PageNode]]:
    """The cluster of the page."""
    with ExitStack() as stack:
        nodes = [PageNode(name=f"nats-{number}", login="jobs:secret") for number in (1, 2, 3)]
        for node in nodes:
            stack.callback(node.close)
            node.prepare()
            node.others = nodes
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_for_answer()
        yield nodes


def test_the_page_runs_on_a_real_server(tmp_path: Path, new_nats: NewNats) -> None:
    """D13: the page takes the server from its environment, and is warned of what cannot be read."""
    told, complained = read_to_the_end("nats", tmp_path, TASKHARBOR_URL=new_nats().url())
    assert told == "read to the end\n"
    (line,) = complained.splitlines()
    assert line.startswith("store.durability: ")
    assert "look for sync_interval: always" in line


def test_the_user_of_the_page_may_do_everything_on_the_cluster_of_the_page(nodes: list[PageNode]) -> None:
    """X5: nothing is refused that a worker, a producer or an operator does, and nothing is allowed for nothing."""
    (export,) = (line for line in "".join(blocks("nats", "console")).splitlines() if "replicas=3" in line)
    address = export.partition("='")[2].strip("'")
    for number, node in enumerate(nodes, 1):
        address = address.replace(f"nats-{number}", f"127.0.0.1:{node.port}", 1)
    use_everything(address)
    said = "".join(node.said for node in nodes)
    assert "Violation" not in said
    for kind, lines in (("publish", PUBLISHED.findall(said)), ("subscribe", SUBSCRIBED.findall(said))):
        sent = set(lines)
        for allowed in permissions(kind):
            assert any(matches(allowed, subject) for subject in sent), allowed


def use_everything(address: str) -> None:
    """Whatever processes of all kinds do; so many jobs wait that the watch needs flow control."""
    with closing(Harbor(address, store_timeout=60)) as harbor:
        nothing = harbor.task(name="nothing")(_nothing)
        later = nothing.using(delay=timedelta(days=1), queue="later")
        for number in range(0, 6_000, 1_000):
            keys = [f"{number + more:04}{'k' * 250}" for more in range(1_000)]
            harbor.enqueue_many([later.using(idempotency_key=key).step() for key in keys])
        harbor.enqueue_many([later.using(queue=f"q{number}").step() for number in range(20)])
        assert len(harbor.admin.jobs.list(limit=20)) == 20
        harbor.admin.queues.pause("slow")
        with harbor.worker():
            assert nothing.using(idempotency_key="one").enqueue("x" * 300_000).result(timeout=60) is None
            assert chain(nothing.step(), nothing.step()).enqueue().result(timeout=60) is None
        tasks = TaskManager(harbor)
        task = tasks.submit(b"x")
        tasks.claim(task, "agent")
        tasks.complete(task, "agent")
        assert sum(queue.scheduled for queue in harbor.admin.stats().queues) == 6_020


def permissions(kind: str) -> list[str]:
    """What the user of the page may publish or subscribe to."""
    (users,) = (block for block in blocks("nats", "text") if "permissions" in block)
    return re.findall(r'"([^"]+)"', users.partition(f"{kind}: [")[2].partition("]")[0])


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of the pattern."""
    parts = (r".+" if part == ">" else r"[^.]+" if part == "*" else re.escape(part) for part in pattern.split("."))
    return re.fullmatch(r"\.".join(parts), subject) is not None


def test_every_subject_is_on_the_page(nats: NatsServer) -> None:
    """An operator finds each subject of a store that uses everything, and its stream has it."""
    namespace = nats.new_namespace()
    with closing(Harbor(nats.url(namespace=namespace))) as harbor:
        nothing = harbor.task(name="nothing")(_nothing)
        broken = harbor.task(name="broken", max_attempts=1)(_broken)
        chain(nothing.step(), nothing.step()).using(idempotency_key="flow").enqueue()
        harbor.admin.queues.pause("slow")
        harbor.recurring(every=timedelta(days=1), name="daily")(_nothing)
        broken.enqueue()
        harbor.drain()
        with harbor.worker():
            assert nothing.enqueue().result(timeout=60) is None
        harbor.drain()
    found: set[tuple[str, str]] = set()
    for stream in ("LINE", "JOBS"):
        state = nats.api(f"STREAM.INFO.{namespace}-{stream}", {"subjects_filter": ">"})["state"]
        found |= {(stream, subject.replace(namespace, "taskharbor", 1)) for subject in state["subjects"]}
    assert {subject.split(".")[1] for _, subject in found} >= {"l", "j", "k", "o", "r"}
    assert [each for each in found if not is_listed(*each)] == []
    nats.drop_namespace(namespace)


def test_every_subject_in_the_code_is_on_the_page() -> None:
    """Each kind once, and no other."""
    subjects = Subjects("taskharbor")
    line = (
        subjects.page("-", "1_a"),
        subjects.paused("mail"),
        subjects.schedule("daily"),
        subjects.minute(1),
        subjects.floor,
        subjects.bucket("1"),
        subjects.slot(1),
        subjects.cursor,
    )
    jobs = (
        subjects.card("id"),
        subjects.edges("id", "page", 1),
        subjects.piece("a-1"),
        subjects.key("k"),
        subjects.cargo("id", "a"),
        subjects.ended("-", "1_a"),
        subjects.hint(1, "1_a"),
        subjects.worker("w"),
    )
    places = [("LINE", subject) for subject in line] + [("JOBS", subject) for subject in jobs]
    assert [each for each in places if not is_listed(*each)] == []
    assert len(table("nats", "subject | stream")) == len(places) - 1  # pieces share a row with edges


def is_listed(stream: str, subject: str) -> bool:
    """Whether a row of the page has this subject, in this stream."""
    rows = [(row[1], NAMED.findall(row[0])[0]) for row in table("nats", "subject | stream")]
    return any(where == stream and matches(re.sub(r"<\w+>", "*", name), subject) for where, name in rows)


def test_the_options_of_the_url_are_on_the_page() -> None:
    """All of them, and no other."""
    listed = {name for row in table("nats", "option | means") for name in NAMED.findall(row[0])}
    assert listed == {*url.OPTIONS, *url.TLS_OPTIONS}


def test_the_messages_of_the_page_are_those_of_the_code() -> None:
    """So that they can be searched for."""
    code = "".join(file.read_text(encoding="utf-8") for file in (*FOLDER.glob("*.py"), SHARED / "tls.py"))
    code = re.sub(r"\{[^}]*\}", "", re.sub(r'"\n\s*f?"', "", code))
    parts = [part for row in table("nats", "message | means") for part in re.split(" *… *", row[0].strip("`"))]
    assert {part for part in parts if part not in code} == FROM_SERVERS


SHARED = FOLDER.parent / "shared"
FROM_SERVERS = {"replicas > 1 not supported in non-clustered mode", "has num_replicas 1 instead of 3"}


def _nothing(text: str = "") -> None:
    """A handler."""


def _broken() -> None:
    raise RuntimeError("x" * 5_000)
