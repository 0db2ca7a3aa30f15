"""Reads the statements of an SQL driver: files under `sql/` that hold named blocks.

    -- name: claim
    -- Take ready jobs. $1 ids
    UPDATE ...

A block begins at its `-- name:` line and ends at the next one. A `-- part:` block is not run: a line `-- include: part`
in another block is replaced by its text. Names are unique per driver. Comments and line breaks are
dropped: drivers look up prepared statements by their text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files

from msgspec import Struct

HEAD = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)
COMMENT = re.compile(r"--.*")


class Block(Struct, frozen=True):
    """A named block of a file; a part is only there to be included."""

    name: str
    text: str
    is_part: bool


def statements(package: str) -> Mapping[str, str]:
    """All statements of a driver by name, each on one line."""
    found: dict[str, Block] = {}
    for file, text in scripts(package, "sql").items():
        for block in blocks(text):
            if block.name in found:
                raise ValueError(f"{package}: sql/{file}.sql: there are two blocks named {block.name}")
            found[block.name] = block
    return {name: _squeezed(_whole(block, found)) for name, block in found.items() if not block.is_part}


def blocks(text: str) -> list[Block]:
    """The blocks of a file, in its order."""
    before, *found = HEAD.split(text)
    if COMMENT.sub("", before).strip():
        raise ValueError(f"text before the first name: {before.strip()[:80]}")
    return [Block(name, body, kind == "part") for kind, name, body in _threes(found)]


def scripts(package: str, folder: str) -> Mapping[str, str]:
    """The texts of the `.sql` files in a folder of a package by stem, sorted."""
    found = sorted((files(package) / folder).iterdir(), key=lambda it: it.name)
    return {it.name.removesuffix(".sql"): it.read_text("utf-8") for it in found if it.name.endswith(".sql")}


def _whole(block: Block, known: Mapping[str, Block]) -> str:
    """The text of a block with the parts it includes; parts may include parts."""

    def part(found: re.Match[str]) -> str:
        other = known.get(found[1])
        if other is None or not other.is_part:
            raise ValueError(f"{block.name} includes {found[1]}, and there is no such part")
        return _whole(other, known)

    return INCLUDE.sub(part, block.text)


def _squeezed(text: str) -> str:
    return " ".join(COMMENT.sub("", text).split())


def _threes(flat: list[str]) -> Iterator[tuple[str, str, str]]:
    return zip(flat[::3], flat[1::3], flat[2::3], strict=True)
