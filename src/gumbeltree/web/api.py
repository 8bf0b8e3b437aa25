"""The HTTP API: an application made of models."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gumbeltree import __version__
from gumbeltree.model import SentenceModel
from gumbeltree.web import schema, service
from gumbeltree.web.guards import BUSY, Bodies, Hosts, Outside, Token
from gumbeltree.web.limits import LIMITS, ServerSettings
from gumbeltree.web.phrases import EXAMPLES
from gumbeltree.web.service import RefusedError, Served
from gumbeltree.web.worker import BusyError, Call, LateError, Worker

if TYPE_CHECKING:
    from gumbeltree.analysis.index import Index

STATIC = Path(__file__).parent / "static"
HEALTH, SCHEMA = "/api/health", "/api/openapi.json"
PIECE = 2**16
"""Bytes of an answer that are sent at once."""
NUMBER = 12
"""Bytes of a number in an answer, at least: most have 20, and other things stand between them."""
# of the page; modules of JavaScript are refused by browsers under another type
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}

DESCRIPTION = """Trees, classes and vectors of sentences by Gumbel Tree-LSTMs.

Requests and answers are JSON. Requests that come at the same time are answered together; a server
that cannot keep up answers 503 with `Retry-After`. Errors have a `detail` that says what was
expected."""

FAILURES: dict[int | str, dict[str, Any]] = {
    401: {"description": "The token is missing or wrong, on a server that has one."},
    421: {"description": "The Host header holds a name that is not the server's."},
    500: {"description": "An error of the server.", "model": schema.UnexpectedFailure},
}
POST_FAILURES: dict[int | str, dict[str, Any]] = {
    404: {"description": "No model has that name; the known ones are listed."},
    408: {"description": "The body of the request came too slowly."},
    413: {"description": "The body of the request is too large."},
    415: {"description": "The body of the request is not declared to be JSON."},
    422: {"description": "The request cannot be used as it is."},
    503: {
        "description": "Too many requests wait, or the server ends.",
        "headers": {
            "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}
        },
    },
    504: {"description": "The request waited too long and was given up."},
}


def _documented(*tables: dict[int | str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    rows = {status: row for table in tables for status, row in table.items()}
    return {status: {"model": schema.Failure, **row} for status, row in sorted(rows.items())}


class Api:
    """What the routes of one application share.

    Args:
        models: by the names that clients use.
        settings: of the server.
    """

    def __init__(self, models: Mapping[str, Served], settings: ServerSettings) -> None:
        self.models = dict(models)
        self.settings = settings
        self.worker = Worker(settings.queue, settings.linger, settings.batch)

    def named(self, name: str) -> Served:
        """Return a model, or refuse the name."""
        if name not in self.models:
            known = ", ".join(self.models)
            raise HTTPException(404, f"model: no such model; known: {known}")
        return self.models[name]

    def with_trees(self, name: str) -> Served:
        """Return a model that builds trees, or refuse the name."""
        served = self.named(name)
        if not served.has_trees:
            kind = served.model.config.encoder.kind
            raise HTTPException(422, f"model: expected one that builds trees, got one of {kind!r}")
        return served

    async def ask(
        self,
        kind: tuple[object, ...],
        call: Call,
        items: Sequence[Any],
        field: str | None = None,
        one_by_one: bool = False,
    ) -> list[str]:
        """Return the JSON of the answer to each item, or raise what the client is told.

        Args:
            kind: what is asked of which model; the same kind is answered together.
            call: answers items of that kind.
            items: of one request.
            field: what the client calls an item, for messages; None is by its number in `texts`.
            one_by_one: whether other requests come in between, as each item takes long.
        """
        deadline = asyncio.get_running_loop().time() + self.settings.timeout
        groups = [[item] for item in items] if one_by_one else [items]
        answers: list[str | RefusedError] = []
        try:
            for number, group in enumerate(groups):
                answers += await self.worker.run(kind, call, group, deadline, again=number > 0)
                if isinstance(answers[-1], RefusedError):
                    break
                _check_size(
                    sum(len(answer.encode()) for answer in answers if isinstance(answer, str))
                )
        except BusyError:
            raise HTTPException(503, BUSY, {"Retry-After": "1"}) from None
        except LateError:
            waited = f"no answer within {self.settings.timeout:g} seconds; ask for less, or later"
            raise HTTPException(504, waited) from None
        found = []
        for number, answer in enumerate(answers):
            if isinstance(answer, RefusedError):
                place = answer.field or field or f"texts.{number}"
                raise HTTPException(422, f"{place}: {answer}")
            found.append(answer)
        return found


def create_app(
    models: Mapping[str, SentenceModel],
    settings: ServerSettings | None = None,
    indexes: Mapping[str, "Index"] | None = None,
) -> FastAPI:
    """Return the API as an ASGI application.

    Args:
        models: by the names that clients use, in the order in which they are listed.
        settings: of the server.
        indexes: sentences to search, by the names of the models that encoded them.
    """
    settings = ServerSettings() if settings is None else settings
    indexes = indexes or {}
    served = {name: Served(name, model, indexes.get(name)) for name, model in models.items()}
    api = Api(served, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(api.worker.close)

    app = FastAPI(
        title="gumbeltree",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=SCHEMA,
        # both load their scripts from elsewhere
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.api = api
    _add_handlers(app)
    _add_questions(app, api)
    _add_answers(app, api)
    pages = page_files() if settings.page else {}
    for path, file in pages.items():
        app.add_api_route(path, _sender(*file), include_in_schema=False, methods=["GET"])
    _add_guards(app, settings, list(pages))
    _add_schema(app, api)
    return app


def _add_guards(app: FastAPI, settings: ServerSettings, pages: list[str]) -> None:
    """Put checks around an application, the innermost first."""
    routes = {
        str(getattr(route, "path", "")): getattr(route, "methods", None) or ()
        for route in app.routes
    }
    app.add_middleware(
        Bodies,
        paths=[path for path, methods in routes.items() if "POST" in methods],
        limit=LIMITS.body,
        seconds=settings.client_seconds,
        requests=settings.requests,
    )
    if settings.token is not None:
        app.add_middleware(Token, token=settings.token, free=[HEALTH, *pages])
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After"],
        )
    if settings.hosts is not None:
        app.add_middleware(Hosts, names=settings.hosts)
    app.add_middleware(Outside, pages=pages, paths=routes, access_log=settings.access_log)


def _add_handlers(app: FastAPI) -> None:
    """Let every error be a short message in JSON."""

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400:
            # FastAPI's word for bytes that are no text, or nested too deeply
            return JSONResponse({"detail": "body: expected JSON in UTF-8"}, 422)
        return JSONResponse({"detail": error.detail}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def explain(request: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"detail": "; ".join(map(_message, error.errors()[:3]))}, 422)


def _message(error: Mapping[str, Any]) -> str:
    """Return where something is wrong and what; what was sent is not repeated."""
    place = [str(part)[:40] for part in error["loc"] if part != "body"]
    if error["type"] == "json_invalid":
        place = []
    message = str(error["msg"])
    if error["type"] == "string_pattern_mismatch":
        message = "Text should have at least one word"
    return f"{'.'.join(place) or 'body'}: {message}"


def _add_questions(app: FastAPI, api: Api) -> None:
    """Add the routes that need no model to run."""
    about = {
        "models": [served.about() for served in api.models.values()],
        "limits": {name: getattr(LIMITS, name) for name in schema.AboutLimits.model_fields},
    }

    @app.get(HEALTH, response_model=schema.Health, responses=_documented({421: FAILURES[421]}))
    async def health() -> Response:
        """Say that the server runs, and how many requests wait. Needs no token."""
        queue = {"waiting": api.worker.waiting, "limit": api.worker.limit}
        return JSONResponse(
            {"status": "ok", "version": __version__, "models": len(api.models), "queue": queue}
        )

    @app.get("/api/models", response_model=schema.Models, responses=_documented(FAILURES))
    async def models() -> Response:
        """List the models, and how much one request may hold."""
        return JSONResponse(about)


def _add_answers(app: FastAPI, api: Api) -> None:
    """Add the routes that run a model."""
    failures = _documented(FAILURES, POST_FAILURES)

    @app.post("/api/parse", response_model=schema.ParseAnswer, responses=failures)
    async def parse(request: schema.ParseRequest) -> Response:
        """Return the tree of each sentence: candidates, choices and nodes with their classes."""
        served = api.with_trees(request.model)
        longest = min(LIMITS.words, served.model.config.max_words)
        words = [min(len(text.split()), longest) for text in request.texts]
        # two numbers for each candidate of each layer
        _check_size(NUMBER * sum(count * (count - 1) for count in words))
        options = (request.seed, request.temperature, request.samples)

        def call(texts: list[str]) -> service.Answers:
            return service.parse(served, texts, *options)

        kind: tuple[object, ...] = ("parse", served.name, *options)
        if request.samples:
            # a call for many of these would take longer than anybody waits
            kind = (*kind, object())
        results = await api.ask(kind, call, request.texts, one_by_one=request.samples > 0)
        return _Json('{"results":[', results, "]}")

    @app.post("/api/predict", response_model=schema.PredictAnswer, responses=failures)
    async def predict(request: schema.PredictRequest) -> Response:
        """Return the class of each sentence, or of each pair."""
        served = api.named(request.model)
        second: Sequence[str | None] = [None] * len(request.texts)
        if served.pair:
            if request.second is None or len(request.second) != len(request.texts):
                raise HTTPException(
                    422, "second: expected as many texts as in `texts`: the model is of pairs"
                )
            second = request.second
        elif request.second is not None:
            raise HTTPException(422, "second: expected null: the model is of single sentences")
        items = list(zip(request.texts, second, strict=True))
        results = await api.ask(("predict", served.name), partial(service.predict, served), items)
        return _Json('{"results":[', results, "]}")

    @app.post("/api/encode", response_model=schema.EncodeAnswer, responses=failures)
    async def encode(request: schema.EncodeRequest) -> Response:
        """Return the vector of each sentence."""
        served = api.named(request.model)
        width = served.model.encoder.vector_dim
        _check_size(NUMBER * width * len(request.texts))
        call = partial(service.encode, served)
        vectors = await api.ask(("encode", served.name), call, request.texts)
        return _Json(f'{{"width":{width},"vectors":[', vectors, "]}")

    @app.post("/api/neighbours", response_model=schema.NeighboursAnswer, responses=failures)
    async def neighbours(request: schema.NeighboursRequest) -> Response:
        """Return what is most like a sentence or a part of it: sentences of the index, or phrases.

        Parts are compared with the parts of example sentences, and so are whole sentences on a
        server that has no index for the model.
        """
        served = api.named(request.model)
        call: Call
        if request.span is None and served.index is not None:
            source, call = "index", partial(service.similar_sentences, served)
            items: list[Any] = [(request.text, request.k)]
        else:
            served = api.with_trees(request.model)
            source, call = "phrases", partial(service.similar_phrases, served)
            items = [(request.text, request.span, request.k)]
        found = await api.ask((source, served.name), call, items, "text")
        return _Json(f'{{"source":"{source}","neighbours":', found, "}")


def _check_size(size: int) -> None:
    """Refuse an answer of more bytes than allowed."""
    if size > LIMITS.answer:
        raise HTTPException(
            422,
            f"texts: expected an answer of at most {LIMITS.answer} bytes, got more; ask for fewer "
            "or shorter texts at a time",
        )


class _Json(Response):
    """Answers that are JSON already, with what stands around them; sent in pieces.

    The next piece is sent when the client has taken the last, so that a client that takes nothing
    does not fill the memory.
    """

    media_type = "application/json"

    def __init__(self, before: str, answers: list[str], after: str) -> None:
        super().__init__(f"{before}{','.join(answers)}{after}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        size = len(self.body)
        for begin in range(0, size, PIECE):
            part, more = self.body[begin : begin + PIECE], begin + PIECE < size
            await send({"type": "http.response.body", "body": part, "more_body": more})


def _add_schema(app: FastAPI, api: Api) -> None:
    """Name the models in the OpenAPI document, so that it says all that can be asked for."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                servers=[{"url": api.settings.root_path}] if api.settings.root_path else None,
            )
            for about in made["components"]["schemas"].values():
                if about.get("title", "").endswith("Request"):
                    about["properties"]["model"]["enum"] = list(api.models)
            if api.settings.token is not None:
                made["components"]["securitySchemes"] = {
                    "token": {"type": "http", "scheme": "bearer"}
                }
                made["security"] = [{"token": []}]
                made["paths"][HEALTH]["get"]["security"] = []
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def page_files() -> dict[str, tuple[bytes, str]]:
    """Return the page's files, content and type, by the path at which each is served.

    They are read once. Nothing of a request ever becomes a path.
    """
    places = [*sorted(STATIC.glob("*")), EXAMPLES]
    files = {
        f"/static/{path.name}": (path.read_bytes(), KINDS[path.suffix])
        for path in places
        if path.is_file() and path.suffix in KINDS and path.name != "index.html"
    }
    index = STATIC / "index.html"
    if not index.is_file():
        raise FileNotFoundError(f"{index} is missing: the package is not whole; install it anew")
    return {"/": (index.read_bytes(), KINDS[".html"]), **files}


def _sender(content: bytes, kind: str) -> Callable[..., Any]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'

    async def send(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        return Response(content, media_type=kind, headers={"ETag": tag})

    return send
