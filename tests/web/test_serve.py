"""Servers as they are started: the commands `serve` and `explore`, sockets, processes, signals."""

import http.client
import io
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi")

import uvicorn

import gumbeltree
from gumbeltree.analysis.index import Index
from gumbeltree.analysis.trace import trace
from gumbeltree.cli import main
from gumbeltree.web import processes, protocol, server, service
from gumbeltree.web.api import create_app
from gumbeltree.web.limits import LIMITS, ServerSettings
from tests.commands import Result
from tests.models import TEXTS, tiny_model

SINGLE, PAIR = tiny_model("single"), tiny_model("pair")
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def cli(monkeypatch, capsys):
    """The command line, called in this process; it must not come to serve."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "dumb")
    for module, name in ((server, "serve"), (processes, "serve_many")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("served"))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gumbeltree", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        return Result(code, *capsys.readouterr())

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
    ("options", "message"),
    [
        (["--allow-host", "http://x.org"], "`--allow-host` must be a name without scheme"),
        (["--allow-host", "x.org:80"], "`--allow-host` must be a name without scheme and port"),
        (["--cors", "*"], "`--cors` must be scheme, name and perhaps port"),
        (["--cors", "https://x.org/"], "`--cors` must be scheme, name and perhaps port"),
        (["--token", "short"], "the token must be 8 or more letters"),
        (["--token", "with a space"], "the token must be 8 or more letters"),
        (["--root-path", "trees/"], "`--root-path` must be such as /trees, got 'trees/'"),
        (["--root-path", "/bäume"], "`--root-path` must be such as /trees, got '/bäume'"),
        (["--host", "no.such.host.invalid"], "`--host` must be an address of this machine"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1, port 8000: "),
        (["--device", "toaster"], "`--device` must be cpu, cuda or auto"),
    ],
)
def test_serve_refuses(cli, options, message):
    assert message in cli("serve", *options).refused()


@pytest.mark.parametrize("command", ["serve", "explore"])
def test_a_port_that_is_taken(cli, command):
    with server.listen("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        message = cli(command, "--port", port).refused()
    assert f"port {port} of 127.0.0.1 is taken by another program" in message
    assert "--port 0" in message


@pytest.mark.parametrize("command", ["serve", "explore"])
def test_without_the_packages_the_command_that_installs_them_is_named(cli, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert "pip install 'gumbeltree[web]'" in cli(command).refused()


def test_help(cli):
    for command, options in {
        "serve": ["--host", "--port", "--index", "--token", "--allow-host", "--cors", "--workers"],
        "explore": ["--port", "--no-open", "--index"],
    }.items():
        code, out, err = cli(command, "--help")
        assert (code, err) == (0, "")
        assert all(option in out for option in options)
        if command == "serve":
            words = " ".join(out.replace("│", " ").split())
            assert "Most requests that wait for the models in each process, beside" in words


def test_the_token_may_come_from_the_environment(cli, monkeypatch):
    plans = []
    monkeypatch.setattr(server, "serve", lambda plan, *_: plans.append(plan))
    monkeypatch.setenv("GUMBELTREE_TOKEN", "from-the-environment")
    assert cli("serve", "--port", 0, "sst2-100d").code == 0
    assert cli("serve", "--port", 0, "--token", "from-the-line").code == 0
    assert cli("explore", "--no-open").code == 0
    tokens = [plan.settings.token for plan in plans]
    assert tokens == ["from-the-environment", "from-the-line", None]
    assert [plan.settings.page for plan in plans] == [False, False, True]
    assert plans[0].models == ("sst2-100d",)
    assert plans[0].settings.hosts[:3] == ("127.0.0.1", "localhost", "[::1]")


def test_an_empty_token_does_not_open_the_server(cli, monkeypatch):
    monkeypatch.setenv("GUMBELTREE_TOKEN", "")
    assert "the token must be 8 or more letters" in cli("serve").refused()


def test_an_open_server_says_so(cli, monkeypatch):
    monkeypatch.setattr(server, "serve", lambda *_: None)
    assert "there is no --token" in cli("serve", "--port", 0, "--host", "0.0.0.0").err
    assert cli("serve", "--port", 0, "--host", "0.0.0.0", "--token", "long-enough").err == ""
    assert cli("serve", "--port", 0).err == ""


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[(name, True) for name in ("127.0.0.1", "127.1", "::1", "localhost", "LOCALHOST")],
        ("::ffff:127.0.0.1", True),
        *[(name, False) for name in ("0.0.0.0", "::", "192.0.2.1", "no.such.host.invalid")],
    ],
)
def test_loopback_however_it_is_spelled(host, expected):
    assert server.is_loopback(host) == expected


def test_models_get_names_of_their_own(models):
    folders = [models / "single", models / "runs" / "pair", models / "again" / "pair"]
    found = server.load_models([*map(str, folders), f"{models}/single/", "sst2-100d"])
    assert list(found) == ["single", "pair", "pair-2", "single-2", "sst2-100d"]
    assert found["pair"].labels == PAIR.labels
    assert sorted(server.load_models([])) == ["snli-100d", "sst2-100d"]
    assert server._short_name("hub:org/name@v1") == "name"


def test_which_names_a_server_answers_to():
    assert server.allowed_hosts("0.0.0.0", []) is None
    assert server.allowed_hosts("0.0.0.0", ["Trees.example"]) == ("trees.example",)
    loopback = {"127.0.0.1", "localhost", "[::1]"}
    assert set(server.allowed_hosts("127.0.0.1", [])) == loopback
    assert set(server.allowed_hosts("localhost", ["x.org"])) == {*loopback, "x.org"}
    assert set(server.allowed_hosts("::1", ["[fe80::1]"])) == {*loopback, "[fe80::1]"}
    assert set(server.allowed_hosts("127.8.8.8", [])) == {*loopback, "127.8.8.8"}
    assert server.checked_origins(["https://X.org:81"]) == ("https://x.org:81",)


def test_addresses():
    with server.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert server.address_of(listener, "localhost") == f"http://localhost:{port}/"
        assert server.address_of(listener, "0.0.0.0") == f"http://127.0.0.1:{port}/"
        assert server.address_of(listener, "::") == f"http://[::1]:{port}/"
        assert server.address_of(listener, "fe80::1") == f"http://[fe80::1]:{port}/"


def test_indexes_find_their_models(tmp_path):
    index = Index.build(tmp_path / "index", PAIR, TEXTS, name="pair")
    folder = str(index.path)
    other = tiny_model("single", leaf="bilstm")
    both = {"other": other, "pair": PAIR}
    assert list(server.open_indexes([folder], both)) == ["pair"]
    # models that differ in their heads alone encode alike
    assert list(server.open_indexes([folder], {"single": SINGLE, **both})) == ["single", "pair"]
    assert server.open_indexes([], both) == {}
    with pytest.raises(ValueError, match=r"a model that is served, other, more, got one of pair"):
        server.open_indexes([folder], {"other": other, "more": other})
    with pytest.raises(ValueError, match="expected one index for pair, got a second"):
        server.open_indexes([folder, folder], both)
    with pytest.raises(OSError, match="nowhere"):
        server.open_indexes([str(tmp_path / "nowhere")], both)


# over a socket


@contextmanager
def running(app, **options):
    """A server in a thread; gives its port."""
    listener = server.listen("127.0.0.1", 0)
    plan = server.ServerPlan(models=(), settings=ServerSettings(**options))
    running = uvicorn.Server(uvicorn.Config(app, **server._options(plan, "127.0.0.1")))
    thread = threading.Thread(target=running.run, args=[[listener]])
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        running.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def port():
    hosts = server.allowed_hosts("127.0.0.1", [])
    settings = ServerSettings(access_log=False, client_seconds=0.5, hosts=hosts)
    with running(create_app({"single": SINGLE, "pair": PAIR}, settings)) as port:
        yield port


def request(port, method, path, body=None, headers=(), timeout=60):
    """Status, headers and content of a response; a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        own = {**JSON, **dict(headers)} if body is not None else dict(headers)
        connection.request(method, path, body, own)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def parse(port, texts, **options):
    body = json.dumps({"model": "single", "texts": texts, **options})
    status, _, content = request(port, "POST", "/api/parse", body, timeout=60)
    assert status == 200, content
    return json.loads(content)["results"]


def test_a_connection_is_used_again(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for text in TEXTS:
        body = json.dumps({"model": "pair", "texts": [text]})
        connection.request("POST", "/api/parse", body, JSON)
        response = connection.getresponse()
        assert json.loads(response.read())["results"][0]["brackets"] == str(PAIR.parse(text))
        assert "server" not in response.headers
    connection.close()


def test_clients_that_stand_still_lose_their_connection(monkeypatch):
    monkeypatch.setattr(protocol, "CLIENT_SECONDS", 0.3)
    with running(create_app({"pair": PAIR}, ServerSettings(access_log=False))) as port:
        place = ("127.0.0.1", port)
        with socket.create_connection(place, timeout=60) as client:
            client.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127")
            assert client.recv(1000) == b""
        with socket.create_connection(place, timeout=60) as client:
            # much more than the system takes for a client that reads nothing
            with suppress(OSError):
                for _ in range(20_000):
                    client.sendall(b"GET /api/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                try:
                    client.sendall(b"x")
                except OSError:
                    break
                time.sleep(0.05)
            else:
                raise AssertionError("the connection is still there")
        assert request(port, "GET", "/api/health")[0] == 200


def test_more_connections_than_allowed_are_refused(monkeypatch):
    monkeypatch.setattr(protocol.Protocol, "most", 2)
    with running(create_app({"pair": PAIR}, ServerSettings(access_log=False))) as port:
        place = ("127.0.0.1", port)
        kept = [socket.create_connection(place, timeout=60) for _ in range(2)]
        for one in kept:
            one.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"200 OK" in one.recv(1000)
        with socket.create_connection(place, timeout=60) as third, suppress(ConnectionError):
            assert third.recv(1000) == b""
        for one in kept:
            one.close()
    assert 16 <= protocol.most_connections() <= 4096


def test_what_is_no_http_gets_an_error_like_all_others(port):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(b"nonsense\r\n\r\n")
        answer = b""
        while piece := client.recv(4096):
            answer += piece
    head, body = answer.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-security-policy" in head.lower()
    assert "detail" in json.loads(body)


def test_the_name_of_the_server_over_a_socket(port):
    assert request(port, "GET", "/api/health", headers={"Host": f"localhost:{port}"})[0] == 200
    assert request(port, "GET", "/api/health", headers={"Host": "evil.example"})[0] == 421


@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_reads_why_its_large_body_is_refused(port, chunked):
    # more than the sockets' buffers hold, so that the client is still sending
    size = 4 * LIMITS.body
    pieces = (b" " * 2**16 for _ in range(size // 2**16))
    body = pieces if chunked else b" " * size
    status, headers, content = request(port, "POST", "/api/parse", body)
    assert status == 413
    assert json.loads(content)["detail"] == "expected at most 1048576 bytes"
    assert headers["connection"] == "close"
    assert request(port, "GET", "/api/health")[0] == 200


def test_a_client_that_stops_sending_is_told(port):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        head = "POST /api/parse HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert answer.endswith(b'{"detail":"expected the whole request within 0.5 seconds"}')


def test_many_clients_at_once(port):
    def run(number):
        own = [TEXTS[number % 6], f"{TEXTS[(number + 1) % 6]} w{number}"]
        found = parse(port, own)
        assert [tree["text"] for tree in found] == own
        assert [tree["brackets"] for tree in found] == [str(SINGLE.parse(text)) for text in own]

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(run, range(120)))


def test_a_proxy_that_takes_its_path_away():
    app = create_app({"single": SINGLE}, ServerSettings(root_path="/trees", token="a" * 9))
    with running(app, root_path="/trees") as port:
        assert request(port, "GET", "/api/health")[0] == 200
        assert request(port, "GET", "/api/models")[0] == 401
        token = {"Authorization": f"Bearer {'a' * 9}"}
        status, _, content = request(port, "GET", "/api/openapi.json", headers=token)
        assert (status, json.loads(content)["servers"]) == (200, [{"url": "/trees"}])


# processes


class Process:
    """A command that serves."""

    def __init__(self, *arguments, **environment):
        self.running = subprocess.Popen(
            [sys.executable, "-m", "gumbeltree", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            # a group of its own, so that its children end with it
            start_new_session=True,
        )

    def address(self):
        """Wait for the line that says where; the server answers by then."""
        assert select.select([self.running.stdout], [], [], 60)[0], "nothing was printed"
        line = self.running.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + self.running.stderr.read()
        address = found[0]
        assert request(urlsplit(address).port, "GET", "/api/health")[0] == 200
        return line, address, urlsplit(address).port

    def stop(self, number=signal.SIGTERM):
        """End it, return its status and what it wrote."""
        self.running.send_signal(number)
        out, err = self.running.communicate(timeout=60)
        return Result(self.running.returncode, out, err)


@pytest.fixture(scope="module")
def started(models, tmp_path_factory):
    """All that are wanted, started together, as each takes seconds to come up."""
    folder = tmp_path_factory.mktemp("browser")
    browser = folder / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {folder}/opened\n', encoding="ascii")
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    single, pair = models / "single", models / "runs" / "pair"
    found = {
        "serve": Process("serve", single, pair, "--port", 0),
        "explore": Process("explore", single, BROWSER=str(browser)),
        "workers": Process(
            *("serve", single, "--port", 0, "--workers", 2, "--no-access-log"),
            GUMBELTREE_TOKEN="of-all-workers",
        ),
        "opened": folder / "opened",
    }
    yield found
    for process in found.values():
        if isinstance(process, Process):
            with suppress(ProcessLookupError):
                os.killpg(process.running.pid, signal.SIGKILL)
            process.running.communicate()


def test_serve_finishes_what_it_was_asked(started):
    process = started["serve"]
    line, address, port = process.address()
    assert line == f"Serving at {address} (Ctrl-C stops it)\n"
    listed = json.loads(request(port, "GET", "/api/models")[2])["models"]
    assert [model["name"] for model in listed] == ["single", "pair"]
    assert request(port, "GET", "/")[0] == 404
    text = "the dog that barked all night sleeps ."
    assert parse(port, [text])[0]["brackets"] == trace(SINGLE, text).as_dict()["brackets"]
    # long enough to be in the middle of it when the signal comes
    texts = [f"{' '.join(['dog'] * 100)} secret{number}" for number in range(4)]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(parse, port, texts, samples=200)
        time.sleep(0.2)
        assert not answer.done()
        result = process.stop()
        assert [tree["text"] for tree in answer.result()] == texts
        assert all(tree["spans"] for tree in answer.result())
    assert result.code == 0
    lines = [line.split(" ", 1)[1] for line in result.err.splitlines()]
    assert [line.rsplit(" ", 2)[0] for line in lines] == [
        "GET /api/health 200",
        "GET /api/models 200",
        "GET (no such path) 404",
        "POST /api/parse 200",
        "POST /api/parse 200",
    ]
    with pytest.raises(ConnectionRefusedError):
        request(port, "GET", "/api/health")


def test_explore_opens_the_page(started):
    process = started["explore"]
    line, address, port = process.address()
    assert line == f"The explorer is at {address} (Ctrl-C stops it)\n"
    assert urlsplit(address).hostname == "127.0.0.1"
    status, headers, content = request(port, "GET", "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<script" in content
    assert request(port, "GET", "/", headers={"Host": "evil.example"})[0] == 421
    opened, deadline = started["opened"], time.monotonic() + 20
    while not (opened.exists() and opened.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert opened.read_text() == address
    result = process.stop(signal.SIGINT)
    assert (result.code, result.err) == (0, "")


def test_several_processes(started):
    process = started["workers"]
    line, _, port = process.address()
    assert line.endswith("with 2 processes (Ctrl-C stops them)\n")
    assert request(port, "GET", "/api/models")[0] == 401
    token = {"Authorization": "Bearer of-all-workers"}
    body = json.dumps({"model": "single", "texts": ["the dog"]})
    for _ in range(8):
        assert request(port, "POST", "/api/predict", body, token)[0] == 200
    result = process.stop()
    assert (result.code, result.err) == (0, "")


class Fake:
    """A process that serves, told when to die and when it answers."""

    def __init__(self, *arguments):
        self.arguments = arguments
        self.served, self.process = threading.Event(), self
        self.did, self.alive, self.refuses = [], True, 0
        self.pid, self.exitcode, self.sentinel = 4711, None, self
        made.append(self)

    def is_alive(self):
        return self.alive

    def terminate(self):
        # nobody connects any more by then
        self.did.append(("terminate", self.arguments[1].fileno()))

    def join(self, seconds=None):
        self.did.append(("join", seconds))
        if self.refuses:
            self.refuses -= 1
            raise SystemExit(0)

    def kill(self):
        self.did.append(("kill",))


made: list[Fake] = []


@pytest.fixture
def fakes(models, monkeypatch):
    """Serve with two processes that are none; what is given happens while they are waited for."""
    made.clear()
    monkeypatch.setattr(processes, "_Running", Fake)
    monkeypatch.setattr(server.ServerPlan, "app", lambda plan: None)

    def call(*happens):
        listener, rest = server.listen("127.0.0.1", 0), iter(happens)
        monkeypatch.setattr(processes.multiprocessing.connection, "wait", lambda *_: next(rest)())
        said = []
        plan = server.ServerPlan((str(models / "single"),))
        with listener:
            processes.serve_many(plan, listener, 2, lambda: said.append(len(made)), "127.0.0.1")
        assert next(rest, None) is None
        return said

    return call


def stop():
    signal.raise_signal(signal.SIGTERM)


def test_ready_is_when_all_processes_are(fakes):
    said = []
    assert fakes(
        lambda: said.append(made[1].served.set()),
        lambda: said.append(made[0].served.set()),
        lambda: None,
        stop,
    ) == [2]
    assert [each.did for each in made] == 2 * [[("terminate", -1), ("join", None)]]
    assert fakes(lambda: made[-1].served.set(), stop) == []


def test_a_process_that_dies_is_replaced(fakes, monkeypatch):
    lines = []
    monkeypatch.setattr(server.log, "warning", lambda *arguments: lines.append(arguments[1:]))

    def die():
        for each in made:
            each.served.set()
        made[0].alive, made[0].exitcode = False, -9

    assert fakes(die, lambda: None, stop) == []
    assert (len(made), lines) == (3, [(4711, -9)])
    assert [len(each.did) for each in made] == [0, 2, 2]


def test_a_process_that_cannot_be_replaced_is_tried_again(fakes, monkeypatch):
    paused = []
    monkeypatch.setattr(processes.time, "sleep", paused.append)
    monkeypatch.setattr(server.log, "warning", lambda *_: None)

    def serve():
        for each in made:
            each.served.set()

    def die():
        made[-1].alive, made[-1].exitcode = False, -9

    assert fakes(serve, die, die, die, stop) == [2]
    # the last of the first two had served, the next two never
    assert (len(made), paused) == (5, 2 * [processes.PAUSE_SECONDS])
    assert [len(each.did) for each in made] == [2, 0, 0, 0, 2]


def test_a_process_that_cannot_start_ends_them_all(fakes):
    def die():
        made[0].alive, made[0].exitcode = False, 1

    with pytest.raises(OSError, match="ended with status 1 before it did"):
        fakes(die)
    assert [("terminate", -1) in each.did for each in made] == [True, True]
    assert len(made) == 2


def test_a_second_signal_ends_processes_at_once(fakes, monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda *arguments: sent.append(arguments))

    def impatient():
        made[1].refuses = 1
        stop()

    with pytest.raises(SystemExit) as end:
        fakes(impatient)
    assert end.value.code == 1
    assert sent == 2 * [(4711, signal.SIGINT)]
    assert all(each.did[-2:] == [("join", server.FORCED_SECONDS), ("kill",)] for each in made)


def test_who_waits_is_told_when_a_server_ends_at_once(monkeypatch):
    begun, go_on, ended = threading.Event(), threading.Event(), []

    def parse(served, texts, *options):
        begun.set()
        go_on.wait()
        return ["1"] * len(texts)

    monkeypatch.setattr(service, "parse", parse)
    # whoever is not told by then never will be
    monkeypatch.setattr(
        os, "_exit", lambda code: ended.append((code, len(running.server_state.tasks)))
    )
    plan = server.ServerPlan(models=())
    app = create_app({"single": SINGLE}, ServerSettings(access_log=False))
    config = uvicorn.Config(app, **server._options(plan, "127.0.0.1"))
    listener, ready = server.listen("127.0.0.1", 0), threading.Event()
    running = server._Server(config, ready.set)
    thread = threading.Thread(target=running.run, args=[[listener]])
    port = listener.getsockname()[1]
    with ThreadPoolExecutor(1) as pool:
        thread.start()
        assert ready.wait(60)
        body = json.dumps({"model": "single", "texts": ["dog"]})
        answer = pool.submit(request, port, "POST", "/api/parse", body)
        assert begun.wait(60)
        # as the first and the second Ctrl-C do
        running.should_exit = running.force_exit = True
        status, headers, content = answer.result()
        go_on.set()
        thread.join()
    assert (status, headers["retry-after"], ended) == (503, "1", [(1, 0)])
    assert json.loads(content)["detail"].startswith("the server was stopped before it had")


# figures


def test_the_page_has_the_recorded_figures():
    root = Path(__file__).parent.parent.parent
    page = (root / "docs" / "serve.md").read_text(encoding="utf-8")
    report = json.loads((root / "benchmarks" / "results" / "load.json").read_text("utf-8"))
    single, many = report["single"], report["many"]
    assert (single["clients"], single["requests"]) == (64, 50_000)
    for part in (single, many):
        assert (part["wrong"], part["answered"]) == (0, part["requests"])
    for kind in ("predict", "encode", "parse"):
        times = single["latency_seconds"][kind]
        assert f"| `{kind}` | {times['p50'] * 1e3:.0f} ms | {times['p99'] * 1e3:.0f} ms |" in page
    early, late = (single["resident_bytes"][done] for done in ("10000", "50000"))
    assert late < 1.02 * early
    assert f"{early / 2**20:.1f} MiB after 10,000 requests, {late / 2**20:.1f} MiB" in page
    assert f"{single['sentences_per_second']:,.0f} sentences per second" in page
    assert f"{many['sentences_per_second']:,.0f} sentences per second" in page
    assert f"load average was {report['other_load']['before']:.1f}" in page
