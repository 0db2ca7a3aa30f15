"""For processes whose host has a wrong clock: SKEW seconds off, for all Python code. The monotonic clock is right.

`datetime` is written in C, and everybody imports it by name, so it is changed in place.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from datetime import datetime, timedelta, tzinfo
from typing import Any

SKEW = float(os.environ["SKEW"])
_true_time, _true_now = time.time, datetime.now


def _time() -> float:
    return _true_time() + SKEW


def _now(cls: type[datetime], tz: tzinfo | None = None) -> datetime:
    return _true_now(tz) + timedelta(seconds=SKEW)


names: dict[str, Any] = gc.get_referents(datetime.__dict__)[0]
names["now"] = classmethod(_now)
ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))
time.time = _time
