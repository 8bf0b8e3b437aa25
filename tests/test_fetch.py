"""`data get` against a local server; nothing here needs a network."""

import dataclasses
import hashlib
import io
import json
import re
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from gumbeltree import fetch
from gumbeltree.tasks import TASKS
from gumbeltree.text.vectors import read_vectors

TREE = "(3 (2 good) (2 film))"
PAIR = {"gold_label": "neutral", "sentence1": "a dog", "sentence2": "a cat"}
SPLITS = ("train", "dev", "test")
OFFICIAL = dict(fetch.SOURCES)


def zipped(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return stream.getvalue()


CONTENTS = {
    "snli": zipped({f"snli_1.0/snli_1.0_{s}.jsonl": json.dumps(PAIR) + "\n" for s in SPLITS}),
    "sst": zipped(
        {f"trees/{s}.txt": f"{TREE}\n" for s in SPLITS}
        | dict.fromkeys(("../evil.txt", "trees/../../evil.txt", "trees/evil.txt"), "evil")
    ),
    "glove.6B": zipped({f"glove.6B.{d}d.txt": "dog" + " 0.5" * d + "\n" for d in (50, 100)}),
    "glove.840B": zipped(
        {"glove.840B.300d.txt": "".join(f"w{i}{' 0.5' * 300}\n" for i in range(200))}
    ),
    "listops": b"5\t( ( ( [SM 2 ) 3 ) ] )\n",
}
LENGTH = len(CONTENTS["glove.840B"])
ARCHIVE = "trainDevTestTrees_PTB.zip"


class Handler(BaseHTTPRequestHandler):
    """Serve `server.files`; `server.answers` queues failures for the next requests.

    An answer is a status, the target of a redirect, or keyword arguments of `give`.
    """

    def do_GET(self):
        server = self.server
        server.requests.append((self.path, dict(self.headers)))
        answer = server.answers.pop(0) if server.answers else {}
        body = server.files.get(urlsplit(self.path).path)
        if isinstance(answer, str):
            self.send_response(302)
            self.send_header("Location", answer)
            self.end_headers()
        elif isinstance(answer, int) or body is None:
            self.send_error(answer or 404)
        else:
            self.give(body, **answer)

    def give(self, body, cut=None, stall=False):
        first = None
        if self.headers["Range"] and self.server.ranges:
            first = int(re.fullmatch(r"bytes=(\d+)-", self.headers["Range"])[1])
        self.send_response(200 if first is None else 206)
        body = body[first:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])
        if stall:
            self.server.go_on.wait(60)

    def log_message(self, *arguments):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {
            urlsplit(file.url).path: CONTENTS[source.name]
            for source in OFFICIAL.values()
            for file in source.files
        }
        self.requests, self.answers = [], []
        self.ranges, self.go_on = True, threading.Event()

    @property
    def requested_ranges(self):
        return [headers.get("Range") for _, headers in self.requests]

    def handle_error(self, request, client_address):
        pass


@pytest.fixture
def server(monkeypatch):
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.005,))
        thread.start()
        monkeypatch.setenv("GUMBELTREE_MIRROR", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "*")
        yield server
        server.go_on.set()
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Use an empty cache, no waits, and the checksums of the small files."""
    monkeypatch.setenv("GUMBELTREE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(fetch, "WAITS", (0, 0, 0))
    monkeypatch.setattr(fetch, "BLOCK", 1 << 12)
    for name, content in CONTENTS.items():
        if OFFICIAL[name].size is not None:
            known = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            replace_file(monkeypatch, name, **known)
    return tmp_path / "home"


def replace_file(monkeypatch, name, **changes):
    """Change the checksum or size of the only file of a source."""
    source = fetch.SOURCES[name]
    files = (dataclasses.replace(source.files[0], **changes),)
    monkeypatch.setitem(fetch.SOURCES, name, dataclasses.replace(source, files=files))


def names(folder):
    """List the files of a folder except the lock."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


# files


@pytest.mark.parametrize("name", ["snli", "sst", "listops"])
def test_tasks_find_the_downloaded_splits(server, home, name):
    folder = fetch.get(name)
    assert folder == home / "data" / name
    splits = TASKS["sst5" if name == "sst" else name]().splits(folder)
    assert set(splits) == ({"train", "test"} if name == "listops" else set(SPLITS))
    # nothing else is unpacked
    assert names(folder) == sorted(path.name for path in splits.values())
    assert not list(home.parent.rglob("evil*"))


@pytest.mark.parametrize("name", ["glove.6B", "glove.840B"])
def test_word_vectors_stay_zipped(server, home, name):
    path = fetch.get(name)
    assert path.parent == home / "data" / name
    assert len(read_vectors(path, ["dog", "w1"]).words) == 1
    assert names(path.parent) == [path.name]


def test_existing_files_are_downloaded_again_only_by_force(server):
    path = fetch.get("sst") / "train.txt"
    path.write_text("mine")
    fetch.get("sst")
    assert path.read_text() == "mine"
    assert len(server.requests) == 1
    fetch.get("sst", force=True)
    assert path.read_text() == f"{TREE}\n"
    fetch.get("glove.840B").write_bytes(b"mine")
    assert fetch.get("glove.840B", force=True).read_bytes() == CONTENTS["glove.840B"]


def test_downloads_only_the_missing_file(server):
    folder = fetch.get("listops")
    (folder / "test_d20s.tsv").unlink()
    del server.requests[:]
    fetch.get("listops")
    assert [path.rpartition("/")[2] for path, _ in server.requests] == ["test_d20s.tsv"]


def test_unpacks_and_keeps_an_archive_placed_by_hand(server, home):
    archive = home / "data" / "sst" / ARCHIVE
    archive.parent.mkdir(parents=True)
    archive.write_bytes(CONTENTS["sst"][:-1])
    with pytest.raises(ValueError, match="bytes instead of"):
        fetch.get("sst")
    assert names(archive.parent) == [ARCHIVE]
    archive.write_bytes(CONTENTS["sst"])
    fetch.get("sst")
    assert not server.requests
    assert names(archive.parent) == ["dev.txt", "test.txt", "train.txt", ARCHIVE]


# resuming and failures


def get_glove(**options):
    """Download glove.840B and assert that it is complete."""
    path = fetch.get("glove.840B", **options)
    assert path.read_bytes() == CONTENTS["glove.840B"]
    assert names(path.parent) == [path.name]


def test_resumes_after_the_connection_breaks(server, monkeypatch):
    # holds for every request, so it must not be shorter than a busy machine needs
    monkeypatch.setattr(fetch, "TIMEOUT", 1.0)
    server.answers = [{"cut": 10_000}, {"cut": 10_000}, {"cut": 1000, "stall": True}]
    messages = []
    get_glove(say=messages.append)
    ranges = [None, "bytes=10000-", "bytes=20000-", "bytes=21000-"]
    assert server.requested_ranges == ranges
    assert any(f"10,000 of {LENGTH:,} bytes" in text for text in messages)


def test_server_without_ranges_starts_over(server):
    server.ranges = False
    server.answers = [{"cut": 1000}]
    get_glove()


def test_files_without_checksum_start_over(server):
    server.answers = [{"cut": 5}]
    assert (fetch.get("listops") / "train_d20s.tsv").read_bytes() == CONTENTS["listops"]
    assert server.requested_ranges == [None] * 3


def test_complete_partial_file_is_not_requested(server, home):
    folder = home / "data" / "glove.840B"
    folder.mkdir(parents=True)
    (folder / "glove.840B.300d.zip.part").write_bytes(CONTENTS["glove.840B"])
    get_glove()
    assert not server.requests


def test_resumes_after_an_interrupt(server, home):
    def interrupt(name, done, total):
        assert total == LENGTH
        if done > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.get("glove.840B", progress=interrupt)
    (part,) = (home / "data" / "glove.840B").glob("*.part")
    kept = part.stat().st_size
    get_glove()
    assert server.requested_ranges[1] == f"bytes={kept}-"


def test_full_disk_is_reported(server):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"cannot write to .*glove\.840B: File too large"):
            fetch.get("glove.840B")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    get_glove()


def test_waits_grow_between_retries(server, monkeypatch):
    monkeypatch.setattr(fetch, "WAITS", (1, 2, 4))
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    server.answers = [500, 503, 429, 500]
    with pytest.raises(OSError, match="HTTP 500"):
        fetch.get("sst")
    assert waits == [1, 2, 4]


def test_missing_file_is_not_retried(server, home):
    server.files.clear()
    with pytest.raises(OSError, match="HTTP 404") as caught:
        fetch.get("sst")
    assert f"/sentiment/{ARCHIVE}" in str(caught.value)
    assert str(home / "data" / "sst" / ARCHIVE) in str(caught.value)
    assert len(server.requests) == 1


def test_unreachable_server(server, monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_port
    monkeypatch.setenv("GUMBELTREE_MIRROR", f"http://127.0.0.1:{port}")
    with pytest.raises(OSError, match=r"refused.*check the network"):
        fetch.get("sst")


@pytest.mark.parametrize("wrong", [{"sha256": "0" * 64}, {"size": 7}])
def test_wrong_checksum_or_size_leaves_no_file(server, home, monkeypatch, wrong):
    replace_file(monkeypatch, "glove.6B", **wrong)
    with pytest.raises(ValueError, match=f"instead of {next(iter(wrong.values()))}"):
        fetch.get("glove.6B")
    assert names(home / "data" / "glove.6B") == []


def test_stops_reading_at_the_known_size(server, home, monkeypatch):
    size = 10_000
    replace_file(monkeypatch, "glove.6B", size=size)
    path = urlsplit(OFFICIAL["glove.6B"].files[0].url).path
    server.files[path] = b"x" * 100 * size
    read = []
    with pytest.raises(ValueError, match="more than 10,000 bytes instead of 10,000"):
        fetch.get("glove.6B", progress=lambda name, done, total: read.append(done))
    assert size < read[-1] <= size + fetch.BLOCK
    assert len(server.requests) == 1
    assert names(home / "data" / "glove.6B") == []


def test_downloads_of_unknown_size_are_bounded(server, home, monkeypatch):
    monkeypatch.setattr(fetch, "MOST_BYTES", 10_000)
    url = OFFICIAL["listops"].files[0].url
    server.files[urlsplit(url).path] = b"x" * 1_000_000
    read = []
    message = "more than 10,000 bytes, the limit for files of unknown size; put a correct copy at"
    with pytest.raises(ValueError, match=message):
        fetch.get("listops", progress=lambda name, done, total: read.append(done))
    assert 10_000 < read[-1] <= 10_000 + fetch.BLOCK
    assert names(home / "data" / "listops") == []
    # a copy that the user put there can have any size
    (home / "data" / "listops" / "train_d20s.tsv").write_bytes(b"x" * 20_000)
    fetch.get("listops")


def test_rejects_redirects_to_local_files(server):
    server.answers = ["file:///etc/hostname"]
    with pytest.raises(OSError, match="file:///etc/hostname"):
        fetch.get("sst")
    assert len(server.requests) == 1


@pytest.mark.parametrize("mirror", ["file:///tmp", "ftp://example.org", "example.org", "https://"])
def test_rejects_mirrors_other_than_http(monkeypatch, mirror):
    monkeypatch.setenv("GUMBELTREE_MIRROR", mirror)
    with pytest.raises(ValueError, match="GUMBELTREE_MIRROR"):
        fetch.get("sst")


def test_folder_that_cannot_be_created(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Not a directory.*--to"):
        fetch.get("sst", tmp_path / "file" / "sst")
    assert not server.requests


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"GUMBELTREE_HOME": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"GUMBELTREE_HOME": "~/a"}, "/me/a"),
        ({"GUMBELTREE_HOME": "", "XDG_CACHE_HOME": "/b"}, "/b/gumbeltree"),
        ({"XDG_CACHE_HOME": ""}, "/me/.cache/gumbeltree"),
    ],
)
def test_cache_folder(monkeypatch, variables, expected):
    for name in ("GUMBELTREE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/me", **variables}.items():
        monkeypatch.setenv(name, value)
    assert str(fetch.home()) == expected


# the command


def test_command_prints_only_the_path(server, home, cli):
    code, out, err = cli("data", "get", "sst")
    assert (code, out) == (0, f"{home / 'data' / 'sst'}\n")
    assert "http://127.0.0.1" in err
    code, out, err = cli("data", "get", "sst")
    assert (code, out) == (0, f"{home / 'data' / 'sst'}\n")
    assert "already" in err
    code, out, _ = cli("data", "get", "glove.6B", "--force")
    assert (code, out) == (0, f"{home / 'data' / 'glove.6B' / 'glove.6B.zip'}\n")
    elsewhere = home.parent / "mine"
    assert cli("data", "get", "snli", "--to", elsewhere).out == f"{elsewhere}\n"
    assert "snli_1.0_train.jsonl" in names(elsewhere)


def test_command_shows_bars_on_a_terminal(server, home, cli, monkeypatch):
    for name, value in {"TERM": "xterm", "FORCE_COLOR": "1", "TTY_INTERACTIVE": "1"}.items():
        monkeypatch.setenv(name, value)
    server.answers = [{"cut": 5}]
    code, out, err = cli("data", "get", "listops")
    assert (code, out) == (0, f"{home / 'data' / 'listops'}\n")
    assert "train_d20s.tsv" in err
    assert "━" in err


def test_command_lists_sources(server, cli, home):
    fetch.get("sst")
    del server.requests[:]
    code, out, err = cli("data", "get", "--list")
    assert (code, err) == (0, "")
    assert not server.requests
    assert "snli: 0.0 MB, not downloaded" in out
    assert f", in {home / 'data' / 'sst'}\n" in out
    assert "listops: size unknown" in out
    for source in OFFICIAL.values():
        assert source.page in out
        assert source.licence in out
    assert cli("data", "get", "sst", "--list").out.count("licence") == 1


def test_command_reports_errors(server, cli):
    message = cli("data", "get", "slni").refused()
    assert "'slni'" in message
    assert "Did you mean 'snli'?" in message
    assert "snli, sst" in cli("data", "get").refused()
    server.files.clear()
    code, out, err = cli("data", "get", "sst")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("gumbeltree: error: cannot download http://127.0.0.1")
