"""Short tracebacks for logs."""

from __future__ import annotations

import json
import traceback

from taskharbor.worker.stacks import own_frames


def test_frames_of_libraries_are_left_out() -> None:
    """The first frame stays, wherever it is, and so does a message of several lines."""
    text = (
        "Traceback (most recent call last):\n"
        '  File "/app/.venv/lib/python3.11/site-packages/shop/tasks.py", line 5, in pay\n    send()\n    ^^^^^^\n'
        '  File "/app/.venv/lib/python3.11/site-packages/httpx/_api.py", line 7, in get\n    raise it\n'
        '  File "<frozen runpy>", line 7, in run\n'
        '  File "/app/mail.py", line 9, in fail\n    raise it\n  [Previous line repeated 3 more times]\n'
        "httpx.ConnectError: no\n  route to host\n"
    )
    kept = text.splitlines(keepends=True)
    note = "  [2 frames of libraries left out]\n"
    assert own_frames(text) == "".join([*kept[:4], *kept[7:10], note, *kept[10:]])


def test_only_the_last_of_a_chain_is_kept() -> None:
    """Its causes are in the store."""
    text = ""
    try:
        try:
            json.loads("{")
        except ValueError as error:
            raise KeyError("body") from error
    except KeyError:
        text = own_frames(traceback.format_exc())
    header, frame, *_, last = text.splitlines()
    assert (header, last) == ("Traceback (most recent call last):", "KeyError: 'body'")
    assert frame.startswith(f'  File "{__file__}"')


def test_text_other_than_a_plain_traceback_stays() -> None:
    """Groups of exceptions are trees; a failure may have no traceback at all."""
    try:
        raise ExceptionGroup("several", [ValueError("one")])
    except ExceptionGroup:
        text = traceback.format_exc()
    assert own_frames(text) == text
    assert own_frames("") == ""
    assert own_frames("ValueError: no") == "ValueError: no"
    frame = '  File "/app/mail.py", line 9, in fail\n'
    assert own_frames(frame) == frame
