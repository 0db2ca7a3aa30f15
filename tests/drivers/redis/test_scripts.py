"""The files of the scripts."""

from __future__ import annotations

from importlib.resources import files

from taskharbor.drivers.redis.scripts import PACKAGE


def test_every_script_says_what_it_takes_and_returns() -> None:
    """D: its keys, its arguments, its reply; and none of them reads a clock."""
    for found in files(PACKAGE).joinpath("lua").iterdir():
        text = found.read_text(encoding="utf-8")
        head = "\n".join(line for line in text.splitlines() if line.startswith("--"))
        assert "'TIME'" not in text
        assert found.name == "head.lua" or all(word in head for word in ("KEYS", "ARGV", "Returns")), found.name
