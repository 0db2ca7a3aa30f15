"""What `make torture` runs when nothing is named."""

from __future__ import annotations

import pytest
from torture.__main__ import RUNS, _asked


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
