"""Download data sets and word vectors into a cache folder.

A file is streamed to `<file>.part` and gets its final name once it is complete and verified. An
interrupted download of a file with a known checksum resumes where it stopped.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias
from urllib.parse import urlsplit

from gumbeltree import __version__
from gumbeltree.atomic import replace_file
from gumbeltree.registry import UnknownNameError, suggest

Say: TypeAlias = Callable[[str], None]
# file name, bytes so far, total bytes if known
Progress: TypeAlias = Callable[[str, int, int | None], None]

# seconds to wait before each retry
WAITS: Sequence[float] = (1, 2, 4)
TIMEOUT = 30.0
BLOCK = 1 << 18
MOST_BYTES = 1 << 28
"""Maximum size of a download whose size is not known; GitHub stores files of up to 100 MB."""
NETWORK_ERRORS = urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException


@dataclass(frozen=True)
class File:
    """A file to download.

    Attributes:
        url: Official URL.
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
        """File name: the last part of the URL."""
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
        """Return the folder of this source in the cache."""
        return home() / "data" / self.name

    def path(self, folder: Path) -> Path:
        """Return the path that other commands take: the file of word vectors, or the folder."""
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
    """Return `url`, or the same path on the server in `GUMBELTREE_MIRROR`."""
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
    from filelock import FileLock

    source = find_source(name)
    folder = source.folder() if to is None else to
    if source.is_complete(folder) and not force:
        say(f"{name}: already in {folder}")
        return source.path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # another process may be downloading the same data
        with FileLock(folder / f".{name}.lock"):
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


def _get_file(file: File, folder: Path, force: bool, say: Say, progress: Progress) -> None:
    """Download, verify and unpack one file; a file that the user put there is used and kept."""
    target, part = folder / file.name, folder / f"{file.name}.part"
    by_hand = target.is_file() and not force
    if by_hand:
        say(f"{file.name}: already in {folder}")
    else:
        _download(file, part, say, progress)
    content = target if by_hand else part
    if problem := _problem(content, file, None if by_hand else MOST_BYTES):
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


def _problem(path: Path, file: File, most: int | None) -> str:
    """Return how a file differs from the published one, or an empty string.

    Args:
        path: the file.
        file: the published one.
        most: maximum number of bytes if the size is not known.
    """
    size = path.stat().st_size
    if file.size is None and most is not None and size > most:
        return f"the file has more than {most:,} bytes, the limit for files of unknown size"
    if file.size is not None and size != file.size:
        found = f"more than {file.size:,}" if size > file.size else f"{size:,}"
        return f"the file has {found} bytes instead of {file.size:,}"
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
    """Download a file to `part`, retrying after network errors."""
    url = address(file.url)
    say(f"{file.name}: downloading {url}")
    for wait in (*WAITS, None):
        try:
            return _transfer(file, url, part, progress)
        except NETWORK_ERRORS as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            code, reason = getattr(error, "code", None), getattr(error, "reason", error)
            problem = f"HTTP {code} ({reason})" if code else f"{reason}"
            lasting = code is not None and code < 500 and code != 429
            if lasting or wait is None:
                raise DownloadError(
                    f"cannot download {url}: {problem}; check the network and run the command "
                    f"again, put the file at {part.with_suffix('')} yourself, or set "
                    "GUMBELTREE_MIRROR to another server"
                ) from error
            say(f"{file.name}: {problem}; retrying in {wait:g} s")
            time.sleep(wait)


def _transfer(file: File, url: str, part: Path, progress: Progress) -> None:
    """Request a file, or the rest of it, and write what arrives to `part`."""
    # only a checksum can confirm that both parts belong to the same version of the file
    start = part.stat().st_size if file.sha256 and part.is_file() else 0
    if file.size is not None and start >= file.size:
        return
    headers = {"User-Agent": f"gumbeltree/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        done = start if response.status == 206 else 0
        length = response.headers["Content-Length"]
        total = done + int(length) if length else None
        most = MOST_BYTES if file.size is None else file.size
        with open(part, "ab" if done else "wb") as stream:
            progress(file.name, done, total)
            # read1 returns bytes as they arrive, so that none are lost when the connection breaks
            while block := response.read1(BLOCK):
                done += stream.write(block)
                progress(file.name, done, total)
                if done > most:
                    # not the published file; `_problem` reports it
                    return
    if total is not None and done != total:
        raise ConnectionError(f"connection closed after {done:,} of {total:,} bytes")
