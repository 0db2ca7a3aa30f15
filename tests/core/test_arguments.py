"""`record.arguments`: by the signature where that is known, else as plain JSON."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from taskharbor.core.arguments import arguments_of, known
from taskharbor.core.codec import Signature, Undecodable, encode_named
from taskharbor.core.wiring import Wiring, wired
from taskharbor.errors import ConfigError

from .make import record


def handler(day: date, *more: int, note: str = "none", **rest: bool) -> None: ...


SIGNATURE = Signature("handler", handler)


def test_arguments_are_decoded_by_the_signature() -> None:
    """P3: with their types, and only those that were given."""
    payload = SIGNATURE.encode((date(2026, 1, 2), 3, 4), {"yes": True})
    typed = known(payload, SIGNATURE.named)
    assert typed == payload
    assert hash(typed) == hash(payload)
    assert arguments_of(typed) == {"day": date(2026, 1, 2), "more": [3, 4], "rest": {"yes": True}}
    assert arguments_of(payload) == {"day": "2026-01-02", "more": [3, 4], "rest": {"yes": True}}


def test_records_have_arguments() -> None:
    """P3: a record as a harbor gives it, or as a driver does."""
    payload = SIGNATURE.encode((date(2026, 1, 2),), {})
    assert record(payload=payload).arguments == {"day": "2026-01-02"}
    assert record(payload=known(payload, SIGNATURE.named)).arguments == {"day": date(2026, 1, 2)}


def test_the_first_argument_may_still_have_to_come() -> None:
    """K3: a step of a workflow that takes the result of another."""
    payload = wired(SIGNATURE.encode_rest(date, (), {"note": "x"}), Wiring(takes=0, edges=1))
    assert arguments_of(known(payload, SIGNATURE.named)) == {"note": "x"}


def test_arguments_that_do_not_fit_are_plain() -> None:
    """P3, F9: the code has changed since."""
    payload = encode_named({"dya": "2026-01-02"})
    assert arguments_of(known(payload, SIGNATURE.named)) == {"dya": "2026-01-02"}
    with pytest.raises(Undecodable, match="do not fit"):
        SIGNATURE.named(payload)


def test_arguments_of_a_later_release_are_plain() -> None:
    """R5: the signature reads its own version alone."""
    payload = b'{"v":2,"args":{"day":"2026-01-02"}}'
    assert arguments_of(known(payload, SIGNATURE.named)) == {"day": "2026-01-02"}


def test_a_signature_that_cannot_be_read_leaves_them_plain() -> None:
    """P3: looking at records needs no code that works."""

    def broken(payload: bytes) -> dict[str, Any]:
        raise ConfigError("its signature cannot be read")

    assert arguments_of(known(encode_named({"x": 1}), broken)) == {"x": 1}


@pytest.mark.parametrize("payload", [b"", b"\xff", b'{"args":{"x":"\xff"}}', b"[1]", b'{"v":1}', b'{"v":1,"args":[1]}'])
def test_a_payload_without_arguments_has_none(payload: bytes) -> None:
    """R4: such as the bytes of a TaskManager's task."""
    assert arguments_of(payload) == {}
