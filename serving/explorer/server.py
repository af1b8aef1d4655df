"""Starts the explorer: who answers, which folder, and the page on a port."""

import contextlib
import os
import socket
import threading
import webbrowser
from collections.abc import Iterator
from urllib.parse import quote

import uvicorn
from absl import logging

from mrnn_tf.captioner import Captioner
from mrnn_tf.errors import UserError
from mrnn_tf.fingerprints import COMPARED
from mrnn_tf.photo_index.catalogue import Catalogue
from mrnn_tf.schema import MODEL
from serving import indexes
from serving.channel import ServingError
from serving.client import Client
from serving.connections import Connections
from serving.explorer import app
from serving.explorer.explorer import Explorer
from serving.explorer.in_process import InProcess
from serving.explorer.options import ExplorerOptions
from serving.explorer.photographs import Photographs
from serving.explorer.safety import is_loopback
from serving.limits import Uploads
from serving.local import listen

_CALL_SECONDS, _RETRIES = 20.0, 1  # of a call to a server
_READ_SECONDS, _MAX_WAITING, _MAX_CONNECTIONS = 60.0, 64, 128
_UPLOADS_AT_ONCE = 4  # of the largest size
_GRACE_SECONDS = 2


def explore(options: ExplorerOptions) -> None:
    """Serves the page until SIGTERM or SIGINT."""
    page = listen("port", options)
    explorer = create_explorer(options)
    address = _address(options, page.getsockname()[1])
    print(f"explorer: {address}", flush=True)
    if options.open:
        webbrowser.open(address)
    try:
        create_server(explorer, options).run(sockets=[page])
    finally:
        explorer.close()


def create_explorer(options: ExplorerOptions) -> Explorer:
    """What answers the page."""
    if options.photos is not None and not os.path.isdir(options.photos):
        raise UserError(f"`photos`: there is no folder {options.photos}.")
    captioner = None
    if options.server is None or options.model is not None:
        print("loading the model ...", flush=True)
        captioner = Captioner.load(options.model)
    if options.server is None:
        client = InProcess(captioner)
        if captioner.images.can_encode:
            threading.Thread(target=client.warm_up, daemon=True).start()
    else:
        client = Client(options.server, timeout=_CALL_SECONDS, retries=_RETRIES)
    if captioner is None:
        folder = options.photos and os.path.realpath(options.photos)
        return Explorer(client, folder=folder)
    if options.server is not None:
        try:
            served = client.fingerprints(MODEL)
        except ServingError as error:
            raise UserError(f"`server`: {error}") from None
        if any(captioner.fingerprints[key] != served.get(key, "") for key in COMPARED):
            raise UserError(f"`model` is not the model that {options.server} serves.")
    # Other machines may look at the folder that was named, and at no other one.
    is_open = options.photos is None and is_loopback(options.host)
    root = "~" if is_open else options.photos
    photographs = Photographs(captioner, root) if root else None
    if options.photos:
        photographs.begin(options.photos)
    elif photographs:
        _begin_latest(photographs)
    return Explorer(client, captioner, photographs)


def _begin_latest(photographs: Photographs) -> None:
    """Shows the folder that was indexed last, where there is one of this model."""
    if (index := indexes.latest()) is None:
        return
    try:
        with Catalogue(str(index)) as catalogue:
            folder = catalogue.about["folder"]
        if indexes.index_of(folder) == index:
            photographs.begin(folder)
    except (UserError, OSError) as error:
        logging.info("The last index is not shown: %s", error)


def create_server(explorer: Explorer, options: ExplorerOptions) -> uvicorn.Server:
    """The server of the page."""
    most = _UPLOADS_AT_ONCE * options.max_picture_bytes
    uploads = Uploads(most, _READ_SECONDS, _MAX_WAITING)
    connections = Connections(_MAX_CONNECTIONS, most, _READ_SECONDS, uploads.evict)
    return uvicorn.Server(
        uvicorn.Config(
            app.create(explorer, options, uploads),
            http=connections.protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
    )


@contextlib.contextmanager
def in_thread(explorer: Explorer, options: ExplorerOptions) -> Iterator[str]:
    """The address of the page, which a thread serves while the context lasts."""
    page = listen("port", options)
    server = create_server(explorer, options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [page]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{page.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def _address(options: ExplorerOptions, port: int) -> str:
    """The link that opens the page."""
    host = options.host
    if host in ("", "0.0.0.0", "::"):
        host = socket.gethostname()
    if options.token is None and not is_loopback(options.host):
        logging.warning("Whoever reaches port %d can use the page: --token asks for a secret", port)
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/" + (f"?token={quote(options.token)}" if options.token else "")
