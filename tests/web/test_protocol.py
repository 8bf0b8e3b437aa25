"""Connections: limits per address, slow headers, proxies, and malformed requests."""

import asyncio
import json
import re
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import pytest

pytest.importorskip("fastapi")

import uvicorn

from gumbeltree.web import guards, protocol, server, serving
from gumbeltree.web.api import create_app
from gumbeltree.web.limits import ServerSettings
from tests.models import tiny_model

SINGLE = tiny_model("single")
HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /api/health HTTP/1.1\r\n" + HOST + b"\r\n"
BODY = json.dumps({"model": "single", "texts": ["the dog"]}).encode()
POST = b"POST /api/predict HTTP/1.1\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
# the loopback interface has many addresses; the server trusts the first as a proxy
PROXY, CLIENT, OTHER = "127.0.0.1", "127.0.0.2", "127.0.0.3"


@contextmanager
def running(fast, keep_alive=60, **settings):
    """Run a server in a thread and yield its port; the application is in `running.app`."""
    settings = ServerSettings(access_log=False, **settings)
    listener = server.listen("127.0.0.1", 0)
    options = serving._options(server.ServerPlan(models=(), settings=settings), PROXY)
    options["http"] = protocol.protocol_class(settings.connections, fast)
    # uvicorn's default is shorter than a busy machine may need between two requests
    options["timeout_keep_alive"] = keep_alive
    running.app = create_app({"single": SINGLE}, settings)
    served = uvicorn.Server(uvicorn.Config(running.app, **options))
    thread = threading.Thread(target=served.run, args=[[listener]])
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        served.should_exit = True
        thread.join()


def wait_for_unfinished(count):
    """Wait until the server has received this number of incomplete bodies."""
    bodies = running.app.guarded
    while not isinstance(bodies, guards.Bodies):
        bodies = bodies.app
    for _ in range(400):
        if bodies._waiting.total() == count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{bodies._waiting} instead of {count}")


@pytest.fixture(params=[False, True], ids=["h11", "httptools"], scope="module")
def fast(request):
    if request.param:
        pytest.importorskip("httptools")
    return request.param


@pytest.fixture(scope="module")
def port(fast):
    with running(fast) as port:
        yield port


def connect(port, address=CLIENT):
    return socket.create_connection(("127.0.0.1", port), 60, (address, 0))


def status(client, data=GET):
    """Send a request, read the response, and return its status; None without a response."""
    client.sendall(data)
    received = b""
    try:
        while b"\r\n\r\n" not in received:
            received += client.recv(2000) or b"\r\n\r\n"
        head, _, body = received.partition(b"\r\n\r\n")
        if not head:
            return None
        length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
        while len(body) < length:
            body += client.recv(2000)
    except ConnectionError:
        return None
    return int(head.split(b" ", 2)[1])


def read_all(client):
    """Return all bytes until the server closes the connection."""
    received = b""
    while data := client.recv(2**16):
        received += data
    return received


# connections


def test_connections_per_address(fast):
    with running(fast, connections=3) as port, ExitStack() as stack:
        clients = [stack.enter_context(connect(port)) for _ in range(3)]
        assert [status(client) for client in clients] == [200] * 3
        with connect(port) as fourth:
            response = read_all(fourth)
            assert response.startswith(b"HTTP/1.1 429 ")
            assert b"too many connections from this address" in response
        # others are served, and trusted proxies may have more
        for address in (OTHER, *[PROXY] * 5):
            assert status(stack.enter_context(connect(port, address))) == 200
        clients[0].close()
        for _ in range(100):
            with connect(port) as again:
                if status(again) == 200:
                    break
            time.sleep(0.05)
        else:
            raise AssertionError("a closed connection still counts")


def test_incomplete_headers_get_time_by_their_size(fast, monkeypatch):
    monkeypatch.setattr(protocol, "CLIENT_SECONDS", 1.0)
    with running(fast, keep_alive=1) as port:
        starts = [b"", b"\r\n", b"GET / HTTP/1.1\r\nX: ", GET + b"\r\n", GET + GET[:9]]
        with ExitStack() as stack:
            clients = [stack.enter_context(connect(port)) for _ in starts]
            for client, start in zip(clients, starts, strict=True):
                client.sendall(start)
            answers = [read_all(client).count(b"HTTP/1.1 200 ") for client in clients]
        assert answers == [0, 0, 0, 1, 1]
        monkeypatch.setattr(protocol, "BYTES_PER_SECOND", 0.1)
        with connect(port) as client:
            client.sendall(GET[:9])
            time.sleep(1.3)
            assert status(client, GET[9:]) == 200


# requests


@pytest.mark.parametrize(
    "data",
    [
        POST + HOST + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + HOST + b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n0\r\n\r\n",
        POST + HOST + LENGTH + b"Content-Length: 5\r\n\r\n" + BODY,
        POST + HOST + b"Content-Length: +5\r\n\r\n12345",
        POST + HOST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        POST + LENGTH + b"\r\n" + BODY,
        POST + HOST + HOST + LENGTH + b"\r\n" + BODY,
        b"GET / HTTP/1.1\r\n" + HOST + b"X: a\0b\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length : 0\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",
        b"nonsense\r\n\r\n",
    ],
    ids=[
        *("two-lengths", "two-lengths-reversed", "repeated-length", "signed-length"),
        *("chunk-size", "no-host", "two-hosts", "null", "space-in-name", "path", "nonsense"),
    ],
)
def test_malformed_requests(port, data):
    with connect(port) as client:
        client.sendall(data)
        head, _, body = read_all(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-security-policy" in head.lower()
    assert "detail" in json.loads(body)


def test_chunks_must_end_with_carriage_returns(fast, monkeypatch):
    monkeypatch.setattr(guards, "LINGER_SECONDS", 0.1)
    with running(fast, client_seconds=0.3) as port, connect(port) as client:
        data = POST + HOST + b"Transfer-Encoding: chunked\r\n\r\n%x\n%s\n0\n\n"
        # h11 waits for the carriage return
        assert status(client, data % (len(BODY), BODY)) == (400 if fast else 408)


def test_large_headers_end_the_connection(port):
    with connect(port) as client, suppress(ConnectionError):
        client.sendall(b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 2**20)
        # the response is lost if the server closes while more data arrives
        assert read_all(client)[:13] in (b"", b"HTTP/1.1 400 ")
    with connect(port) as client:
        assert status(client) == 200


def test_other_transfer_encodings_are_refused(port):
    with connect(port) as client:
        data = POST + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
        assert status(client, data) in (400, 501)


def test_headers_after_the_body_are_ignored(port):
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    with connect(port) as client:
        data = POST + HOST + chunked + b"Content-Type: text/plain\r\nHost: evil\r\n\r\n"
        assert status(client, data) == 200
        # the body arrives after the headers were checked
        plain = POST.replace(b"application/json", b"text/plain") + HOST
        assert status(client, plain + chunked + b"Content-Type: application/json\r\n\r\n") == 415


def test_requests_that_offer_an_upgrade_keep_their_body(port):
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    with connect(port) as client:
        for data in (POST + HOST + offer + LENGTH + b"\r\n" + BODY, GET):
            assert status(client, data) == 200
        for byte in POST + HOST + offer + LENGTH + b"\r\n" + BODY[:-1]:
            client.sendall(bytes([byte]))
        assert status(client, BODY[-1:]) == 200


def test_pipelined_requests_are_answered_in_order(port):
    count = 100
    missing = b"GET /nowhere HTTP/1.1\r\n" + HOST + b"\r\n"
    last = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    post = POST + HOST + LENGTH + b"\r\n" + BODY
    with connect(port) as client:
        client.sendall((GET + missing + post) * count + last)
        received = read_all(client)
    statuses = [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404", b"200"] * count + [b"200"]


def test_pipelined_requests_are_not_read_ahead(fast, monkeypatch):
    """A client that reads no responses is stopped by the buffers, then disconnected."""
    with running(fast) as port:
        document = b"GET /api/openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
        with monkeypatch.context() as patch, connect(port) as client:
            patch.setattr(protocol, "CLIENT_SECONDS", 0.5)
            with pytest.raises(ConnectionError):
                client.sendall(200_000 * document)
        with connect(port) as client:
            assert status(client) == 200


# behind a proxy


class Proxy:
    """A proxy that adds X-Forwarded-For to the first request of each connection."""

    def __init__(self, port):
        self.upstream = port
        self.ready, self.loop = threading.Event(), asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_until_complete, args=[self.run()])

    def __enter__(self):
        self.thread.start()
        assert self.ready.wait(60)
        return self.port

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join()
        self.loop.close()

    async def run(self):
        self.stop = asyncio.Event()
        listening = await asyncio.start_server(self.forward, "127.0.0.1", 0)
        self.port = listening.sockets[0].getsockname()[1]
        self.ready.set()
        await self.stop.wait()
        listening.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            await asyncio.wait([task])

    async def forward(self, reader, writer):
        address = writer.get_extra_info("peername")[0]
        above, below = await asyncio.open_connection("127.0.0.1", self.upstream)
        line = await reader.readline()
        below.write(line + f"X-Forwarded-For: {address}\r\n".encode())
        await asyncio.gather(self.pipe(reader, below), self.pipe(above, writer))

    async def pipe(self, reader, writer):
        try:
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


def test_slow_clients_behind_a_proxy_are_told_apart(fast):
    """The proxy has more connections than an address may have, and its clients share it."""
    partial = POST + HOST + LENGTH + b"\r\n" + BODY[:-1]
    with (
        running(fast, connections=2, unfinished=3, client_seconds=60) as port,
        Proxy(port) as through,
        ExitStack() as stack,
    ):
        slow = [stack.enter_context(connect(through)) for _ in range(3)]
        for client in slow:
            client.sendall(partial)
        wait_for_unfinished(3)
        with connect(through) as fourth:
            assert status(fourth, partial) == 429
        # a client that is no proxy cannot pretend to be another
        forged = POST + b"X-Forwarded-For: 192.0.2.9\r\n" + HOST + LENGTH + b"\r\n" + BODY[:-1]
        with connect(port) as client:
            assert status(client, forged) == 429
        for address in (CLIENT, OTHER):
            with connect(through, address) as client:
                assert status(client, POST + HOST + LENGTH + b"\r\n" + BODY) == 200
        # the slow ones are answered once they are complete
        assert [status(client, BODY[-1:]) for client in slow] == [200] * 3
