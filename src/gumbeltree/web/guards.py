"""What stands between clients and the API: checks of requests, headers of responses, the log.

Each class is an ASGI application around another one. Responses are JSON, so that nothing a client
sends can become markup.
"""

import asyncio
import contextlib
import hmac
import logging
import time
import uuid
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("gumbeltree.web")
access = logging.getLogger("gumbeltree.web.access")

COMMON = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
API = {
    **COMMON,
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
PAGE = {
    **COMMON,
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    # asked for anew each time, so that a newer version is seen
    "Cache-Control": "no-cache",
}
LINGER_SECONDS = 2.0
"""How long a client may go on sending what was refused, so that it comes to read why."""


def route(scope: Scope) -> str:
    """Return the path of a request without the part that a proxy put before it."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


class Outside:
    """Adds headers to every response, logs it, and turns what was not foreseen into status 500.

    Who cannot be answered because the server ends is told so, with status 503.

    Args:
        app: what answers.
        pages: paths of the page's files, which may load each other.
        paths: paths that are logged; of others only that they are others, as they may be anything.
        access_log: whether requests are logged.
    """

    def __init__(
        self, app: ASGIApp, pages: Collection[str], paths: Collection[str], access_log: bool
    ) -> None:
        self.app = app
        self.pages, self.paths, self.access_log = pages, paths, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = route(scope)
        extra = PAGE if path in self.pages else API
        status, began = 0, time.monotonic()

        async def send_more(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in extra.items():
                    headers[name] = value
            await send(message)

        try:
            await self.app(scope, receive, send_more)
        except asyncio.CancelledError:
            # the server ends at once, or has waited for this request as long as it does at its end
            if not status:
                response = JSONResponse({"detail": ENDING}, 503, {"Retry-After": "1"})
                await response(scope, receive, send_more)
        except Exception:
            number = uuid.uuid4().hex[:12]
            log.exception("error %s while answering %s", number, self._shown(path))
            if status:
                raise
            content = {"detail": f"an error of the server; its log has it as {number}"}
            await JSONResponse({**content, "id": number}, 500)(scope, receive, send_more)
        finally:
            if self.access_log:
                took = 1000 * (time.monotonic() - began)
                # methods are the client's words, too
                method = scope["method"] if scope["method"] in ("GET", "POST", "OPTIONS") else "?"
                access.info("%s %s %s %.0f ms", method, self._shown(path), status or "-", took)

    def _shown(self, path: str) -> str:
        return path if path in self.paths or path in self.pages else "(no such path)"


class Hosts:
    """Refuses requests to another name than the server's own.

    A web page can make its own name lead to this machine (DNS rebinding), and so speak to a server
    that listens on nothing but loopback; the Host header then still holds the page's name.

    Args:
        app: what answers.
        names: that the Host header may hold, in lower case, without a port.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app = app
        self.names = frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "").lower()
            name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
            if name not in self.names:
                message = "this server does not answer to that host name; see --allow-host"
                await JSONResponse({"detail": message}, 421)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class Token:
    """Refuses requests without the token.

    Args:
        app: what answers.
        token: that clients must send.
        free: paths that ask for none.
    """

    def __init__(self, app: ASGIApp, token: str, free: Collection[str]) -> None:
        self.app = app
        self.token, self.free = token.encode(), free

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http" and route(scope) not in self.free:
            kind, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
            # takes as long for any token of that length
            same = hmac.compare_digest(given.strip().encode("latin-1"), self.token)
            if kind.lower() != "bearer" or not same:
                message = "expected the header Authorization: Bearer TOKEN with this server's token"
                headers = {"WWW-Authenticate": "Bearer"}
                await JSONResponse({"detail": message}, 401, headers)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class _GoneError(Exception):
    """A client does not take its answer."""


async def _gone(receive: Receive) -> None:
    """Wait until a client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Bodies:
    """Reads the bodies of requests, but no more of them than allowed, and no longer.

    Nor does it wait any longer for a client to take a piece of the answer.

    Args:
        app: what answers.
        paths: that take a body; at others none is read.
        limit: most bytes.
        seconds: that a client has for each.
        requests: most requests at a time.
    """

    def __init__(
        self, app: ASGIApp, paths: Collection[str], limit: int, seconds: float, requests: int
    ) -> None:
        self.app = app
        self.paths = paths
        self.limit, self.seconds, self.requests = limit, seconds, requests
        self._now = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http" and "\n" in route(scope):
            # the router's patterns end in `$`, which matches before a last line feed, too
            await JSONResponse({"detail": "Not Found"}, 404)(scope, receive, send)
            return
        if scope["type"] != "http" or scope["method"] != "POST" or route(scope) not in self.paths:
            await self.app(scope, receive, send)
            return
        if self._now >= self.requests:
            await self._refuse(503, BUSY, scope, receive, send)
            return
        self._now += 1
        try:
            await self._answer(scope, receive, send)
        finally:
            self._now -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # other types reach the server from any web page, without its asking first
            wanted = "expected the header Content-Type: application/json"
            await self._refuse(415, wanted, scope, receive, send)
            return
        size, too_large = 0, f"expected at most {self.limit} bytes"
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.limit:
            await self._refuse(413, too_large, scope, receive, send)
            return
        pieces: list[bytes] = []
        more = True
        try:
            async with asyncio.timeout(self.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    pieces.append(message.get("body", b""))
                    size += len(pieces[-1])
                    more = message.get("more_body", False)
                    if size > self.limit:
                        break
        except TimeoutError:
            wait = f"expected the whole request within {self.seconds:g} seconds"
            await self._refuse(408, wait, scope, receive, send)
            return
        if size > self.limit:
            await self._refuse(413, too_large, scope, receive, send)
            return
        body: bytes | None = b"".join(pieces)

        async def replay() -> Message:
            nonlocal body
            if body is None:
                await gone
                return {"type": "http.disconnect"}
            whole, body = body, None
            return {"type": "http.request", "body": whole, "more_body": False}

        async def send_soon(message: Message) -> None:
            try:
                async with asyncio.timeout(self.seconds):
                    await send(message)
            except TimeoutError:
                raise _GoneError from None

        answer = asyncio.ensure_future(self.app(scope, replay, send_soon))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            # nobody waits for it any more
            answer.cancel()
        with contextlib.suppress(_GoneError, asyncio.CancelledError):
            await answer

    async def _refuse(
        self, status: int, detail: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer without the body, then take a little of it, and close the connection.

        If the connection were closed at once, a client that is still sending would be told of that
        and never read the answer.
        """
        headers = {"Connection": "close"}
        if status == 503:
            headers["Retry-After"] = "1"

        async def send_open(message: Message) -> None:
            await send(message if "body" not in message else {**message, "more_body": True})

        await JSONResponse({"detail": detail}, status, headers)(scope, receive, send_open)
        if "expect" not in Headers(scope=scope):
            await self._drop(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _drop(self, receive: Receive) -> None:
        size = 0
        try:
            async with asyncio.timeout(min(LINGER_SECONDS, self.seconds)):
                while size < 8 * self.limit:
                    message = await receive()
                    size += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return
        except TimeoutError:
            return


BUSY = "the server is busy; try again in a second"
ENDING = "the server was stopped before it had the answer; ask again when it is back"
