"""docs/architecture.md is a map: the files, functions and protocols that it names are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from pages import ROOT, table
from taskharbor import driver

SOURCE = ROOT / "src" / "taskharbor"
PLACES = table("architecture", "question")
PROTOCOLS = table("architecture", "protocol")


def defined() -> set[str]:
    """Every name that the code defines."""
    trees = [ast.parse(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    named = {node.name for node in nodes if isinstance(node, kinds)}
    return named | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


NAMES = defined() | {"def"}


@pytest.mark.parametrize("row", PLACES, ids=lambda row: row[0][:40])
def test_the_answer_to_a_question_is_there(row: list[str]) -> None:
    named = set(re.findall(r"`([\w/.]+)`", row[1]))
    paths = {text for text in named if "/" in text or text.endswith(".py")}
    beside = {SOURCE / path.rpartition("/")[0] for path in paths}  # a second file of a folder is named without it
    folders: set[Path] = {ROOT, SOURCE, *SOURCE.glob("drivers/*"), *beside}
    assert {path for path in paths if not any((folder / path).exists() for folder in folders)} == set()
    assert {part for name in named - paths for part in name.split(".")} - NAMES == set()


@pytest.mark.parametrize("row", PROTOCOLS, ids=lambda row: row[0])
def test_a_protocol_has_the_methods_in_the_table(row: list[str]) -> None:
    protocol = protocol_of(row)
    methods = {name for name in dir(protocol) if not name.startswith("_") and callable(getattr(protocol, name))}
    assert set(re.findall(r"`(\w+)`", row[1])) == methods
    assert ("(engine)" in row[0]) == (protocol in (*driver.SPECIAL, driver.Migrates))


def test_every_protocol_is_in_the_table() -> None:
    assert {protocol_of(row) for row in PROTOCOLS} == {driver.Driver, driver.Migrates, *driver.COMMON, *driver.SPECIAL}


def protocol_of(row: list[str]) -> type:
    found: type = getattr(driver, row[0].split("`")[1])
    return found
