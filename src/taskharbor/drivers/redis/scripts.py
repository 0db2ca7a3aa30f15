"""The Lua scripts of this driver, one file per verb under `lua/`. `-- include: part` is replaced by that file."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

from msgspec import Struct

PACKAGE = "taskharbor.drivers.redis"
INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)


class Script(Struct, frozen=True):
    """A script, with the name by which the server knows it (`sha`, the SHA-1 of its text)."""

    name: str
    text: str
    sha: str


@cache
def load(name: str) -> Script:
    """The script in `lua/<name>.lua`."""
    return script(name, INCLUDE.sub(lambda found: _text(found[1]), _text(name)))


def _text(name: str) -> str:
    return files(PACKAGE).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def script(name: str, text: str) -> Script:
    """A script by its text."""
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
