"""The pages on engines say what is so: code and commands run on a real Valkey, tables name what is there."""

import re
import shlex
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from pages import blocks, read_to_the_end, table
from servers.fixtures import NewValkey
from servers.valkey import ValkeyServer
from taskharbor import Harbor, chain
from taskharbor.drivers import BUILT_IN, redis
from taskharbor.drivers.redis.parts import Head

FOLDER = Path(redis.__file__).parent
SOURCES = [*FOLDER.glob("**/*.py"), *FOLDER.glob("lua/*.lua")]
IN_SCRIPTS = re.compile(r"P \.\. '([a-z]+:?)'")
BEHIND_PREFIX = re.compile(r"prefix\}([a-z]+:?)")
CLI = "$ valkey-cli "
NAMED = re.compile(r"`([^`]+)`")


def test_the_page_on_redis_runs_on_a_real_server(tmp_path: Path, new_valkey: NewValkey) -> None:
    """D13: the page takes the server from its environment; a durable one causes no warning."""
    valkey = new_valkey(durable=True)
    assert read_to_the_end("redis", tmp_path, TASKHARBOR_URL=valkey.url()) == ("read to the end\n", "")


def test_its_commands_are_understood_and_its_user_may_do_everything(new_valkey: NewValkey) -> None:
    """The user of the page enqueues, works and waits; its commands answer as they do to an operator."""
    valkey = new_valkey()
    joined = [block.replace("\\\n", "") for block in blocks("redis", "console")]
    lines = [line for block in joined for line in block.splitlines() if line.startswith(CLI)]
    user, cluster, head, *others = (shlex.split(line.removeprefix(CLI), comments=True) for line in lines)
    assert user[:2] == ["ACL", "SETUSER"]
    valkey.command(*user)
    with closing(Harbor(valkey.url().replace("//", "//jobs:secret@"))) as harbor:
        task = harbor.task(name="nothing")(_nothing)
        job = task.enqueue()
        ready = valkey.command(*(job.id if word == "ID" else word for word in head)).decode()
        shown = next(line for block in blocks("redis", "console") for line in block.splitlines() if "ready 0" in line)
        same = re.compile(r"\d{16}")
        assert same.sub("", ready) == same.sub("", shown.strip('"'))
        for words in others:
            valkey.command(*words)
        with harbor.worker():
            assert job.result(timeout=60) is None
    assert valkey.command("ACL", "LOG") == []
    assert cluster[:2] == ["CLUSTER", "KEYSLOT"]


def test_every_key_is_on_the_page(valkey: ValkeyServer) -> None:
    """An operator finds each key of a store that uses everything, with its type."""
    kinds = _listed()
    namespace = valkey.new_namespace()
    with closing(Harbor(valkey.url(namespace=namespace))) as harbor:
        nothing = harbor.task(name="nothing")(_nothing)
        broken = harbor.task(name="broken", max_attempts=1)(_broken)
        chain(nothing.step(), nothing.step()).using(idempotency_key="flow").enqueue()
        nothing.using(idempotency_key="one", expires=timedelta(hours=1)).enqueue()
        harbor.admin.queues.pause("slow")
        harbor.drain()
        broken.enqueue()
        harbor.drain()
        chain(nothing.step(), nothing.step()).enqueue()
        harbor.recurring(every=timedelta(days=1), name="daily")(_nothing)
        with harbor.worker():
            assert nothing.enqueue().result(timeout=60) is None
    prefix = f"{{{namespace}}}:"
    for key in valkey.keys(namespace):
        name = key.decode().removeprefix(prefix)
        place = name if name in kinds else name[: name.index(":") + 1]
        said = valkey.command("TYPE", key)
        assert kinds[place] == (said.decode() if isinstance(said, bytes) else said)
    valkey.drop_namespace(namespace)


def test_every_key_in_the_code_is_on_the_page() -> None:
    """Keys are named behind the prefix, or as the place of an entry or of a write; nothing else is listed."""
    code = "".join(file.read_text(encoding="utf-8") for file in SOURCES)
    named = set(IN_SCRIPTS.findall(code)) | set(BEHIND_PREFIX.findall(code))
    assert len(named) > 20
    assert named - {"wake", "ends"} <= _listed().keys()
    assert all(re.search(rf"""["'{{}}]{re.escape(name)}""", code) for name in _listed())


def test_the_fields_of_a_head_are_on_the_page() -> None:
    """In their order."""
    rows = table("redis", "| field | means")
    fields = [(int(row[0]), row[1].strip("` |")) for row in rows]
    assert fields == list(enumerate(Head.__struct_fields__, 1))


def test_the_table_of_engines_has_every_engine() -> None:
    """By the scheme of its URL."""
    assert {row[1].strip("`").partition(":")[0] for row in table("engines", "| engine | URL")} == BUILT_IN.keys()


def _nothing() -> None:
    """A handler."""


def _broken() -> None:
    raise ValueError("broken")


def _listed() -> dict[str, str]:
    """The keys on the page without what differs, which is in <>, and their types."""
    rows = table("redis", "key | type")
    pairs = [pair for names, types, _ in rows for pair in _pairs(names, types).items()]
    return {name.partition("<")[0]: kind for name, kind in pairs}


def _pairs(names: str, kinds: str) -> dict[str, str]:
    found = NAMED.findall(names)
    types = {"string": "string", "hash": "hash", "sorted set": "zset", "set": "set"}
    given = [types[kind] for kind in kinds.split(", ")]
    return dict(zip(found, given if len(given) == len(found) else given * len(found), strict=True))
