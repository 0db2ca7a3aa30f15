"""The runs of `make torture` when nothing is named."""

from __future__ import annotations

import pytest
from torture.__main__ import RUNS, _asked
from torture.dst import _changes, _compared, alike


@pytest.mark.parametrize(
    ("arguments", "names"), [([], list(RUNS)), (["all"], list(RUNS)), (["clock", "clock"], ["clock"])]
)
def test_the_runs_that_were_asked_for(arguments: list[str], names: list[str]) -> None:
    assert _asked(arguments)[0] == names


@pytest.mark.parametrize("arguments", [["rain"], ["--minutes", "0"]])
def test_nonsense_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _asked(arguments)
    assert "error" in capsys.readouterr().err


def test_zones_that_change_alike_are_compared_once(capsys: pytest.CaptureFixture[str]) -> None:
    """N2: one change of New York's counts for Toronto's too; a wrong answer fails the run and is shown."""
    zones = ["America/New_York", "America/Toronto", "Asia/Tokyo", "Asia/Kolkata"]
    groups = alike(zones, map(_changes, zones))
    assert [(len(found), zone) for found, zone in groups.items()] == [(32, "America/Toronto")]
    assert _compared(2, [(5, []), (6, [])]) == 11
    with pytest.raises(AssertionError, match="1 of 11 answers are wrong: Mars"):
        _compared(2, [(5, []), (6, ["Mars"])])
    assert "Mars" in capsys.readouterr().out
