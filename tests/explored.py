"""Explorers for tests: in this process, and their pages on a port."""

import contextlib
import threading
from pathlib import Path

import tiny

from serving.explorer import server
from serving.explorer.explorer import Explorer
from serving.explorer.options import ExplorerOptions
from serving.local import listen


def write_photographs(folder: Path, count: int = 9) -> Path:
    """Pictures of three colours, one of them in a folder below, and a broken one."""
    (folder / "below").mkdir(parents=True)
    for number in range(count):
        colour = tiny.COLOURS[number % 3]
        parent = folder / "below" if number == 0 else folder
        (parent / f"{colour} {number}.png").write_bytes(tiny.picture(number % 3))
    (folder / "broken.jpg").write_text("no picture")
    return folder


@contextlib.contextmanager
def page(explorer: Explorer, options: ExplorerOptions):
    """The address of the page of an explorer."""
    socket = listen("port", options)
    served = server.create_server(explorer, options)
    thread = threading.Thread(target=served.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        served.should_exit = True
        thread.join()
