"""Servers: the commands `serve` and `explore`, sockets, processes and signals."""

import http.client
import json
import os
import pickle
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi")

import uvicorn

import gumbeltree
from gumbeltree.analysis.index import Index
from gumbeltree.extras import install_command
from gumbeltree.packaged import packaged_names
from gumbeltree.web import processes, protocol, server, service, serving
from gumbeltree.web.api import create_app
from gumbeltree.web.limits import LIMITS, ServerSettings
from tests.commands import Result, run
from tests.models import TEXTS, tiny_model

SINGLE, PAIR = tiny_model("single"), tiny_model("pair")
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def cli(monkeypatch):
    """Run commands up to the point of serving; the plans of the servers are in `cli.plans`."""

    def call(*arguments):
        return run(*arguments)

    def serve(plan, listener, *rest):
        call.plans.append(plan)
        next(argument for argument in rest if callable(argument))()

    call.plans = []
    monkeypatch.setattr(processes, "supervise", serve)
    return call


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    gumbeltree.save(SINGLE, folder / "single")
    gumbeltree.save(PAIR, folder / "runs" / "pair" / "model")
    gumbeltree.save(PAIR, folder / "again" / "pair")
    return folder


# options


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--allow-host", "http://x.org", "host name"),
        ("--allow-host", "x.org:80", "host name"),
        ("--cors", "*", "origin"),
        ("--cors", "https://x.org/", "origin"),
        ("--root-path", "trees/", "path such as"),
        ("--root-path", "/bäume", "path such as"),
        ("--host", "no.such.host.invalid", "address of this machine"),
        ("--host", "192.0.2.1", "cannot listen"),
        ("--device", "toaster", "'toaster'"),
    ],
)
def test_serve_rejects_invalid_options(cli, option, value, word):
    message = cli("serve", option, value).refused()
    assert value in message
    assert word in message
    assert cli.plans == []


@pytest.mark.parametrize("token", ["short", "with a space", ""])
def test_serve_rejects_invalid_tokens_without_printing_them(cli, token, monkeypatch):
    monkeypatch.setenv("GUMBELTREE_TOKEN", token)
    message = cli("serve").refused()
    assert "token must have at least 8" in message
    assert not token or token not in message


@pytest.mark.parametrize("command", ["serve", "explore"])
def test_rejects_a_port_in_use(cli, command):
    with server.listen("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        message = cli(command, "--port", port).refused()
    assert f"port {port} on 127.0.0.1" in message
    assert "--port 0" in message


@pytest.mark.parametrize("command", ["serve", "explore"])
def test_missing_packages_are_reported_with_the_install_command(cli, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert install_command("web") in cli(command).refused()


def test_settings_from_options_and_environment(cli, monkeypatch):
    monkeypatch.setenv("GUMBELTREE_TOKEN", "from-the-environment")
    assert cli("serve", "--port", 0, "sst2-100d").code == 0
    assert cli("serve", "--port", 0, "--token", "from-the-line", "--workers", 2).code == 0
    assert cli("explore", "--no-open").code == 0
    settings = [plan.settings for plan in cli.plans]
    assert [one.token for one in settings] == ["from-the-environment", "from-the-line", None]
    assert [one.page for one in settings] == [False, False, True]
    assert [plan.models for plan in cli.plans] == [("sst2-100d",), (), ()]
    assert cli("explore", "--no-open", "--threads", 3, "--plugin", "json").code == 0
    assert (cli.plans[-1].threads, cli.plans[-1].plugins) == (3, ("json",))
    for one in settings:
        assert one.hosts[:3] == ("127.0.0.1", "localhost", "[::1]")


def test_explore_opens_the_page_in_the_browser(cli, monkeypatch):
    opened, done = [], threading.Event()
    monkeypatch.setattr(webbrowser, "open", lambda url: (opened.append(url), done.set()))
    result = cli("explore")
    assert done.wait(20)
    assert opened[0] in result.out
    assert urlsplit(opened[0]).hostname == "127.0.0.1"


def test_warns_about_an_open_server_without_a_token(cli):
    assert "pass --token" in cli("serve", "--port", 0, "--host", "0.0.0.0").err
    assert cli("serve", "--port", 0, "--host", "0.0.0.0", "--token", "long-enough").err == ""
    assert cli("serve", "--port", 0).err == ""


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[(name, True) for name in ("127.0.0.1", "127.1", "::1", "LOCALHOST", "::ffff:127.0.0.1")],
        *[(name, False) for name in ("0.0.0.0", "::", "192.0.2.1", "no.such.host.invalid")],
    ],
)
def test_is_loopback(host, expected):
    assert server.is_loopback(host) == expected


def test_models_get_unique_names(models):
    folders = [models / "single", models / "runs" / "pair", models / "again" / "pair"]
    loaded = server.load_models([*map(str, folders), f"{models}/single/", "sst2-100d"])
    assert list(loaded) == ["single", "pair", "pair-2", "single-2", "sst2-100d"]
    assert loaded["pair"].labels == PAIR.labels
    assert sorted(server.load_models([])) == packaged_names()
    assert server._short_name("hub:org/name@v1") == "name"


LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}


@pytest.mark.parametrize(
    ("host", "names", "expected"),
    [
        ("0.0.0.0", [], None),
        ("0.0.0.0", ["Trees.example"], {"trees.example"}),
        ("127.0.0.1", [], LOOPBACK),
        ("localhost", ["x.org"], {*LOOPBACK, "x.org"}),
        ("::1", ["[fe80::1]"], {*LOOPBACK, "[fe80::1]"}),
        ("127.8.8.8", [], {*LOOPBACK, "127.8.8.8"}),
    ],
)
def test_allowed_hosts(host, names, expected):
    allowed = server.allowed_hosts(host, names)
    assert allowed is expected is None or set(allowed) == expected


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("localhost", "localhost"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("fe80::1", "[fe80::1]"),
    ],
)
def test_address_of_a_server(host, shown):
    with server.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert server.address_of(listener, host) == f"http://{shown}:{port}/"


def test_indexes_are_matched_with_their_models(tmp_path):
    folder = str(Index.build(tmp_path / "index", PAIR, TEXTS, name="pair").path)
    other = tiny_model("single", leaf="bilstm")
    both = {"other": other, "pair": PAIR}
    assert list(server.open_indexes([folder], both)) == ["pair"]
    # models that differ in their heads only produce the same vectors
    assert list(server.open_indexes([folder], {"single": SINGLE, **both})) == ["single", "pair"]
    assert server.open_indexes([], both) == {}
    with pytest.raises(ValueError, match=r"built with pair.*\(other, more\)"):
        server.open_indexes([folder], {"other": other, "more": other})
    with pytest.raises(ValueError, match="second index for pair"):
        server.open_indexes([folder, folder], both)
    with pytest.raises(OSError, match="nowhere"):
        server.open_indexes([str(tmp_path / "nowhere")], both)


# over a socket


@contextmanager
def running(models, kind=uvicorn.Server, ready=None, **settings):
    """Run a server in a thread; yield it and its port."""
    settings = ServerSettings(**{"access_log": False, **settings})
    listener = server.listen("127.0.0.1", 0)
    options = serving._options(server.ServerPlan(models=(), settings=settings), "127.0.0.1")
    config = uvicorn.Config(create_app(models, settings), **options)
    running = kind(config) if ready is None else kind(config, ready)
    thread = threading.Thread(target=running.run, args=[[listener]])
    thread.start()
    try:
        yield running, listener.getsockname()[1]
    finally:
        running.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def port():
    hosts = server.allowed_hosts("127.0.0.1", [])
    with running({"single": SINGLE, "pair": PAIR}, hosts=hosts) as (_, port):
        yield port


def request(port, method, path, body=None, **headers):
    """Return status, headers and content of a response on a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {**JSON, **headers} if body else headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def parse(port, texts, **options):
    body = json.dumps({"model": "single", "texts": texts, **options})
    status, _, content = request(port, "POST", "/api/parse", body)
    assert status == 200, content
    return json.loads(content)["results"]


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def test_stalled_clients_are_disconnected(monkeypatch):
    with running({"pair": PAIR}) as (_, port):
        with monkeypatch.context() as patch:
            patch.setattr(protocol, "CLIENT_SECONDS", 0.3)
            with connect(port) as client, suppress(ConnectionError):
                client.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127")
                assert client.recv(1000) == b""
            # a client that sends requests but reads no responses
            document = b"GET /api/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            with connect(port) as client, pytest.raises(ConnectionError):
                client.sendall(200_000 * document)
        assert request(port, "GET", "/api/health")[0] == 200


def test_limits_the_number_of_connections(monkeypatch):
    monkeypatch.setattr(protocol.Limited, "most", 2)
    with running({"pair": PAIR}) as (_, port), connect(port) as first, connect(port) as second:
        for client in (first, second):
            client.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"200 OK" in client.recv(1000)
        with connect(port) as third, suppress(ConnectionError):
            assert third.recv(1000) == b""
    assert 16 <= protocol.most_connections() <= 4096


def expect_error(port, sent, status):
    with connect(port) as client:
        client.sendall(sent)
        head, body = client.makefile("rb").read().split(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"content-security-policy" in head.lower()
    assert "detail" in json.loads(body)


def test_malformed_requests_get_an_error_in_json(port):
    expect_error(port, b"nonsense\r\n\r\n", 400)


def test_unfinished_requests_get_an_error_in_json():
    # a limit that only this server has: busy clients need longer
    with running({"pair": PAIR}, client_seconds=0.5) as (_, port):
        expect_error(
            port,
            b"POST /api/parse HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{",
            408,
        )


@pytest.mark.parametrize("chunked", [False, True])
def test_clients_receive_the_error_for_a_large_body(port, chunked):
    # larger than the sockets' buffers, so that the client is still sending
    size = 4 * LIMITS.body
    body = (b" " * 2**16 for _ in range(size // 2**16)) if chunked else b" " * size
    status, headers, content = request(port, "POST", "/api/parse", body)
    assert (status, headers["connection"]) == (413, "close")
    assert str(LIMITS.body) in json.loads(content)["detail"]
    assert request(port, "GET", "/api/health")[0] == 200


def test_many_clients_that_reuse_their_connections(port):
    def run(number):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for text in TEXTS[number % 3 :: 3]:
            body = json.dumps({"model": "pair", "texts": [text]})
            connection.request("POST", "/api/parse", body, JSON)
            response = connection.getresponse()
            assert json.loads(response.read())["results"][0]["brackets"] == str(PAIR.parse(text))
            assert "server" not in response.headers
        connection.close()

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(run, range(24)))


def test_behind_a_proxy_that_strips_a_prefix():
    with running({"single": SINGLE}, root_path="/trees", token="a" * 9) as (_, port):
        assert request(port, "GET", "/api/health")[0] == 200
        assert request(port, "GET", "/api/models")[0] == 401
        token = {"Authorization": f"Bearer {'a' * 9}"}
        status, _, content = request(port, "GET", "/api/openapi.json", **token)
        assert (status, json.loads(content)["servers"]) == (200, [{"url": "/trees"}])


def test_a_forced_shutdown_responds_to_waiting_clients(monkeypatch):
    begun, go_on, ready, exits = threading.Event(), threading.Event(), threading.Event(), []

    def parse(served, texts, **options):
        begun.set()
        go_on.wait()
        return ["1"] * len(texts)

    monkeypatch.setattr(
        os, "_exit", lambda code: exits.append((code, len(forced.server_state.tasks)))
    )
    models = {"single": SINGLE}
    with (
        ThreadPoolExecutor(1) as pool,
        running(models, serving._Server, ready.set) as (forced, port),
    ):
        assert ready.wait(60)
        # not before, because the server measures its models when it starts
        monkeypatch.setattr(service, "parse", parse)
        body = json.dumps({"model": "single", "texts": ["dog"]})
        response = pool.submit(request, port, "POST", "/api/parse", body)
        try:
            assert begun.wait(60)
            # as after a second Ctrl-C
            forced.should_exit = forced.force_exit = True
            status, headers, _ = response.result(60)
        finally:
            go_on.set()
    assert (status, headers["retry-after"], exits) == (503, "1", [(1, 0)])


# processes


class Process:
    """A command that serves, in a process group of its own."""

    def __init__(self, *arguments, **environment):
        self.running = subprocess.Popen(
            [sys.executable, "-m", "gumbeltree", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    def port(self):
        """Wait for the line with the address and return its port."""
        assert select.select([self.running.stdout], [], [], 180)[0], "nothing was printed"
        line = self.running.stdout.readline()
        address = re.search(r"http://\S+", line)
        assert address, line + self.running.stderr.read()
        return urlsplit(address[0]).port

    def stop(self, number):
        """Send a signal; return the exit status and the output."""
        self.running.send_signal(number)
        out, err = self.running.communicate(timeout=120)
        return Result(self.running.returncode, out, err)


@pytest.fixture(scope="module")
def started(models):
    """Two servers, started at the same time because each takes seconds."""
    single, pair = models / "single", models / "runs" / "pair"
    one = Process("serve", single, pair, "--port", 0)
    many = Process(
        *("serve", single, "--port", 0, "--workers", 2, "--no-access-log"),
        GUMBELTREE_TOKEN="of-all-workers",
    )
    yield one, many
    for process in (one, many):
        with suppress(ProcessLookupError):
            os.killpg(process.running.pid, signal.SIGKILL)
        process.running.communicate()


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_working(port):
    """Return whether a server has begun to process a request."""
    return json.loads(request(port, "GET", "/api/health")[2])["queue"]["oldest"] > 0


def test_serve_finishes_running_requests_on_ctrl_c(started):
    process, _ = started
    port = process.port()
    assert request(port, "GET", "/")[0] == 404
    # so the command also prints addresses that answer
    assert f"http://127.0.0.1:{port}/api/health" in process.running.stdout.readline()
    # slow enough to be running when the signal arrives
    texts = [f"{' '.join(['dog'] * 100)} secret{number}" for number in range(2)]
    with ThreadPoolExecutor(1) as pool:
        response = pool.submit(parse, port, texts, samples=200)
        wait_until(lambda: is_working(port))
        assert not response.done()
        result = process.stop(signal.SIGINT)
        assert [tree["text"] for tree in response.result()] == texts
        assert all(tree["spans"] for tree in response.result())
    assert result.code == 0
    lines = [line.split(" ", 1)[1].rsplit(" ", 2)[0] for line in result.err.splitlines()]
    assert [line for line in lines if line != "GET /api/health 200"] == [
        *("GET (no such path) 404", "POST /api/parse 200"),
    ]
    with pytest.raises(ConnectionRefusedError):
        request(port, "GET", "/api/health")


def test_serve_with_several_processes(started):
    _, process = started
    port = process.port()
    assert request(port, "GET", "/api/models")[0] == 401
    body = json.dumps({"model": "single", "texts": ["the dog"]})
    for _ in range(8):
        token = "Bearer of-all-workers"
        assert request(port, "POST", "/api/predict", body, Authorization=token)[0] == 200
    result = process.stop(signal.SIGTERM)
    assert (result.code, result.err) == (0, "")


class FakeProcess:
    """A process that serves; the test decides when it dies and when it is ready."""

    hangs = False

    def __init__(self, plan, listener, proxies):
        self.listener = listener
        self.beat, self.process, self.failure = SimpleNamespace(value=0.0), self, self
        self.begun = time.monotonic()
        self.calls, self.alive, self.interrupts = [], True, 0
        self.error = None
        self.pid, self.exitcode, self.sentinel = 4711, None, self
        created.append(self)

    def is_alive(self):
        return self.alive

    def die(self, status=-9):
        self.alive, self.exitcode = False, status

    def poll(self):
        return self.error is not None

    def recv(self):
        return self.error

    def terminate(self):
        # the socket is closed by then
        self.calls.append(("terminate", self.listener.fileno()))

    def join(self, seconds=None):
        self.calls.append(("join", seconds))
        if self.interrupts:
            self.interrupts -= 1
            raise SystemExit(0)
        if ("terminate", -1) in self.calls and not self.hangs:
            self.die(0)

    def kill(self):
        self.calls.append(("kill",))
        self.die()


created: list[FakeProcess] = []


@pytest.fixture
def supervise(models, monkeypatch):
    """Serve with two fake processes, calling the given functions one after the other."""
    created.clear()
    monkeypatch.setattr(processes, "_Running", FakeProcess)
    monkeypatch.setattr(server.ServerPlan, "app", lambda plan: None)

    def call(*events):
        rest = iter(events)
        monkeypatch.setattr(processes.multiprocessing.connection, "wait", lambda *_: next(rest)())
        ready = []
        plan = server.ServerPlan((str(models / "single"),))
        with server.listen("127.0.0.1", 0) as listener:
            processes.supervise(plan, listener, 2, lambda: ready.append(True), "127.0.0.1")
        assert next(rest, None) is None
        return ready

    return call


def stop():
    signal.raise_signal(signal.SIGTERM)


def all_ready():
    for process in created:
        process.beat.value = time.monotonic()


def test_ready_once_all_processes_are(supervise):
    # the second one starts when the first is ready
    assert supervise(all_ready, lambda: None, all_ready, lambda: None, stop) == [True]
    assert [process.calls[0] for process in created] == 2 * [("terminate", -1)]
    assert [len(process.calls) for process in created] == [2, 2]
    created.clear()
    assert supervise(lambda: None, stop) == []
    assert len(created) == 1


def test_a_dead_process_is_replaced(supervise, monkeypatch):
    paused, logged = [], []
    monkeypatch.setattr(processes.time, "sleep", paused.append)
    monkeypatch.setattr(server.log, "warning", lambda *arguments: logged.append(arguments[1:]))
    events = [all_ready, all_ready, *3 * [lambda: created[-1].die()], stop]
    assert supervise(*events) == [True]
    # with a delay if it never was ready
    assert paused == 2 * [processes.PAUSE_SECONDS]
    assert logged == 3 * [(4711, -9)]
    assert [len(process.calls) for process in created] == [2, 0, 0, 0, 2]


def test_a_silent_process_is_killed_and_replaced(supervise):
    def fall_silent():
        created[0].beat.value -= 31

    def stay_silent():
        # until now, it had time to respond
        assert len(created) == 2
        created[0].beat.value -= processes.SILENT_SECONDS

    assert supervise(all_ready, all_ready, fall_silent, stay_silent, stop) == [True]
    assert [process.calls[0][0] for process in created] == ["kill", "terminate", "terminate"]


def test_a_replacement_that_never_becomes_ready_is_killed_and_replaced(supervise, monkeypatch):
    monkeypatch.setattr(processes.time, "sleep", lambda seconds: None)

    def start_slowly():
        # there is no limit before the server has started
        for process in created:
            process.begun -= 1e6

    def hang():
        created[-1].begun -= processes.START_SECONDS - 5

    def hang_on():
        assert len(created) == 3
        created[-1].begun -= 6

    ready = [start_slowly, all_ready, start_slowly, all_ready]
    assert supervise(*ready, lambda: created[1].die(), hang, hang_on, stop) == [True]
    calls = [process.calls[0][0] for process in created if process.calls]
    assert calls == ["terminate", "kill", "terminate"]


def test_a_process_that_cannot_start_stops_the_server(supervise):
    with pytest.raises(OSError, match="status 1 before it was ready"):
        supervise(lambda: created[0].die(1))
    created.clear()

    def fail():
        created[0].error = ValueError("no such model")
        created[0].die(1)

    with pytest.raises(ValueError, match="no such model"):
        supervise(fail)
    created.clear()
    with pytest.raises(OSError, match="status 1 before it was ready"):
        supervise(all_ready, lambda: created[1].die(1))
    assert [("terminate", -1) in process.calls for process in created] == [True, True]


def test_a_process_that_hangs_is_killed_after_the_grace_time(supervise, monkeypatch):
    monkeypatch.setattr(FakeProcess, "hangs", True)
    with pytest.raises(SystemExit) as end:
        supervise(all_ready, stop)
    assert end.value.code == 1
    assert [call[0] for call in created[0].calls] == ["terminate", "join", "kill", "join"]
    assert 0 < created[0].calls[1][1] <= ServerSettings().grace


def test_a_second_signal_kills_the_processes(supervise, monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda *arguments: sent.append(arguments))
    monkeypatch.setattr(FakeProcess, "hangs", True)

    def stop_twice():
        created[1].interrupts = 1
        stop()

    with pytest.raises(SystemExit) as end:
        supervise(all_ready, all_ready, stop_twice)
    assert end.value.code == 1
    assert sent == 2 * [(4711, signal.SIGINT)]
    for process in created:
        assert process.calls[-2:] == [("join", server.FORCED_SECONDS), ("kill",)]


class OddError(ValueError):
    """Cannot be unpickled."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize("error", [OSError(2, "no such file"), OddError("a", "b")])
def test_errors_reach_the_supervisor(error):
    copy = pickle.loads(pickle.dumps(processes._portable(error)))
    assert str(copy) == str(error)
    assert isinstance(copy, OSError if isinstance(error, OSError) else ValueError)


def test_a_broken_model_is_reported_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    process = Process("serve", tmp_path, "--port", 0)
    out, err = process.running.communicate(timeout=180)
    assert (process.running.returncode, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith("gumbeltree: error: ")


HANG = """
import time

from gumbeltree.web import service

encode = service.encode


def hang(served, texts):
    while "hang" in texts:
        time.sleep(0.02)
    return encode(served, texts)


service.encode = hang
"""


@pytest.fixture(scope="module")
def hanging(models, tmp_path_factory):
    """A server with one process, whose model hangs on a certain text."""
    plugin = tmp_path_factory.mktemp("plugin") / "hang.py"
    plugin.write_text(HANG, encoding="utf-8")
    process = Process(
        *("serve", models / "single", "--port", 0, "--no-access-log", "--plugin", plugin),
        *("--runtime", "numpy", "--timeout", 1, "--grace", 3),
    )
    yield process, process.port()
    with suppress(ProcessLookupError):
        os.killpg(process.running.pid, signal.SIGKILL)
    process.running.communicate()


def status_of(port, text):
    """Return the status of a request, or the error of its connection."""
    body = json.dumps({"model": "single", "texts": [text]})
    try:
        return request(port, "POST", "/api/encode", body)[0]
    except (ConnectionError, http.client.HTTPException) as error:
        return type(error).__name__


def children(process):
    path = f"/proc/{process.running.pid}/task/{process.running.pid}/children"
    with open(path, encoding="ascii") as file:
        return list(map(int, file.read().split()))


def worker_of(process):
    """Return the id of the process that serves; the others belong to multiprocessing."""
    for child in children(process):
        with suppress(OSError), open(f"/proc/{child}/cmdline", encoding="ascii") as file:
            if "spawn_main" in file.read():
                return child
    return None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", ["call", "stopped"])
def test_a_process_that_hangs_is_replaced(hanging, how):
    process, port = hanging
    # the time limit of one second also holds for requests that a busy machine delays
    wait_until(lambda: status_of(port, "the dog") == 200)
    before = worker_of(process)
    if how == "call":
        assert status_of(port, "hang") == 504
    else:
        os.kill(before, signal.SIGSTOP)
    wait_until(lambda: worker_of(process) not in (None, before))
    wait_until(lambda: status_of(port, "the dog") == 200)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sigterm_ends_a_server_that_hangs(hanging):
    process, port = hanging
    wait_until(lambda: status_of(port, "the dog") == 200)
    worker = worker_of(process)
    os.kill(worker, signal.SIGSTOP)
    assert process.stop(signal.SIGTERM).code == 1
    assert not os.path.exists(f"/proc/{worker}")
