"""Who may read the page and which files it may show: hosts, origins, a token, one folder."""

import hmac
import ipaddress
import os
import socket
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mrnn_tf import photos

COOKIE = "mrnn_explorer"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_OTHER_SITES = ("cross-site", "same-site")


class Guard:
    """Lets requests of the page itself through, and adds headers that keep others out.

    A name in `Host` other than this machine's is refused, since a foreign page may have made its
    own name point here. With a token, a request brings it as a cookie, which the link `/?token=...`
    sets, or as `Authorization: Bearer ...`.
    """

    def __init__(self, app: ASGIApp, host: str, token: str | None):
        self._app, self._token = app, token
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._refusal(scope)
        await (answer or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_own(host):
            return _refused(403, "the page is not served under this host name.")
        is_foreign = origin is not None and origin != f"{scope['scheme']}://{host}"
        is_api = scope["path"].startswith("/api/")
        if is_foreign or (is_api and headers.get("sec-fetch-site") in _OTHER_SITES):
            return _refused(403, "a page of another origin may not read this one.")
        if self._token is None:
            return None
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if scope["path"] == "/" and self._is_token(query.get("token", [""])[0]):
            answer = RedirectResponse("/", 303)
            settings = {"httponly": True, "samesite": "lax"}
            answer.set_cookie(COOKIE, self._token.encode().hex(), **settings)
            return answer
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_token(bearer) or self._is_token(_from_cookie(headers.get("cookie", ""))):
            return None
        return _refused(401, "open the page by the link with the token that the program printed.")

    def _is_own(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        name = name.strip("[]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def _refused(code: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, code)


def _from_cookie(header: str) -> str:
    try:
        morsel = SimpleCookie(header).get(COOKIE)
        return bytes.fromhex(morsel.value).decode() if morsel else ""
    except (CookieError, ValueError):
        return ""


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_inside(path: str | bytes, folder: str | bytes) -> bool:
    """Whether a path, with all its links followed, lies in a folder."""
    path, top = os.path.realpath(os.fsencode(path)), os.path.realpath(os.fsencode(folder))
    return os.path.commonpath([path, top]) == top


def confined(folder: str, path: bytes) -> str:
    """The file that a relative path names in a folder.

    Raises:
        HTTPException: where it is no photograph of the folder, or leads out of it.
    """
    parts = path.split(b"/")
    is_plain = b"\0" not in path and not any(part.startswith(b".") for part in parts)
    if not is_plain or os.path.isabs(path):
        raise HTTPException(403, "this path leads out of the folder, or is hidden.")
    file = os.path.join(os.fsencode(folder), path)
    if not is_inside(file, folder):
        raise HTTPException(403, "this file is a link out of the folder.")
    if not os.fsdecode(path).lower().endswith(photos.SUFFIXES) or not os.path.isfile(file):
        raise HTTPException(404, "the folder has no such photograph.")
    return os.fsdecode(file)
