"""One turn of one side, in a process of its own: `python -m benchmarks.side FUNCTION ARGUMENTS FOLDER` prints JSON.

A fresh process each time: no side inherits another's caches, heap or copy of SQLite.
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib import import_module
from pathlib import Path


def main(name: str, arguments: str, folder: str) -> None:
    """Take the turn."""
    module, _, function = name.partition(".")
    call = getattr(import_module(f"benchmarks.{module}"), function)
    given = json.loads(arguments)
    if "folder" in inspect.signature(call).parameters:
        given["folder"] = Path(folder)
    sys.stdout.write(json.dumps(call(**given)))


if __name__ == "__main__":
    main(*sys.argv[1:])
