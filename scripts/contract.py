"""Fill the last column of docs/contract.md with the test files that name each clause.

`python scripts/contract.py` rewrites the file; `--check` only says whether it is up to date, or a clause unproven.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "contract.md"
TO_COME = "*To come*"
UNPROVEN = (TO_COME, "*Not promised*")
ROW = re.compile(r"^\| ([A-Z]\d+b?) \| (.*?) \|[^|]*\|$")


def provers() -> dict[str, list[str]]:
    """Clause ids and the test files that name them in a test's name, docstring or comment."""
    found: dict[str, list[str]] = {}
    places = [*sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "src/taskharbor/testing/kit").rglob("*.py"))]
    for path in places:
        if path.parent.name == "mutants":  # names the cases that must fail there, and proves nothing by itself
            continue
        text = path.read_text(encoding="utf-8")
        for clause in set(re.findall(r"(?<![A-Za-z0-9])([A-Z]\d{1,2}b?)(?![A-Za-z0-9])", text.replace("_", " "))):
            found.setdefault(clause, []).append(path.relative_to(ROOT).as_posix())
    return found


def shorten(path: str) -> str:
    """A path as the page shows it."""
    name = path.removeprefix("src/taskharbor/testing/")
    return f"`{name}`" if name == path else f"kit `{name.removeprefix('kit/')}`"


def filled(page: str) -> tuple[str, list[str]]:
    """The page with its last column generated again, and the clauses that nothing proves."""
    proofs, missing, lines = provers(), [], []
    for line in page.splitlines():
        if row := ROW.match(line):
            clause, promise = row.groups()
            paths = [] if promise.startswith(TO_COME) else proofs.get(clause, [])
            if not paths and not promise.startswith(UNPROVEN):
                missing.append(clause)
            line = f"| {clause} | {promise} | {', '.join(map(shorten, paths))} |"
        lines.append(line)
    return "\n".join(lines) + "\n", missing


def main() -> int:
    """Write or check the page."""
    page = PAGE.read_text(encoding="utf-8")
    wanted, missing = filled(page)
    if missing:
        print(f"no test names {', '.join(missing)}", file=sys.stderr)
        return 1
    if "--check" in sys.argv:
        if page != wanted:
            print("docs/contract.md is out of date: run python scripts/contract.py", file=sys.stderr)
        return int(page != wanted)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
