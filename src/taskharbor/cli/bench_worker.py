"""The second process of `taskharbor bench`: a worker that ends with the process that started it."""

from __future__ import annotations

import os
import threading

from taskharbor.cli.bench_run import PING, Bench


def main() -> None:
    """Work on the store that TASKHARBOR_URL names until the parent goes away."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    Bench(None).harbor.run_worker([PING])


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the parent's end of stdin is closed
    os._exit(0)


if __name__ == "__main__":
    main()
