"""Photographs for explorers, and their pages on a port."""

from pathlib import Path

import tiny

from serving.explorer import server

page = server.in_thread


def write_photographs(folder: Path, count: int = 9) -> Path:
    """Pictures of three colours, one of them in a folder below, and a broken one."""
    (folder / "below").mkdir(parents=True)
    for number in range(count):
        colour = tiny.COLOURS[number % 3]
        parent = folder / "below" if number == 0 else folder
        (parent / f"{colour} {number}.png").write_bytes(tiny.picture(number % 3))
    (folder / "broken.jpg").write_text("no picture")
    return folder
