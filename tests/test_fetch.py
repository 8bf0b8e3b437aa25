"""`data get`, against a server of our own: nothing here leaves the machine."""

import dataclasses
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
import zipfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from gumbeltree import fetch
from gumbeltree.tasks import TASKS
from gumbeltree.text.vectors import read_vectors
from tests.commands import Result

TREE = "(3 (2 good) (2 film))"
PAIR = {"gold_label": "neutral", "sentence1": "a dog", "sentence2": "a cat"}
OFFICIAL = dict(fetch.SOURCES)


def zipped(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return stream.getvalue()


SPLITS = ("train", "dev", "test")
CONTENTS = {
    "snli": zipped({f"snli_1.0/snli_1.0_{s}.jsonl": json.dumps(PAIR) + "\n" for s in SPLITS}),
    "sst": zipped({f"trees/{s}.txt": f"{TREE}\n" for s in SPLITS}),
    "glove.6B": zipped({f"glove.6B.{d}d.txt": "dog" + " 0.5" * d + "\n" for d in (50, 100)}),
    "glove.840B": zipped({"glove.840B.300d.txt": "dog" + " 0.5" * 300 + "\n"}),
    "listops": b"5\t( ( ( [SM 2 ) 3 ) ] )\n" * 20_000,
}


class Handler(BaseHTTPRequestHandler):
    """Gives `server.files`; `server.answers` says how the next requests go wrong."""

    def do_GET(self):
        server = self.server
        server.requests.append((self.path, dict(self.headers)))
        answer = server.answers.pop(0) if server.answers else None
        body = server.files.get(urlsplit(self.path).path)
        if isinstance(answer, str):
            self.send_response(302)
            self.send_header("Location", answer)
            self.end_headers()
        elif isinstance(answer, int) or body is None:
            self.send_error(answer or 404)
        else:
            self.give(body, **(answer or {}))

    def give(self, body, cut=None, length=None, stall=0):
        first = self.first(body)
        if first is not None and first >= len(body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.end_headers()
            return
        self.send_response(200 if first is None else 206)
        if first is not None:
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
            body = body[first:]
        for name, value in self.server.version.items():
            self.send_header(name, value)
        if length != "none":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])
        time.sleep(stall)

    def first(self, body):
        asked = self.headers["Range"]
        if not asked or not self.server.ranges:
            return None
        same = self.headers["If-Range"] in self.server.version.values()
        if not same and not self.server.careless:
            return None
        return int(re.fullmatch(r"bytes=(\d+)-", asked)[1])

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
        self.version = {"ETag": '"one"'}
        self.ranges, self.careless = True, False

    @property
    def ranges_asked(self):
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
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A cache of its own, no waits, and the checksums of the small files."""
    monkeypatch.setenv("GUMBELTREE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(fetch, "WAITS", (0, 0, 0))
    monkeypatch.setattr(fetch, "BLOCK", 1 << 12)
    for name in OFFICIAL:
        replace_files(monkeypatch, name)
    return tmp_path / "home"


def replace_files(monkeypatch, name, **changes):
    """Give the files of a source other checksums, sizes or members."""
    content = CONTENTS[name]
    known = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    source = OFFICIAL[name]
    files = tuple(
        dataclasses.replace(file, **((known if file.sha256 else {}) | changes))
        for file in source.files
    )
    monkeypatch.setitem(fetch.SOURCES, name, dataclasses.replace(source, files=files))


def names(folder):
    """The files of a folder, but for the lock."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def process(*arguments):
    command = [sys.executable, "-W", "error", "-m", "gumbeltree", "data", "get", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


# the table


@pytest.mark.parametrize("name", OFFICIAL)
def test_sources_are_complete(name):
    source = OFFICIAL[name]
    assert source.name == name
    assert source.description
    assert source.licence
    assert source.citation
    for file in source.files:
        assert file.url.startswith(("https://nlp.stanford.edu/", "https://raw.githubusercontent."))
        assert file.sha256 is None or re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert not any("/" in result for result in file.results)


# what comes out


@pytest.mark.parametrize("name", ["snli", "sst", "listops"])
def test_the_readers_find_what_was_fetched(server, home, name):
    folder = fetch.get(name)
    assert folder == home / "data" / name
    task = TASKS["sst5" if name == "sst" else name]()
    splits = task.splits(folder)
    assert set(splits) == ({"train", "test"} if name == "listops" else set(SPLITS))
    assert names(folder) == sorted(path.name for path in splits.values())


@pytest.mark.parametrize("name", ["glove.6B", "glove.840B"])
def test_vectors_stay_zipped(server, home, name):
    path = fetch.get(name)
    assert path.parent == home / "data" / name
    assert path.read_bytes() == CONTENTS[name]
    assert read_vectors(path, ["dog"]).words == ("dog",)
    assert names(path.parent) == [path.name]


def test_progress_reaches_the_end(server):
    seen, said = [], []
    fetch.get("listops", say=said.append, progress=lambda *state: seen.append(state))
    size = len(CONTENTS["listops"])
    assert seen[0] == ("train_d20s.tsv", 0, size)
    assert seen[-1] == ("test_d20s.tsv", size, size)
    assert [done for name, done, _ in seen if name == "test_d20s.tsv"] == sorted(
        done for name, done, _ in seen if name == "test_d20s.tsv"
    )
    assert said[0].startswith("train_d20s.tsv: fetching http://127.0.0.1")


def test_what_is_there_is_not_asked_for(server):
    first, said = fetch.get("sst"), []
    del server.requests[:]
    assert fetch.get("sst", say=said.append) == first
    assert not server.requests
    assert said == [f"sst: already in {first}"]


def test_force_fetches_again(server):
    path = fetch.get("sst") / "train.txt"
    path.write_text("mine")
    fetch.get("sst", force=True)
    assert path.read_text() == f"{TREE}\n"
    assert len(server.requests) == 2
    path = fetch.get("glove.840B")
    path.write_bytes(b"mine")
    assert fetch.get("glove.840B", force=True).read_bytes() == CONTENTS["glove.840B"]


def test_only_what_is_missing_is_written(server):
    folder = fetch.get("sst")
    (folder / "train.txt").write_text("mine")
    (folder / "dev.txt").unlink()
    fetch.get("sst")
    assert (folder / "train.txt").read_text() == "mine"
    assert (folder / "dev.txt").read_text() == f"{TREE}\n"


def test_only_the_missing_file_of_two_is_fetched(server):
    folder = fetch.get("listops")
    (folder / "test_d20s.tsv").unlink()
    del server.requests[:]
    fetch.get("listops")
    assert [path.rpartition("/")[2] for path, _ in server.requests] == ["test_d20s.tsv"]


def test_a_file_put_there_by_hand_is_unpacked_and_kept(server, home):
    folder = home / "data" / "sst"
    folder.mkdir(parents=True)
    (folder / "trainDevTestTrees_PTB.zip").write_bytes(CONTENTS["sst"])
    fetch.get("sst")
    assert not server.requests
    assert names(folder) == ["dev.txt", "test.txt", "train.txt", "trainDevTestTrees_PTB.zip"]


@pytest.mark.parametrize("unknown", [{}, {"sha256": None, "size": None}])
def test_a_wrong_file_put_there_by_hand_is_refused_and_kept(server, home, monkeypatch, unknown):
    replace_files(monkeypatch, "sst", **unknown)
    path = home / "data" / "sst" / "trainDevTestTrees_PTB.zip"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENTS["sst"][:-10])
    with pytest.raises(ValueError, match="put the right file there, or remove it"):
        fetch.get("sst")
    assert names(path.parent) == [path.name]


# going on after a cut


def test_a_cut_connection_is_continued(server):
    server.answers = [{"cut": 100_000}, {"cut": 50_000}]
    said = []
    folder = fetch.get("listops", say=said.append)
    assert (folder / "train_d20s.tsv").read_bytes() == CONTENTS["listops"]
    assert server.ranges_asked == [None, "bytes=100000-", "bytes=150000-", None]
    assert server.requests[1][1]["If-Range"] == '"one"'
    assert any("a connection cut after 100,000 of 480,000 bytes" in text for text in said)
    assert names(folder) == ["test_d20s.tsv", "train_d20s.tsv"]


def test_cuts_do_not_count_while_there_is_progress(server):
    server.answers = [{"cut": 10_000}] * 20
    folder = fetch.get("listops")
    assert (folder / "train_d20s.tsv").read_bytes() == CONTENTS["listops"]
    assert len(server.requests) == 22


def test_a_new_process_continues(server, home):
    server.answers = [{"cut": 100_000}, 404]
    code, out, err = process("listops")
    assert (code, out) == (1, "")
    assert "gumbeltree: error: http" in err
    assert "HTTP 404" in err
    folder = home / "data" / "listops"
    assert (folder / "train_d20s.tsv.part").stat().st_size == 100_000
    del server.requests[:]
    code, out, err = process("listops")
    assert (code, out) == (0, f"{folder}\n"), err
    assert server.ranges_asked == ["bytes=100000-", None]
    assert (folder / "train_d20s.tsv").read_bytes() == CONTENTS["listops"]
    assert "train_d20s.tsv: 480,000 of 480,000 bytes" in err


def test_a_connection_that_falls_silent_is_continued(server, monkeypatch):
    monkeypatch.setattr(fetch, "TIMEOUT", 0.1)
    server.answers = [{"cut": 1000, "stall": 0.3}]
    said = []
    folder = fetch.get("listops", say=said.append)
    assert (folder / "train_d20s.tsv").read_bytes() == CONTENTS["listops"]
    assert server.ranges_asked[1] == "bytes=1000-"
    assert any("a broken connection (timed out)" in text for text in said)


def test_by_the_date_if_there_is_no_strong_tag(server):
    server.version = {"ETag": 'W/"weak"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
    server.answers = [{"cut": 1000}]
    fetch.get("listops")
    assert server.requests[1][1]["If-Range"] == "Wed, 21 Oct 2015 07:28:00 GMT"


@pytest.mark.parametrize("version", [{}, {"ETag": 'W/"weak"'}])
def test_without_a_version_it_starts_anew(server, version):
    server.version = version
    server.answers = [{"cut": 1000}]
    folder = fetch.get("listops")
    assert server.ranges_asked == [None, None, None]
    assert (folder / "train_d20s.tsv").read_bytes() == CONTENTS["listops"]


def test_a_server_that_knows_no_ranges(server):
    server.ranges = False
    server.answers = [{"cut": 1000}, {"cut": 900}, {"cut": 1000}]
    folder = fetch.get("listops")
    assert (folder / "train_d20s.tsv").read_bytes() == CONTENTS["listops"]


def test_cuts_at_the_same_place_come_to_an_end(server):
    server.ranges = False
    server.answers = [{"cut": 1000}] * 100
    with pytest.raises(OSError, match=r"cut after 1,000 of 480,000 bytes; 1,000 bytes are kept"):
        fetch.get("listops")
    assert len(server.requests) == 4


@pytest.mark.parametrize("careless", [False, True])
def test_a_changed_file_starts_anew(server, home, careless):
    """Also if the server sends the rest of the new file without looking at If-Range."""
    server.answers = [{"cut": 100_000}, 404]
    with pytest.raises(OSError, match="404"):
        fetch.get("listops")
    server.careless, server.version = careless, {"ETag": '"two"'}
    path = urlsplit(OFFICIAL["listops"].files[0].url).path
    server.files[path] = CONTENTS["listops"].replace(b"5", b"6")
    del server.requests[:]
    folder = fetch.get("listops")
    assert (folder / "train_d20s.tsv").read_bytes() == server.files[path]
    assert server.ranges_asked == ["bytes=100000-"] + [None] * (1 + careless)


@pytest.mark.parametrize(("extra", "requests"), [(b"", 1), (b"more", 2)])
def test_a_part_that_is_whole_or_too_long(server, home, extra, requests):
    folder = home / "data" / "glove.840B"
    folder.mkdir(parents=True)
    (folder / "glove.840B.300d.zip.part").write_bytes(CONTENTS["glove.840B"] + extra)
    (folder / "glove.840B.300d.zip.part.tag").write_text('"one"')
    assert fetch.get("glove.840B").read_bytes() == CONTENTS["glove.840B"]
    assert len(server.requests) == requests
    assert names(folder) == ["glove.840B.300d.zip"]


def test_an_interrupt_keeps_what_came(server, home):
    said = []

    def interrupt(name, done, total):
        if done > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.get("listops", say=said.append, progress=interrupt)
    kept = (home / "data" / "listops" / "train_d20s.tsv.part").stat().st_size
    assert kept > 100_000
    assert f"the first {kept:,} bytes are kept" in said[-1]
    fetch.get("listops")
    assert server.ranges_asked[1] == f"bytes={kept}-"


def test_a_full_disk_keeps_what_came(server, home):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
    try:
        with pytest.raises(
            OSError, match=r"train_d20s\.tsv\.part: expected to write it, got 'File"
        ):
            fetch.get("listops")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    folder = fetch.get("listops")
    assert server.ranges_asked[1] == "bytes=300000-"
    assert (folder / "train_d20s.tsv").read_bytes() == CONTENTS["listops"]


# what goes wrong


def test_a_server_that_recovers(server):
    server.answers = [500, 503, 429]
    said = []
    fetch.get("sst", say=said.append)
    assert len(server.requests) == 4
    assert any("HTTP 503" in text for text in said)


def test_waits_grow_and_end(server, monkeypatch):
    server.answers = [500] * 10
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    with pytest.raises(OSError, match=r"HTTP 500 .*check the network and try again, or get"):
        fetch.get("sst", waits=(1, 2, 4))
    assert slept == [1, 2, 4]


def test_no_such_file(server, home):
    server.files.clear()
    with pytest.raises(OSError, match="HTTP 404") as caught:
        fetch.get("sst")
    message = str(caught.value)
    assert "http://127.0.0.1" in message
    assert "/sentiment/trainDevTestTrees_PTB.zip: expected the file" in message
    assert f"put it at {home / 'data' / 'sst' / 'trainDevTestTrees_PTB.zip'}" in message
    assert len(server.requests) == 1


def test_an_unreachable_server(server, monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_port
    monkeypatch.setenv("GUMBELTREE_MIRROR", f"http://127.0.0.1:{port}")
    with pytest.raises(OSError, match=r"no answer \(.*refused.*\); check the network"):
        fetch.get("sst")


def test_a_wrong_checksum(server, home, monkeypatch):
    replace_files(monkeypatch, "glove.6B", sha256="0" * 64)
    got = hashlib.sha256(CONTENTS["glove.6B"]).hexdigest()
    with pytest.raises(ValueError, match=f"expected sha256 {'0' * 64}, got {got}; get glove"):
        fetch.get("glove.6B")
    assert names(home / "data" / "glove.6B") == []


def test_a_wrong_size_is_seen_before_the_transfer(server, home, monkeypatch):
    replace_files(monkeypatch, "glove.6B", size=7)
    seen = []
    with pytest.raises(ValueError, match=f"expected 7 bytes, got {len(CONTENTS['glove.6B'])}"):
        fetch.get("glove.6B", progress=lambda *state: seen.append(state))
    assert not seen
    server.answers = [{"length": "none"}]
    with pytest.raises(ValueError, match="expected 7 bytes, got"):
        fetch.get("glove.6B")
    assert names(home / "data" / "glove.6B") == []


@pytest.mark.parametrize("name", ["sst", "glove.840B"])
@pytest.mark.parametrize("answer", [{"length": "none", "cut": -30}, None])
def test_a_cut_zip_without_a_checksum(server, home, monkeypatch, name, answer):
    replace_files(monkeypatch, name, sha256=None, size=None)
    path = urlsplit(OFFICIAL[name].files[0].url).path
    server.answers = [answer]
    if answer is None:
        middle = len(CONTENTS[name]) // 4
        flipped = bytes([CONTENTS[name][middle] ^ 255])
        server.files[path] = CONTENTS[name][:middle] + flipped + CONTENTS[name][middle + 1 :]
    with pytest.raises(ValueError, match="expected a zip file, got damaged data"):
        fetch.get(name)
    assert names(home / "data" / name) == []


def test_a_damaged_member_that_was_checked(server, home, monkeypatch):
    """A checksum of the whole cannot help if what was published is damaged."""
    content = bytearray(CONTENTS["sst"])
    content[35 + len("trees/train.txt")] ^= 255
    replace_files(monkeypatch, "sst", sha256=hashlib.sha256(content).hexdigest())
    server.files["/sentiment/trainDevTestTrees_PTB.zip"] = bytes(content)
    with pytest.raises(ValueError, match="expected a zip file, got damaged data"):
        fetch.get("sst")
    assert names(home / "data" / "sst") == []


def test_only_wanted_members_are_written(server, home, monkeypatch, tmp_path):
    replace_files(monkeypatch, "sst", sha256=None, size=None)
    wanted = {f"trees/{split}.txt": f"{TREE}\n" for split in SPLITS}
    evil = ["../evil.txt", "/tmp/evil.txt", "trees/../../evil.txt", "trees/evil.txt", "..\\evil"]
    server.files["/sentiment/trainDevTestTrees_PTB.zip"] = zipped(
        dict.fromkeys(evil, "evil") | wanted
    )
    folder = fetch.get("sst")
    assert names(folder) == ["dev.txt", "test.txt", "train.txt"]
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]


def test_a_member_is_missing(server, home, monkeypatch):
    replace_files(monkeypatch, "sst", sha256=None, size=None)
    server.files["/sentiment/trainDevTestTrees_PTB.zip"] = zipped({"trees/train.txt": TREE})
    with pytest.raises(
        ValueError, match=r"expected trees/dev.txt, trees/test.txt in it, got trees/train.txt; get"
    ):
        fetch.get("sst")
    assert names(home / "data" / "sst") == []


def test_redirects_within_the_web(server):
    server.answers = [{"cut": 1000}, f"{os.environ['GUMBELTREE_MIRROR']}/elsewhere"]
    server.files["/elsewhere"] = CONTENTS["listops"]
    fetch.get("listops")
    assert server.ranges_asked == [None, "bytes=1000-", "bytes=1000-", None]


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x"])
def test_no_other_redirects(server, home, target):
    server.answers = [target]
    with pytest.raises((OSError, ValueError), match=re.escape(target)):
        fetch.get("sst")
    assert len(server.requests) == 1
    assert names(home / "data" / "sst") == []


@pytest.mark.parametrize("mirror", ["file:///tmp", "ftp://example.org", "example.org", "https://"])
def test_no_other_mirrors(monkeypatch, mirror):
    monkeypatch.setenv("GUMBELTREE_MIRROR", mirror)
    with pytest.raises(ValueError, match="GUMBELTREE_MIRROR must be an http or https address"):
        fetch.get("sst")


def test_a_mirror_keeps_the_path(monkeypatch):
    url = OFFICIAL["sst"].files[0].url
    monkeypatch.delenv("GUMBELTREE_MIRROR", raising=False)
    assert fetch.address(url) == url
    monkeypatch.setenv("GUMBELTREE_MIRROR", "https://example.org/copies/")
    path = "/sentiment/trainDevTestTrees_PTB.zip"
    assert fetch.address(url) == f"https://example.org/copies{path}"


def test_a_folder_that_cannot_be(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"'Not a directory'; make room .* another folder with --to"):
        fetch.get("sst", tmp_path / "file" / "sst")
    assert not server.requests


def test_two_at_once_fetch_once(server):
    """The second one waits for the first, and finds its files."""
    started, go_on = threading.Event(), threading.Event()

    def hold(name, done, total):
        started.set()
        assert go_on.wait(10)

    def wait(text):
        if "waiting" in text:
            said.append(text)
            go_on.set()

    said = []
    first = threading.Thread(target=fetch.get, args=("sst",), kwargs={"progress": hold})
    first.start()
    assert started.wait(10)
    folder = fetch.get("sst", say=wait)
    first.join()
    assert said == ["sst: waiting for another process that fetches it"]
    assert len(server.requests) == 1
    assert names(folder) == ["dev.txt", "test.txt", "train.txt"]


# the cache


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"GUMBELTREE_HOME": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"GUMBELTREE_HOME": "~/a"}, "/me/a"),
        ({"GUMBELTREE_HOME": "", "XDG_CACHE_HOME": "/b"}, "/b/gumbeltree"),
        ({"XDG_CACHE_HOME": ""}, "/me/.cache/gumbeltree"),
        ({}, "/me/.cache/gumbeltree"),
    ],
)
def test_home(monkeypatch, variables, expected):
    for name in ("GUMBELTREE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/me", **variables}.items():
        monkeypatch.setenv(name, value)
    assert str(fetch.home()) == expected


# the command


def test_the_command_prints_the_path_alone(server, home, cli):
    code, out, err = cli("data", "get", "sst")
    assert (code, out) == (0, f"{home / 'data' / 'sst'}\n")
    assert "trainDevTestTrees_PTB.zip: fetching http://127.0.0.1" in err
    code, out, err = cli("data", "get", "sst")
    assert (code, out) == (0, f"{home / 'data' / 'sst'}\n")
    assert err == f"sst: already in {home / 'data' / 'sst'}\n"
    code, out, _ = cli("data", "get", "glove.6B", "--force")
    assert (code, out) == (0, f"{home / 'data' / 'glove.6B' / 'glove.6B.zip'}\n")


def test_lines_tell_the_progress(server, cli):
    err = cli("data", "get", "listops").err
    counts = Counter(line.partition(":")[0] for line in err.splitlines() if " of " in line)
    assert counts == {"train_d20s.tsv": 10, "test_d20s.tsv": 10}


def test_bars_on_a_terminal(server, home, cli, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    server.answers = [{"cut": 100_000}]
    code, out, err = cli("data", "get", "listops")
    assert (code, out) == (0, f"{home / 'data' / 'listops'}\n")
    assert "train_d20s.tsv" in err
    assert "kB" in err
    assert "━" in err


def test_the_command_with_another_folder(server, cli, tmp_path, home):
    code, out, _ = cli("data", "get", "sst", "--to", tmp_path / "mine")
    assert (code, out) == (0, f"{tmp_path / 'mine'}\n")
    assert names(tmp_path / "mine") == ["dev.txt", "test.txt", "train.txt"]
    assert not home.exists()


def test_the_command_lists(server, cli, home, monkeypatch):
    fetch.get("sst")
    monkeypatch.setitem(fetch.SOURCES, "snli", OFFICIAL["snli"])
    del server.requests[:]
    code, out, err = cli("data", "get", "--list")
    assert (code, err) == (0, "")
    assert not server.requests
    assert "snli: 94.6 MB, not here yet" in out
    assert f", in {home / 'data' / 'sst'}\n" in out
    assert "listops: size not published" in out
    for source in OFFICIAL.values():
        assert {source.page, source.description} <= {
            line.strip().removeprefix("source: ") for line in out.splitlines()
        }
        assert f"licence: {source.licence}" in out
    assert cli("data", "get", "sst", "--list").out.count("licence") == 1


def test_the_command_refuses(server, cli):
    message = cli("data", "get", "slni").refused()
    assert "unknown data 'slni'; known: snli, sst," in message
    assert "Did you mean 'snli'?" in message
    assert "pass one of snli, sst" in cli("data", "get").refused()
    server.files.clear()
    result = cli("data", "get", "sst")
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines()[-1].startswith("gumbeltree: error: http://127.0.0.1")


def test_the_command_has_help(cli):
    out = cli("data", "get", "--help").out
    for word in ("Example", "--to", "--force", "--list", "GUMBELTREE_HOME", "GUMBELTREE_MIRROR"):
        assert word in out
