"""The explorer and the HTTP API behind it; FastAPI and uvicorn are an extra."""


def check_installed() -> None:
    """Raise with the command that installs what serving needs, if it is not there."""
    try:
        import fastapi
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "serving needs FastAPI and uvicorn: pip install 'gumbeltree[web]'"
        ) from error
    del fastapi
