"""The subjects of a namespace. Any text can be a part of one: it is encoded so that it can be read back."""

from __future__ import annotations

import re
from hashlib import blake2b

# Beyond this a name is replaced by its digest: the server closes a connection that sends a subject of 4 KiB.
LONGEST = 200
NO_FLOW = "-"
PLAIN = re.compile(r"[A-Za-z0-9_-]+")
ODD = re.compile(rb"[^A-Za-z0-9_-]")
ESCAPED = re.compile(r"=([0-9A-F]{2})")


def part(text: str) -> str:
    """A text as one part of a subject: letters, digits, `_` and `-` stay, every other byte becomes `=XX`."""
    if len(text) <= LONGEST and PLAIN.fullmatch(text):
        return text
    encoded = ODD.sub(lambda found: b"=%02X" % found[0][0], text.encode("utf-8", "surrogatepass")).decode() or "="
    return encoded if len(encoded) <= LONGEST else f"=~{blake2b(encoded.encode(), digest_size=20).hexdigest()}"


def text_of(part: str) -> str:
    """The text of a part that is not a digest."""
    if part == "=":
        return ""
    raw = re.sub(rb"=([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), part.encode())
    return raw.decode("utf-8", "surrogatepass")


def flow_of(workflow: str | None) -> str:
    """The part that the pages of a workflow share."""
    return NO_FLOW if workflow is None else f"w{part(workflow)}"


def workflow_of(flow: str) -> str | None:
    """The workflow of a part, if it can be read back."""
    return None if flow == NO_FLOW or flow.startswith("w=~") else text_of(flow[1:])


def bucket_of(page: str) -> str:
    """The ten minutes in which a page was made."""
    return page.partition("_")[0]


class Subjects:
    """The subjects of one namespace; `prefix` is their first part.

    What begins with `l` is in the stream LINE, everything else in JOBS. A page is named after the ten minutes in which
    it was made, which are also the bucket of its place among the ended.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.line = f"{prefix}.l."
        self.pages = f"{prefix}.l.s."
        self.floor = f"{prefix}.l.f"
        self.cursor = f"{prefix}.l.o"
        self._card = f"{prefix}.j."
        self._ended = f"{prefix}.e."

    def card(self, id: str) -> str:
        return self._card + (id if len(id) == 36 and PLAIN.fullmatch(id) else part(id))

    def page(self, flow: str, page: str) -> str:
        return f"{self.pages}{flow}.{page}"

    def ended(self, flow: str, page: str) -> str:
        kind = "j" if flow == NO_FLOW else "w"
        return f"{self._ended}{kind}.{bucket_of(page)}.{flow}.{page}"

    def ended_in(self, bucket: str) -> str:
        return f"{self._ended}*.{bucket}.>"

    def ended_of(self, flow: str) -> str:
        return f"{self._ended}w.*.{flow}.*"

    @property
    def ended_flows(self) -> str:
        return f"{self._ended}w.>"

    def pages_of(self, flow: str) -> str:
        return f"{self.pages}{flow}.*"

    def key(self, key: str) -> str:
        return f"{self.prefix}.k.{part(key)}"

    def cargo(self, id: str, name: str) -> str:
        return f"{self.prefix}.o.{part(id)}.{name}"

    def piece(self, name: str) -> str:
        return f"{self.prefix}.x.=p.{name}"

    def edges(self, id: str, page: str, number: int) -> str:
        return f"{self.prefix}.x.{part(id)}.{page}-{number}"

    def hint(self, slot: int, page: str) -> str:
        return f"{self.prefix}.d.{slot}.{page}"

    def hints(self, slot: int) -> str:
        return f"{self.prefix}.d.{slot}.*"

    def worker(self, id: str) -> str:
        return f"{self.prefix}.r.{part(id)}"

    @property
    def workers(self) -> str:
        return f"{self.prefix}.r.*"

    def slot(self, slot: int) -> str:
        return f"{self.line}m.{slot}"

    def paused(self, queue: str) -> str:
        return f"{self.line}p.{part(queue)}"

    def schedule(self, name: str) -> str:
        return f"{self.line}c.{part(name)}"

    def minute(self, minute: int) -> str:
        return f"{self.line}n.{minute}"

    def bucket(self, bucket: str) -> str:
        return f"{self.line}t.{bucket}"
