"""Commands that install optional dependencies, for the way this package was installed."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import Any

NAME = "gumbeltree"
TORCH_PACKAGES = ("torch", "lightning_fabric")
"""Packages of the extra `torch`, by the names of their modules."""
CPU_TORCH = ("torch", "--index-url", "https://download.pytorch.org/whl/cpu")
"""Arguments of pip that install PyTorch without CUDA; see docs/install.md."""


def install_command(extra: str) -> str:
    """Return a shell command that adds an extra, such as `"torch"`, to this installation."""
    command = pip_command(*_requirements(extra))
    if extra == "torch" and sys.platform == "linux" and not (has_torch() or has_nvidia_driver()):
        # otherwise, pip downloads gigabytes of CUDA libraries
        return f"{pip_command(*CPU_TORCH)} && {command}"
    return command


def has_torch() -> bool:
    """Return whether torch is installed, without importing it."""
    return util.find_spec("torch") is not None


def has_nvidia_driver() -> bool:
    """Return whether a driver of NVIDIA GPUs is installed."""
    import ctypes

    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def torch_is_missing(what: str) -> str:
    """Return the error message of something that needs torch, which is not installed."""
    return is_missing(what, "PyTorch", "torch")


@contextmanager
def needs(what: str, package: str, extra: str, *modules: str) -> Iterator[None]:
    """Replace the error of a missing package by one that names the command to install it.

    Args:
        what: what imports the package in this context.
        package: name of the package, for the message.
        extra: extra that installs it.
        modules: top-level modules that the extra installs.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in modules:
            raise
        raise ImportError(is_missing(what, package, extra)) from error


def is_missing(what: str, package: str, extra: str) -> str:
    """Return the error message of something that needs a package of an extra."""
    return f"{what} needs {package}, which is not installed; run: {install_command(extra)}"


def pip_command(*arguments: str) -> str:
    """Return a shell command that installs into the environment of the running interpreter."""
    words = [*_installer(), *arguments]
    if os.name == "nt":
        from subprocess import list2cmdline

        return list2cmdline(words)
    return shlex.join(words)


def _requirements(extra: str) -> list[str]:
    """Return the arguments that install this package with an extra from where it came."""
    origin = _origin()
    url = origin.get("url", "")
    if not url:
        return [f"{NAME}[{extra}]"]
    if not url.startswith("file:"):
        return [f"{NAME}[{extra}] @ {_remote(url, origin)}"]
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    path = url2pathname(urlsplit(url).path)
    if not os.path.exists(path):  # a wheel that was deleted: install what the extra lists
        return _listed(extra) or [f"{NAME}[{extra}]"]
    editable = ["-e"] if origin.get("dir_info", {}).get("editable") else []
    return [*editable, f"{path}[{extra}]"]


def _origin() -> dict[str, Any]:
    """Return the contents of direct_url.json, empty for a package from an index."""
    from importlib import metadata

    try:
        text = metadata.distribution(NAME).read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # used from a source folder
        root = Path(__file__).parents[2]
        found = (root / "pyproject.toml").is_file()
        return {"url": root.as_uri(), "dir_info": {"editable": True}} if found else {}
    return json.loads(text) if text else {}


def _remote(url: str, origin: dict[str, Any]) -> str:
    """Return the URL of an archive or of the installed commit of a repository."""
    version = origin.get("vcs_info")
    if version:
        url = f"{version['vcs']}+{url}@{version['commit_id']}"
    folder = origin.get("subdirectory")
    return f"{url}#subdirectory={folder}" if folder else url


def _listed(extra: str) -> list[str]:
    """Return the requirements that the package's metadata lists for an extra."""
    from importlib import metadata

    listed = (line.partition(";") for line in metadata.requires(NAME) or ())
    return [name.strip() for name, _, when in listed if f'"{extra}"' in when.replace("'", '"')]


def _installer() -> list[str]:
    """Return the words of a command that installs into the running interpreter's environment."""
    prefix, python = Path(sys.prefix), sys.executable or "python"
    if (prefix / "pipx_metadata.json").is_file():
        return ["pipx", "runpip", prefix.name, "install"]
    if util.find_spec("pip") is None and (shutil.which("uv") or _made_by_uv(prefix)):
        active = os.environ.get("VIRTUAL_ENV") == sys.prefix
        return ["uv", "pip", "install", *([] if active else ["--python", python])]
    if _beside("pip", python):
        return ["pip", "install"]
    return ["python" if _beside("python", python) else python, "-m", "pip", "install"]


def _made_by_uv(prefix: Path) -> bool:
    """Return whether uv created the virtual environment at `prefix`."""
    settings = prefix / "pyvenv.cfg"
    return settings.is_file() and any(
        line.partition("=")[0].strip() == "uv"
        for line in settings.read_text(encoding="utf-8").splitlines()
    )


def _beside(program: str, python: str) -> bool:
    """Return whether the shell finds `program` in the folder of the running interpreter."""
    found = shutil.which(program)
    folders = (Path(python).parent, Path(python).parent / "Scripts")  # pip's folder on Windows
    return found is not None and Path(found).parent in folders
