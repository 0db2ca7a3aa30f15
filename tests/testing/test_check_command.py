"""The checker as a command, and how much work it makes of long histories."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from histories import LEASE, Tale, claim, job, last, settle

from limits import LIMIT
from taskharbor.testing.check import check
from taskharbor.testing.check.__main__ import main
from taskharbor.testing.history import Event, HistoryFile, Made, Named, Renew, Want


def written(path: Path, events: list[Event]) -> str:
    file = HistoryFile(path)
    for event in events:
        file.append(event)
    file.close()
    return str(path)


def fine() -> list[Event]:
    tale = Tale()
    tale.enqueue(job())
    tale.settle(tale.claim(who="b"))
    return tale.final(last())


def bad(count: int = 1) -> list[Event]:
    tale = Tale()
    for number in range(count):
        tale.enqueue(job(f"j{number}"))
    return tale.final()


def test_a_fine_history_is_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([written(tmp_path / "h", fine())]) == 0
    assert capsys.readouterr().out.endswith("fine\n")


def test_the_files_of_several_processes_are_one_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = fine()
    files = [
        written(tmp_path / who, [each for each in events if getattr(each, "who", "") == who]) for who in ("a", "b")
    ]
    files.append(written(tmp_path / "final", events[-1:]))
    assert main(files) == main(files[::-1]) == 0
    assert main([written(tmp_path / "headless", events[1:])]) == 2
    assert "never recorded" in capsys.readouterr().err


def test_violations_are_exit_code_1_and_printed_up_to_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "h", bad(25))
    assert main([file, "--limit", "3"]) == 1
    out = capsys.readouterr().out
    assert "H1 VIOLATED 25 times: no job lost, no job without a request" in out
    assert "enqueue #1 by a at 1 of j0" in out
    assert "j3" not in out
    assert "and 22 more" in out
    assert main([file]) == 1
    assert "and 5 more" in capsys.readouterr().out


def test_json_has_all_counts_and_some_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([written(tmp_path / "h", bad(25)), "--json", "--limit", "2"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fine"] is False
    assert found["violated"] == {"H1": 25}
    assert found["counts"] == {"operations": 25, "unknown": 0, "jobs": 25, "claims": 0, "executions": 0}
    assert [each["name"] for each in found["violations"]] == ["H1", "H1"]
    assert found["violations"][0]["operations"] == [{"who": "a", "number": 1, "verb": "enqueue", "at": 1, "item": "j0"}]
    assert main([written(tmp_path / "f", fine()), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fine"] is True


def test_options_switch_invariants_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tale = Tale()
    tale.enqueue(job("a"), now=0)
    tale.enqueue(job("b"), now=1)
    tale.settle(tale.claim("b", due_at=1))
    file = written(tmp_path / "h", tale.final(last("a", "ready", 0), last("b")))
    assert main([file]) == main([file, "--unfinished", "--overtaking", "0"]) == 1
    assert main([file, "--unfinished"]) == main([file, "--unfinished", "--overtaking", "any"]) == 0
    assert capsys.readouterr().out


def test_a_torn_last_line_is_what_a_killed_process_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = Path(written(tmp_path / "h", fine())).read_bytes()
    first, second, rest = whole.split(b"\n", 2)
    torn = tmp_path / "torn"
    torn.write_bytes(first + b"\n" + second[:20])
    assert main([str(torn)]) == 0
    assert "1 operations (1 with unknown outcomes)" in capsys.readouterr().out
    torn.write_bytes(first + b"\n" + second[:20] + b"\n" + rest)
    assert main([str(torn)]) == 2
    assert "error" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--limit", "x", "f"], ["--limit", "-1", "f"], ["--no-such-option", "f"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert capsys.readouterr().err


def test_a_file_that_is_not_there_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_the_module_can_be_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "taskharbor.testing.check", written(tmp_path / "h", bad())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 1
    assert "1 violations" in done.stdout


# Work grows with the history, whatever its shape


def steps_of(events: list[Event]) -> int:
    """How many instructions the checker takes: the same every time, unlike its duration."""
    steps = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        check(events, overtaking=3, drained=False)
    finally:
        sys.settrace(before)
    return steps


def one_job_many_leases(size: int) -> list[Event]:
    tale = Tale()
    tale.enqueue(job(max_attempts=None, max_crashes=None))
    for number in range(size):
        tale.lose("reserve", Want(("q",), LEASE, 1))
        tale.lose("cancel", Named("j"))
        tale.lose("replay", Named("j"))
        made = tale.claim(attempts=0)
        tale.began(made)
        tale.lose("settle", settle(made, "put_back"))
        tale.settle(made, "put_back", word="ok" if number % 2 else "replayed")
        tale.by_hand("cancel", "j", "finished")
        tale.by_hand("reschedule", "j", "True", run_at=0)
    return tale.events


def one_lease_many_renewals(size: int) -> list[Event]:
    tale = Tale()
    tale.enqueue(job())
    made = tale.claim(now=0)
    for number in range(size):
        tale.extend(made, LEASE + number, now=LEASE + number - 1)
        tale.lose("extend_lease", Renew("j", made.token))
    return tale.events


def one_group_many_jobs(size: int) -> list[Event]:
    tale = Tale()
    jobs = [job(f"j{number}") for number in range(size)]
    for _ in range(3):
        tale.lose("enqueue", *jobs)
    return tale.final(*(last(each.id, "ready", 0) for each in jobs))


def one_key_many_askers(size: int) -> list[Event]:
    tale = Tale()
    for number in range(size):
        tale.lose("enqueue", job("a", key="k"))
        tale.lose("cancel", Named("a"))
        tale.call("enqueue", [job(f"j{number}", key="k")], Made("a" if number else "j0", not number))
    return tale.events


def one_long_chain(size: int) -> list[Event]:
    tale = Tale()
    chain = [job(f"j{n}", after=(f"j{n - 1}",) * bool(n), policies=("collect",) * bool(n)) for n in range(size)]
    tale.call("enqueue", chain, *(Made(each.id, True) for each in chain))
    for each in reversed(chain):
        tale.settle(tale.claim(each.id))
    return tale.events


def one_line_backwards(size: int) -> list[Event]:
    tale = Tale()
    for number in range(size):
        tale.enqueue(job(f"j{number}"), now=number)
    for number in reversed(range(size)):
        made = claim(f"j{number}", 1, now=size, due_at=number)
        tale.call("reserve", [Want(("q",), LEASE, 1)], made, now=size)
    return tale.events


@pytest.mark.parametrize(
    "shape",
    [
        one_job_many_leases,
        one_lease_many_renewals,
        one_group_many_jobs,
        one_key_many_askers,
        one_long_chain,
        one_line_backwards,
    ],
)
def test_twice_the_history_is_about_twice_the_work(shape: Callable[[int], list[Event]]) -> None:
    assert steps_of(shape(128)) < 2.4 * steps_of(shape(64))
