"""The code of the docs runs, block after block, in one process as a reader would type it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("page", ["guide", "testing"])
def test_every_block_of_the_page_runs(page: str, tmp_path: Path) -> None:
    """P1, F4, D9, Q2, I1: what the page asserts, holds."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    program = tmp_path / f"{page}_page.py"
    program.write_text("\n".join([*blocks, 'print("read to the end")']), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("read to the end\n", "")
