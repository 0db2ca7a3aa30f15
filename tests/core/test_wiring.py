"""The wiring in payloads, and arguments made of results."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core import wiring
from taskharbor.core.codec import Signature, Undecodable, encode_named
from taskharbor.core.collecting import FailedStep
from taskharbor.core.dependency import Parent
from taskharbor.core.states import State
from taskharbor.core.wiring import TooMuch, Wiring, filled, wired, wiring_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


def ended(state: State = State.DONE, *, id: str = "p", result: bytes | None = None, error: str | None = None) -> Parent:
    """A parent that has ended."""
    return Parent(id, "collect", True, state, result, error, len(result or b""))


def returned(value: Any) -> Parent:
    """A parent that returned this value."""
    return ended(result=json.dumps(value).encode())


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=3), JSON)
def test_an_argument_is_added_to_those_that_were_given(arguments: dict[str, Any], value: Any) -> None:
    """K3: beside any others, and the rest of the payload stays as it is."""
    arguments.pop("taken", None)
    payload = wired(encode_named(arguments), Wiring(takes=0, out=[(1, 2)], outs=2))
    assert wiring_of(payload) == Wiring(takes=0, out=[(1, 2)], outs=2)
    found = json.loads(filled(payload, "taken", [returned(value)]))
    assert found == {"v": 1, "args": {"taken": value, **arguments}}


@pytest.mark.parametrize(
    ("takes", "values", "expected"),
    [
        (0, [7], 7),
        (3, [1, 2, 3], [1, 2, 3]),
        (1, [1], [1]),
        ([], [], []),
        ([0, 2, []], [1, 2, 3], [1, [2, 3], []]),
        ([[1]], [1], [[[1]]]),
        (0, [1, 2, 3], 1),
    ],
)
def test_results_are_nested_as_the_shape_says(takes: Any, values: list[Any], expected: Any) -> None:
    """K3: in order; parents that are only waited for come last and are left out."""
    payload = wired(encode_named({}), Wiring(takes=takes))
    found = json.loads(filled(payload, "x", [returned(value) for value in values]))
    assert found["args"] == {"x": expected}


def test_a_parent_without_a_result_gives_nothing() -> None:
    """K3."""
    payload = wired(encode_named({}), Wiring(takes=0))
    assert json.loads(filled(payload, "x", [ended()]))["args"] == {"x": None}


@pytest.mark.parametrize("state", [State.DLQ, State.CANCELLED])
def test_a_failed_parent_is_a_failed_step(state: State) -> None:
    """K4: a handler that collects gets one in the place of the result."""

    def handler(parts: list[int | FailedStep]) -> None: ...

    signature = Signature("t", handler)
    payload = wired(signature.encode_rest(list[int | FailedStep], (), {}), Wiring(takes=2))
    parents = [returned(5), ended(state, id="dead", error="Boom: x")]
    (parts,), _ = signature.decode(filled(payload, "parts", parents))
    assert parts == [5, FailedStep("dead", str(state), "Boom: x")]


def test_parents_that_are_gone_are_missed() -> None:
    """K3, F9: a replay long after the retention has a readable end."""
    payload = wired(encode_named({}), Wiring(takes=2))
    with pytest.raises(Undecodable, match="the results of its parents are gone"):
        filled(payload, "x", [returned(1)])
    payload = wired(encode_named({}), Wiring(takes=0, edges=2))
    with pytest.raises(Undecodable, match="the results of its parents are gone: they were deleted"):
        filled(payload, "x", [returned("of one that was only waited for")])
    assert json.loads(filled(payload, "x", [returned(1), returned(2)]))["args"] == {"x": 1}


def test_more_than_a_step_can_be_given_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """K3: 16 MiB in all; up to that it is fine."""
    assert wiring.LIMIT == 16 * 1024 * 1024
    monkeypatch.setattr(wiring, "LIMIT", 10)
    payload = wired(encode_named({}), Wiring(takes=2))
    assert json.loads(filled(payload, "x", [returned("abc"), returned("def")]))["args"] == {"x": ["abc", "def"]}
    with pytest.raises(TooMuch, match="the results of its 2 parents take 11 bytes, the limit is 10"):
        filled(payload, "x", [returned("abc"), returned("defg")])


def test_failures_that_are_collected_count_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """K3, K4: regression: ten thousand long errors were no bytes at all."""
    payload = wired(encode_named({}), Wiring(takes=2))
    given = [returned("abc"), ended(State.DLQ, error="é" * 500)]
    monkeypatch.setattr(wiring, "LIMIT", 1000)
    with pytest.raises(TooMuch, match=r"the results of its 2 parents take 1,\d\d\d bytes, the limit is 1,000"):
        filled(payload, "x", given)
    assert filled(payload, "x", [returned("abc"), ended(State.CANCELLED)])


def test_a_payload_without_wiring_is_left_as_it_is() -> None:
    """K3."""
    payload = encode_named({"a": 1})
    assert wired(payload, Wiring()) == payload
    assert wiring_of(payload) == Wiring()
    assert wiring_of(b"no payload at all") == Wiring()
