"""How much memory something takes, as Linux tells it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

needed = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="memory as Linux tells it"
)


def peak_growth(ask: Callable[[], Any], pid: int | str = "self") -> tuple[float, Any]:
    """By how many MB the memory of a process grows at most while something is asked."""
    folder = Path("/proc", str(pid))

    def memory(name):
        return int(re.search(rf"{name}:\s*(\d+) kB", (folder / "status").read_text())[1]) / 1024

    (folder / "clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    result = ask()
    return memory("VmHWM") - before, result
