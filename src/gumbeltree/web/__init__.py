"""The explorer and its HTTP API, which require FastAPI and uvicorn."""


def check_installed() -> None:
    """Raise an error with the install command unless FastAPI and uvicorn are installed."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "this command requires FastAPI and uvicorn: pip install 'gumbeltree[web]'"
        ) from error
