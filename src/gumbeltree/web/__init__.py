"""The explorer and its HTTP API, which require FastAPI and uvicorn."""

from gumbeltree.extras import install_command


def check_installed() -> None:
    """Raise an error with the install command unless FastAPI and uvicorn are installed."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"this command requires FastAPI and uvicorn: {install_command('web')}"
        ) from error
