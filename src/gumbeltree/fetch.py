"""Download data sets and word vectors into a cache folder.

A file is streamed to `<file>.part`; `<file>.part.tag` holds the server's ETag or Last-Modified
date. An interrupted download resumes if the server still has that version of the file. Only a
complete and verified file gets its final name.
"""

import hashlib
import http.client
import os
import shutil
import time
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from gumbeltree import __version__
from gumbeltree.atomic import replace_file
from gumbeltree.registry import UnknownNameError, suggest

Say: TypeAlias = Callable[[str], None]
# file name, bytes so far, total bytes if known
Progress: TypeAlias = Callable[[str, int, int | None], None]

# seconds between attempts; after one more failure without new bytes the download is given up
WAITS: Sequence[float] = (1, 2, 4)
TIMEOUT = 30.0
BLOCK = 1 << 18


@dataclass(frozen=True)
class File:
    """A file to download.

    Attributes:
        url: Official address.
        sha256: Checksum, if known.
        size: Number of bytes, if known.
        members: Paths to extract from a zip archive; empty to keep the download as it is.
    """

    url: str
    sha256: str | None = None
    size: int | None = None
    members: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]

    def is_complete(self, folder: Path) -> bool:
        """Return whether `folder` has the file, or all members of the archive."""
        names = [PurePosixPath(member).name for member in self.members] or [self.name]
        return all((folder / name).is_file() for name in names)


@dataclass(frozen=True)
class Source:
    """A data set or a file of word vectors.

    Attributes:
        name: Name on the command line.
        description: What it contains.
        page: Web page of its authors.
        licence: Terms of use.
        citation: Paper to cite.
        files: Files to download.
        vectors: Whether this is a file of word vectors rather than a folder of splits.
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
        """Bytes to download, None if unknown."""
        sizes = [file.size for file in self.files if file.size is not None]
        return sum(sizes) if len(sizes) == len(self.files) else None

    def folder(self) -> Path:
        """Return its folder in the cache."""
        return home() / "data" / self.name

    def path(self, folder: Path) -> Path:
        """Return the path other commands take: the file of word vectors, or the folder."""
        return folder / self.files[0].name if self.vectors else folder

    def is_complete(self, folder: Path) -> bool:
        """Return whether all files are in `folder`."""
        return all(file.is_complete(folder) for file in self.files)


def _read_sources() -> dict[str, Source]:
    table = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))
    return {
        name: Source(name, files=tuple(File(**file) for file in entry.pop("files")), **entry)
        for name, entry in table.items()
    }


SOURCES = _read_sources()


class DownloadError(OSError):
    """The server cannot be reached or does not have the file."""


class _TransientError(Exception):
    """A failure that another attempt may get past."""


def home() -> Path:
    """Return the cache folder, which need not exist.

    This is `$GUMBELTREE_HOME`, else `$XDG_CACHE_HOME/gumbeltree`, else `~/.cache/gumbeltree`.
    """
    if chosen := os.environ.get("GUMBELTREE_HOME"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gumbeltree"


def find_source(name: str) -> Source:
    """Return the source called `name`, or raise an error that suggests the closest name."""
    if name not in SOURCES:
        known = list(SOURCES)
        raise UnknownNameError(
            f"unknown data {name!r}; known: {', '.join(known)}.{suggest(name, known)}"
        )
    return SOURCES[name]


def address(url: str) -> str:
    """Return `url`, or the same path on the server `GUMBELTREE_MIRROR`."""
    mirror = os.environ.get("GUMBELTREE_MIRROR", "").rstrip("/")
    if not mirror:
        return url
    parts = urlsplit(mirror)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(
            f"GUMBELTREE_MIRROR is {mirror!r}, but must be an http or https address such as "
            "https://example.org"
        )
    return mirror + urlsplit(url).path


def get(
    name: str,
    to: Path | None = None,
    force: bool = False,
    say: Say = lambda text: None,
    progress: Progress = lambda name, done, total: None,
) -> Path:
    """Download a data set or word vectors, unless all files exist.

    Args:
        name: Name in `SOURCES`.
        to: Target folder; the cache if None.
        force: Whether to download existing files again.
        say: Called with a message for every step.
        progress: Called with file name, bytes so far and total bytes (None if unknown).

    Returns:
        The folder, or the file of word vectors.

    Raises:
        ValueError: If the name is unknown or a file has the wrong size or checksum.
        OSError: If the download fails or files cannot be written.
    """
    source = find_source(name)
    folder = source.folder() if to is None else to
    if source.is_complete(folder) and not force:
        say(f"{name}: already in {folder}")
        return source.path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, name, say):
            for file in source.files:
                if force or not file.is_complete(folder):
                    _get_file(file, folder, force, say, progress)
    except DownloadError:
        raise
    except OSError as error:
        raise OSError(
            f"cannot write to {folder}: {error.strerror or error}; free disk space or check "
            "permissions and run the command again, or choose another folder with --to or "
            "GUMBELTREE_HOME"
        ) from error
    return source.path(folder)


def _locked(folder: Path, name: str, say: Say) -> AbstractContextManager[Any]:
    """Wait until no other process downloads the same data into `folder`."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / f".{name}.lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        say(f"{name}: waiting for another process that is downloading it")
        return lock.acquire()


def _get_file(file: File, folder: Path, force: bool, say: Say, progress: Progress) -> None:
    """Download, verify and unpack one file; an archive the user put there is used and kept."""
    target, part = folder / file.name, folder / f"{file.name}.part"
    by_hand = target.is_file() and not force
    if by_hand:
        say(f"{file.name}: already in {folder}")
    else:
        _download(file, part, say, progress)
    content = target if by_hand else part
    problem = _problem(content, file)
    _tag(part).unlink(missing_ok=True)
    if problem:
        part.unlink(missing_ok=True)
        raise ValueError(
            f"{content if by_hand else address(file.url)}: {problem}; put a correct copy at "
            f"{target} and run the command again"
        )
    if file.members:
        say(f"{file.name}: unpacking")
        _unpack(content, file.members, folder)
        part.unlink(missing_ok=True)
    else:
        os.replace(part, target)


def _problem(path: Path, file: File) -> str:
    """Return how a file differs from the published one, or an empty string."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"the file has {size:,} bytes instead of {file.size:,}"
    if file.sha256 is not None:
        with open(path, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != file.sha256:
            return f"the file has sha256 {digest} instead of {file.sha256}"
    return ""


def _unpack(path: Path, members: Sequence[str], folder: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for member in members:

            def copy(target: Path, member: str = member) -> None:
                with archive.open(member) as packed, open(target, "wb") as stream:
                    shutil.copyfileobj(packed, stream, BLOCK)

            replace_file(folder / PurePosixPath(member).name, copy)


def _download(file: File, part: Path, say: Say, progress: Progress) -> None:
    """Download a file to `part`, retrying and resuming as long as new bytes arrive."""
    url = address(file.url)
    say(f"{file.name}: downloading {url}")
    furthest, failures = _size(part), 0
    while True:
        try:
            return _transfer(file, url, part, progress)
        except _TransientError as error:
            failures = 1 if _size(part) > furthest else failures + 1
            furthest = max(_size(part), furthest)
            if failures > len(WAITS):
                raise DownloadError(
                    f"cannot download {url}: {error}; check the network and run the command again "
                    "to resume, or set GUMBELTREE_MIRROR to another server"
                ) from error
            say(f"{file.name}: {error}; retrying in {WAITS[failures - 1]:g} s")
            time.sleep(WAITS[failures - 1])


def _transfer(file: File, url: str, part: Path, progress: Progress) -> None:
    """Request a file, or the rest of it, and write what arrives to `part`."""
    tag = _tag(part)
    start = _size(part) if tag.is_file() else 0
    if start and start == file.size:
        return
    request = urllib.request.Request(url, headers={"User-Agent": f"gumbeltree/{__version__}"})
    if start:
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", tag.read_text(encoding="utf-8"))
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        status = f"HTTP {error.code} ({error.reason})"
        if error.code == 416:
            # nothing left to send: start over, without the partial file
            tag.unlink()
        if error.code >= 500 or error.code in (408, 416, 425, 429):
            raise _TransientError(status) from error
        raise DownloadError(
            f"cannot download {url}: {status}; put {file.name} at {part.with_name(file.name)} "
            "yourself, or set GUMBELTREE_MIRROR to another server"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise _TransientError(f"no answer ({getattr(error, 'reason', error)})") from error
    with response:
        if response.status != 206:
            start = 0
        length = response.headers["Content-Length"]
        total = start + int(length) if length else None
        with open(part, "ab" if start else "wb") as stream:
            if not start:
                tag.unlink(missing_ok=True)
                if version := _version(response.headers):
                    tag.write_text(version, encoding="utf-8")
            done = start
            progress(file.name, done, total)
            for block in _blocks(response):
                done += stream.write(block)
                progress(file.name, done, total)
            stream.flush()
            os.fsync(stream.fileno())
    if total is not None and done != total:
        raise _TransientError(f"connection closed after {done:,} of {total:,} bytes")


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield bytes as they arrive, so that none are lost when the connection breaks."""
    try:
        while block := response.read1(BLOCK):
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise _TransientError(f"connection broken ({error})") from error


def _version(headers: Message) -> str:
    """Return the strong ETag or the date of a response, or an empty string."""
    etag: str = headers.get("ETag", "")
    # weak ETags, W/"...", do not promise identical bytes
    return etag if etag.startswith('"') else headers.get("Last-Modified", "")


def _tag(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0
