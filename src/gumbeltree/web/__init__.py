"""The explorer and its HTTP API, which require FastAPI and uvicorn."""

from importlib.util import find_spec

from gumbeltree.extras import install_command


def check_installed() -> None:
    """Raise an error with the install command unless FastAPI and uvicorn are installed."""
    # without importing them, because only the processes that serve need them
    if not (find_spec("fastapi") and find_spec("uvicorn")):
        raise ImportError(f"this command requires FastAPI and uvicorn: {install_command('web')}")
