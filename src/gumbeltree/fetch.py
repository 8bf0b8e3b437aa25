"""Fetch data sets and word vectors from their official addresses into a cache folder.

A file is streamed to `<file>.part`, beside it `<file>.part.tag` with what the server says of its
version (ETag or Last-Modified). What came of a file is kept, and the next try asks for the rest if
the version is still the same. Only a file that is whole and checked gets its own name.
"""

import hashlib
import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import urlsplit

from gumbeltree import __version__
from gumbeltree.atomic import replace_file
from gumbeltree.registry import UnknownNameError, suggest

Say: TypeAlias = Callable[[str], None]
# the name of the file, bytes that are there, bytes in all if known
Progress: TypeAlias = Callable[[str, int, int | None], None]

# seconds to wait after a failure; one more in a row that brings nothing new is the last
WAITS: Sequence[float] = (1, 2, 4)
TIMEOUT = 30.0
BLOCK = 1 << 18

_PASSING = (408, 425, 429)
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)


@dataclass(frozen=True)
class File:
    """One file to fetch.

    Attributes:
        url: The official address.
        sha256: The published checksum, None if there is none.
        size: The published number of bytes, None if there is none.
        unpack: The members of a zip file that are wanted, and the name each gets in the folder.
            Empty: the file is kept as it is.
    """

    url: str
    sha256: str | None = None
    size: int | None = None
    unpack: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]

    @property
    def results(self) -> tuple[str, ...]:
        """The names of what it gives in the folder."""
        return tuple(self.unpack.values()) or (self.name,)


@dataclass(frozen=True)
class Source:
    """A data set or a file of word vectors.

    Attributes:
        name: What it is called on the command line.
        description: What it is.
        page: Where its makers describe it.
        licence: Under which terms it may be used.
        citation: What to cite.
        files: What to fetch.
        vectors: Whether it is a file of word vectors, rather than a folder with splits.
    """

    name: str
    description: str
    page: str
    licence: str
    citation: str
    files: tuple[File, ...]
    vectors: bool = False

    @property
    def size(self) -> int | None:
        """Bytes to fetch in all, None if they are not published."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def folder(self) -> Path:
        """Return the folder it has in the cache."""
        return home() / "data" / self.name

    def path(self, folder: Path) -> Path:
        """Return what to pass on: the file of word vectors, else the folder."""
        return folder / self.files[0].name if self.vectors else folder

    def is_there(self, folder: Path) -> bool:
        """Return whether a folder has all its files."""
        return all((folder / name).is_file() for file in self.files for name in file.results)


_STANFORD = "https://nlp.stanford.edu"
# the data of the paper lie in a branch of their own
_LISTOPS = (
    "https://raw.githubusercontent.com/nyu-mll/spinn/listops-release/python/spinn/data/listops"
)

# No maker publishes checksums; those here are what others recorded of the same addresses:
# snli: tensorflow/datasets, tensorflow_datasets/url_checksums/snli.txt, and huggingface/datasets,
#   datasets/snli/dataset_infos.json (both checksum and size);
# sst: huggingface/datasets, datasets/sst/dataset_infos.json (both);
# glove: JuliaText/Embeddings.jl, src/glove.jl (checksums); the sizes are those that wget showed in
#   many public notebooks, and fit the 822 MB and 2.03 GB of the makers' page.
# listops: none with sha256.
SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="snli",
            description="570,152 pairs of sentences: entailment, contradiction or neutral",
            page=f"{_STANFORD}/projects/snli/",
            licence="CC BY-SA 4.0",
            citation="Bowman, Angeli, Potts, Manning (EMNLP 2015), A large annotated corpus for "
            "learning natural language inference",
            files=(
                File(
                    f"{_STANFORD}/projects/snli/snli_1.0.zip",
                    "afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e",
                    94_550_081,
                    {
                        f"snli_1.0/snli_1.0_{split}.jsonl": f"snli_1.0_{split}.jsonl"
                        for split in ("train", "dev", "test")
                    },
                ),
            ),
        ),
        Source(
            name="sst",
            description="11,855 sentences of film reviews, every phrase with a sentiment of 0..4; "
            "for sst2 and sst5",
            page=f"{_STANFORD}/sentiment/",
            licence="none stated by its makers",
            citation="Socher, Perelygin, Wu, Chuang, Manning, Ng, Potts (EMNLP 2013), Recursive "
            "deep models for semantic compositionality over a sentiment treebank",
            files=(
                File(
                    f"{_STANFORD}/sentiment/trainDevTestTrees_PTB.zip",
                    "5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc",
                    789_539,
                    {f"trees/{split}.txt": f"{split}.txt" for split in ("train", "dev", "test")},
                ),
            ),
        ),
        Source(
            name="glove.6B",
            description="400,000 lower-case words, vectors of 50, 100, 200 and 300 numbers, from "
            "Wikipedia and Gigaword",
            page=f"{_STANFORD}/projects/glove/",
            licence="PDDL 1.0 (public domain)",
            citation="Pennington, Socher, Manning (EMNLP 2014), GloVe: global vectors for word "
            "representation",
            files=(
                File(
                    f"{_STANFORD}/data/glove.6B.zip",
                    "617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
                    862_182_613,
                ),
            ),
            vectors=True,
        ),
        Source(
            name="glove.840B",
            description="2.2 million words with capitals, vectors of 300 numbers, from web pages",
            page=f"{_STANFORD}/projects/glove/",
            licence="PDDL 1.0 (public domain)",
            citation="Pennington, Socher, Manning (EMNLP 2014), GloVe: global vectors for word "
            "representation",
            files=(
                File(
                    f"{_STANFORD}/data/glove.840B.300d.zip",
                    "c06db255e65095393609f19a4cfca20bf3a71e20cc53e892aafa490347e3849f",
                    2_176_768_927,
                ),
            ),
            vectors=True,
        ),
        Source(
            name="listops",
            description="nested lists of digits with MIN, MAX, MED and SM; the answer is a digit; "
            "no development set",
            page="https://github.com/nyu-mll/spinn/tree/listops-release",
            licence="Apache 2.0, that of its repository",
            citation="Nangia, Bowman (NAACL Student Research Workshop 2018), ListOps: a "
            "diagnostic dataset for latent tree learning",
            files=(
                File(f"{_LISTOPS}/train_d20s.tsv"),
                File(f"{_LISTOPS}/test_d20s.tsv"),
            ),
        ),
    )
}


def home() -> Path:
    """Return the folder for everything that is fetched.

    The environment variable `GUMBELTREE_HOME`, else `$XDG_CACHE_HOME/gumbeltree`, else
    `~/.cache/gumbeltree`. It need not exist.
    """
    if chosen := os.environ.get("GUMBELTREE_HOME"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gumbeltree"


def find_source(name: str) -> Source:
    """Return a source by its name, or raise and name the nearest."""
    if name not in SOURCES:
        known = list(SOURCES)
        raise UnknownNameError(
            f"unknown data {name!r}; known: {', '.join(known)}.{suggest(name, known)}"
        )
    return SOURCES[name]


def address(url: str) -> str:
    """Return where to ask for a file: `url`, or its path below `GUMBELTREE_MIRROR`."""
    mirror = os.environ.get("GUMBELTREE_MIRROR", "").rstrip("/")
    if not mirror:
        return url
    if not _is_web(mirror):
        raise ValueError(
            f"GUMBELTREE_MIRROR must be an http or https address such as https://example.org, "
            f"got {mirror!r}; correct or unset it"
        )
    return mirror + urlsplit(url).path


def get(
    name: str,
    to: Path | None = None,
    force: bool = False,
    say: Say = lambda text: None,
    progress: Progress = lambda name, done, total: None,
    waits: Sequence[float] | None = None,
) -> Path:
    """Fetch a data set or word vectors, unless all files are there.

    Args:
        name: A name in `SOURCES`.
        to: The folder to put files into; the cache if None.
        force: Whether to fetch files that are there.
        say: Is told in words what happens.
        progress: Is told how much of a file is there, often.
        waits: Seconds to wait after each failure in a row; `WAITS` if None.

    Returns:
        The folder, or the file for word vectors.

    Raises:
        ValueError: If there is no such name, or if what came is not what was expected.
        OSError: If the server cannot be reached or refuses, or files cannot be written.
    """
    source = find_source(name)
    folder = source.folder() if to is None else to
    path = source.path(folder)
    if source.is_there(folder) and not force:
        say(f"{name}: already in {folder}")
        return path
    with _locked(folder, name, say):
        for file in source.files:
            if force or not all((folder / result).is_file() for result in file.results):
                _get_file(file, folder, force, say, progress, WAITS if waits is None else waits)
    return path


def _get_file(
    file: File, folder: Path, force: bool, say: Say, progress: Progress, waits: Sequence[float]
) -> None:
    """Fetch and unpack one file; one that was put there by hand is not fetched, and not removed."""
    path = folder / file.name
    by_hand = path.is_file() and not force
    problem = ""
    if by_hand:
        say(f"{file.name}: found in {folder}, not fetched")
        problem = _problem(path, file)
    else:
        _Download(file, path, say, progress, waits).run()
    if file.unpack and not problem:
        say(f"{file.name}: unpacking")
        try:
            _unpack(path, file, folder, force)
        except _DAMAGED as error:
            problem = f"expected a zip file, got damaged data ({error})"
        except _MissingMemberError as error:
            problem = str(error)
        if not by_hand:
            path.unlink()
    if problem:
        remedy = _BY_HAND if by_hand else _remedy(file, path)
        raise ValueError(f"{path}: {problem}; {remedy}")


class _MissingMemberError(Exception):
    """A zip file without something that should be in it."""


def _unpack(path: Path, file: File, folder: Path, force: bool) -> None:
    """Write the wanted members, and nothing else, under names of our own."""
    with zipfile.ZipFile(path) as archive:
        held = archive.namelist()
        absent = [member for member in file.unpack if member not in held]
        if absent:
            raise _MissingMemberError(
                f"expected {', '.join(absent)} in it, got {', '.join(held[:10]) or 'nothing'}"
            )
        for member, name in file.unpack.items():
            if force or not (folder / name).is_file():
                with _clear(folder / name):
                    replace_file(folder / name, _copy_of(archive, member))


def _copy_of(archive: zipfile.ZipFile, member: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        # the reader compares the member's checksum when it comes to the end
        with archive.open(member) as packed, open(path, "wb") as stream:
            shutil.copyfileobj(packed, stream, BLOCK)

    return write


def _problem(path: Path, file: File) -> str:
    """Return how a file differs from the published one, empty if it does not."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"expected {file.size:,} bytes, got {size:,}"
    if file.sha256 is not None:
        with open(path, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return "" if digest == file.sha256 else f"expected sha256 {file.sha256}, got {digest}"
    if file.name.endswith(".zip"):
        try:
            with zipfile.ZipFile(path) as archive:
                bad = archive.testzip()
        except _DAMAGED as error:
            bad = str(error)
        return "" if bad is None else f"expected a zip file, got damaged data ({bad})"
    return ""


_BY_HAND = "put the right file there, or remove it to have it fetched"


def _remedy(file: File, path: Path) -> str:
    return (
        f"get {file.name} in another way, put it at {path} and run the same command again, or set "
        "GUMBELTREE_MIRROR to a server that has it"
    )


class _FailureError(Exception):
    """Something that may pass: it is worth another try."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,
        url: str,
    ) -> urllib.request.Request | None:
        if not _is_web(url):
            fp.close()
            raise ValueError(
                f"{req.full_url}: expected a redirect to an http or https address, got {url!r}; "
                "check the network or GUMBELTREE_MIRROR"
            )
        return super().redirect_request(req, fp, code, msg, headers, url)


def _is_web(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener without the file:, ftp: and data: addresses that urllib's own allows."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
        _Redirects,
    ):
        opener.add_handler(handler())
    return opener


class _Download:
    """One file on its way to `path`."""

    def __init__(
        self, file: File, path: Path, say: Say, progress: Progress, waits: Sequence[float]
    ) -> None:
        self.file = file
        self.path = path
        self.say = say
        self.progress = progress
        self.waits = waits
        self.url = address(file.url)
        self.part = path.with_name(f"{path.name}.part")
        self.tag = path.with_name(f"{path.name}.part.tag")

    def run(self) -> None:
        """Fetch the file, check it and give it its name."""
        self.say(f"{self.file.name}: fetching {self.url}")
        try:
            self._try_often()
        except KeyboardInterrupt:
            if self._here():
                self.say(
                    f"{self.file.name}: stopped; the first {self._here():,} bytes are kept, run "
                    "the same command again to go on"
                )
            raise
        if problem := _problem(self.part, self.file):
            self._forget()
            raise ValueError(f"{self.url}: {problem}; {_remedy(self.file, self.path)}")
        with _clear(self.path):
            # on disk before it has its name, as in `replace_file`
            with open(self.part, "rb") as stream:
                os.fsync(stream.fileno())
            os.replace(self.part, self.path)
            self._forget()

    def _try_often(self) -> None:
        """Try until the file is whole, or until several tries in a row bring nothing new."""
        furthest, failures = self._here(), 0
        while True:
            try:
                self._try()
                return
            except _FailureError as error:
                here = self._here()
                failures = 1 if here > furthest else failures + 1
                furthest = max(here, furthest)
                if failures > len(self.waits):
                    kept = f"; {here:,} bytes are kept" if here else ""
                    raise OSError(
                        f"{self.url}: expected the file, got {error}{kept}; check the network and "
                        f"try again, or {_remedy(self.file, self.path)}"
                    ) from error
                wait = self.waits[failures - 1]
                self.say(f"{self.file.name}: {error}; trying again in {wait:g} s")
                time.sleep(wait)

    def _try(self) -> None:
        """Ask for the file, or for the rest of it, and write what comes."""
        start, version = self._here(), self._version()
        if not version:
            start = 0
        request = urllib.request.Request(self.url)
        request.add_header("User-Agent", f"gumbeltree/{__version__}")
        if start:
            request.add_header("Range", f"bytes={start}-")
            request.add_header("If-Range", version)
        try:
            response = _opener().open(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error, start)
            return
        except (OSError, http.client.HTTPException) as error:
            raise _FailureError(f"no answer ({getattr(error, 'reason', error)})") from error
        with response:
            first, total = _extent(response.status, response.headers)
            if first == 0:
                self._forget()
                self._check_total(total)
                self._write(response, "wb", 0, total)
                return
            if start and first == start and _version_of(response.headers) in (version, ""):
                self._check_total(total)
                self._write(response, "ab", start, total)
                return
        if not start:
            raise self._no_file(f"HTTP {response.status}")
        # not the rest of what is here: once more from the start
        self._forget()
        self._try()

    def _refused(self, error: urllib.error.HTTPError, start: int) -> None:
        """Handle a status that is an error; return if the file is whole."""
        if error.code == 416 and start:
            if _extent(error.code, error.headers)[1] == start:
                return
            self._forget()
            self._try()
            return
        status = f"HTTP {error.code} ({error.reason})"
        if error.code >= 500 or error.code in _PASSING:
            raise _FailureError(status)
        raise self._no_file(status)

    def _no_file(self, came: str) -> OSError:
        return OSError(
            f"{self.url}: expected the file, got {came}; {_remedy(self.file, self.path)}"
        )

    def _check_total(self, total: int | None) -> None:
        """Raise before the transfer if the server has another file than the published one."""
        if None not in (total, self.file.size) and total != self.file.size:
            self._forget()
            raise ValueError(
                f"{self.url}: expected {self.file.size:,} bytes, got {total:,}; "
                f"{_remedy(self.file, self.path)}"
            )

    def _write(
        self, response: http.client.HTTPResponse, mode: str, start: int, total: int | None
    ) -> None:
        here = start
        with _clear(self.part), open(self.part, mode) as stream:
            # after the old part is gone, and before the new one has any bytes
            if mode == "wb" and (version := _version_of(response.headers)):
                self.tag.write_text(version, encoding="utf-8")
            self.progress(self.file.name, here, total)
            for block in _blocks(response):
                stream.write(block)
                here += len(block)
                self.progress(self.file.name, here, total)
        if total is not None and here != total:
            raise _FailureError(f"a connection cut after {here:,} of {total:,} bytes")

    def _here(self) -> int:
        return self.part.stat().st_size if self.part.is_file() else 0

    def _version(self) -> str:
        return self.tag.read_text(encoding="utf-8") if self.tag.is_file() else ""

    def _forget(self) -> None:
        # in this order: a part without a version is never continued
        self.tag.unlink(missing_ok=True)
        self.part.unlink(missing_ok=True)


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Read to the end; failures of the network are told apart from those of the disk."""
    while True:
        try:
            # read1: what has come is written at once, and not lost if nothing follows
            block = response.read1(BLOCK)
        except (OSError, http.client.HTTPException) as error:
            raise _FailureError(f"a broken connection ({error})") from error
        if not block:
            return
        yield block


def _extent(status: int, headers: Message) -> tuple[int | None, int | None]:
    """Return the first byte that a response has, and the number of bytes of the whole file."""
    if status == 200:
        length = headers.get("Content-Length", "")
        return 0, int(length) if length.isdigit() else None
    found = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", headers.get("Content-Range", ""))
    if not found:
        return None, None
    first, total = found.groups()
    return int(first) if first else None, int(total) if total != "*" else None


def _version_of(headers: Message) -> str:
    """Return what tells two versions of a file apart, empty if the server says nothing."""
    etag: str = headers.get("ETag", "")
    # weak ones, W/"...", may be equal for files that differ in some bytes
    strong = etag if etag.startswith('"') else ""
    return strong or headers.get("Last-Modified", "")


@contextmanager
def _clear(path: Path) -> Iterator[None]:
    """Say what to do when something cannot be written."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{path}: expected to write it, got '{error.strerror or error}'; make room or get "
            "leave to write there and run the same command again, or choose another folder with "
            "--to or GUMBELTREE_HOME"
        ) from error


@contextmanager
def _locked(folder: Path, name: str, say: Say) -> Iterator[None]:
    """Make a folder, and keep other processes from fetching the same into it."""
    from filelock import FileLock, Timeout

    with _clear(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f".{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"{name}: waiting for another process that fetches it")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
