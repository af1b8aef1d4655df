"""The page and its paths: static files, pictures, and what the page asks, in JSON."""

import hashlib
import inspect
import json
import mimetypes
from collections.abc import Callable
from importlib import resources
from typing import Any

import fastapi
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from mrnn_tf.errors import UserError
from mrnn_tf.escape import printable
from serving import rest_api
from serving.channel import MissingSignatureError, ServingError
from serving.explorer.explorer import Explorer
from serving.explorer.options import ExplorerOptions
from serving.explorer.pictures import SIDES, is_sent
from serving.explorer.safety import Guard
from serving.limits import Slow, Uploads
from serving.served_version import Refused

_BAD_GATEWAY, _MISSING = 502, 501
_MAX_JSON_BYTES = 1 << 16
_KEPT_SECONDS = 3600  # by the browser, of a picture that was sent
_MAX_DIGITS = 9  # of a number in a query


def create(explorer: Explorer, options: ExplorerOptions, uploads: Uploads) -> fastapi.FastAPI:
    app = fastapi.FastAPI(openapi_url=None, redirect_slashes=False)
    app.add_middleware(Guard, host=options.host, token=options.token)
    _add_static_files(app)

    @app.post("/api/pictures")
    async def add_picture(request: fastapi.Request):
        async with uploads.room() as upload:
            content = await upload.read(
                rest_api.content_of(request, upload, options.max_picture_bytes)
            )
            return _json({"picture": await run_in_threadpool(explorer.pictures.add, content)})

    @app.get("/api/preview")
    def preview(request: fastapi.Request, picture: str, size: str = "small"):
        if size not in SIDES:
            raise HTTPException(404, "a preview is small or large.")
        content = explorer.pictures.preview(picture, size)
        return _cached(request, content, "image/jpeg", _KEPT_SECONDS if is_sent(picture) else 0)

    def answers(path: str, answer: Callable[..., dict]) -> None:
        """Answers GET by a function of texts, which are the parameters of the query."""
        names = [*inspect.signature(answer).parameters]

        def respond(request: fastapi.Request):
            return _json(answer(*(request.query_params.get(name, "") for name in names)))

        app.get(f"/api/{path}")(respond)

    for path, answer in {
        "state": explorer.state,
        "captions": explorer.captions,
        "next": explorer.next_words,
        "search": explorer.search,
        "similar": explorer.similar,
        "sentences": explorer.sentences,
        "unreadable": explorer.unreadable,
        "card": explorer.inside.card,
        "nearest": explorer.inside.nearest,
        "blank": explorer.inside.blank,
    }.items():
        answers(path, answer)

    @app.get("/api/photos")
    def photos(first: str = "0"):
        if not first.isdecimal() or len(first) > _MAX_DIGITS:
            raise HTTPException(400, f"`first` is a number of at most {_MAX_DIGITS} digits.")
        return _json(explorer.photos(int(first)))

    @app.post("/api/photographs")
    async def photographs(request: fastapi.Request):
        """Chooses a folder, stops its indexing, or goes on."""
        if explorer.photographs is None:
            missing = "--photos" if explorer.captioner else "--model"
            raise HTTPException(_MISSING, f"no folder is shown: start the page with {missing}.")
        async with uploads.room() as upload:
            body = await upload.read(rest_api.content_of(request, upload, _MAX_JSON_BYTES))
        match _parse(body):
            case {"folder": str(folder)}:
                await run_in_threadpool(explorer.photographs.choose, folder)
            case {"action": "stop"}:
                explorer.photographs.stop()
            case {"action": "go on"}:
                explorer.photographs.go_on()
            case _:
                raise HTTPException(400, 'the body is {"folder": ...} or {"action": ...}.')
        return _json(explorer.photographs.state())

    _add_errors(app)
    return app


def _add_static_files(app: fastapi.FastAPI) -> None:
    """The files of the page, read once: no path of a request ever names a file."""

    def add(path: str, content: bytes, kind: str) -> None:
        @app.get(path)
        async def respond(request: fastapi.Request):
            return _cached(request, content, kind)

    for file in resources.files("serving.explorer").joinpath("static").iterdir():
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        add("/" if file.name == "index.html" else f"/{file.name}", file.read_bytes(), kind)


def _add_errors(app: fastapi.FastAPI) -> None:
    @app.exception_handler(UserError)
    async def mistaken(_, error: UserError):
        return _error(400, str(error))

    @app.exception_handler(OSError)
    async def unreadable(_, error: OSError):
        return _error(404, f"the file cannot be read: {error.strerror or error}.")

    @app.exception_handler(ServingError)
    async def unanswered(_, error: ServingError):
        is_missing = isinstance(error, MissingSignatureError)
        code = _MISSING if is_missing else rest_api.HTTP_CODES.get(error.code, _BAD_GATEWAY)
        return _error(code, str(error))

    @app.exception_handler(Refused)
    async def refused(_, error: Refused):
        code = 408 if isinstance(error, Slow) else rest_api.HTTP_CODES.get(error.code, 500)
        return _error(code, str(error))

    @app.exception_handler(HTTPException)
    async def malformed(_, error: HTTPException):
        is_ours = error.detail.endswith(".")  # Starlette's own are two words
        return _error(error.status_code, error.detail if is_ours else "there is no such path.")

    @app.exception_handler(500)
    async def failed(*_):
        return _error(500, "the explorer failed: see its log.")


def _cached(
    request: fastapi.Request, content: bytes, kind: str, seconds: int = 0
) -> fastapi.Response:
    """Content that the browser keeps: for some seconds, and then asks about by its digest."""
    tag = f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'
    headers = {"etag": tag, "cache-control": f"private, max-age={seconds}"}
    if request.headers.get("if-none-match") == tag:
        return fastapi.Response(status_code=304, headers=headers)
    return fastapi.Response(content, headers=headers, media_type=kind)


def _json(content: Any, code: int = 200) -> fastapi.Response:
    return fastapi.Response(json.dumps(content), code, media_type="application/json")


def _error(code: int, sentence: str) -> fastapi.Response:
    return _json({"error": printable(" ".join(sentence.split()))}, code)


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is no JSON.") from None
