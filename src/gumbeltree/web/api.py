"""The HTTP API as an ASGI application."""

import asyncio
import contextlib
import gzip
import hashlib
import inspect
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gumbeltree import __version__
from gumbeltree.encoded import MissingInputError
from gumbeltree.text_model import TextModel
from gumbeltree.web import schema, service
from gumbeltree.web.guards import BUSY, Bodies, Endpoint, Hosts, Outside, Token
from gumbeltree.web.limits import LIMITS, ServerSettings
from gumbeltree.web.phrases import EXAMPLES
from gumbeltree.web.service import RefusedError, Served
from gumbeltree.web.worker import MARGIN, STUCK_SECONDS, BusyError, Call, LateError, Worker

if TYPE_CHECKING:
    from gumbeltree.analysis.index import Index

Kind: TypeAlias = tuple[str, str, *tuple[object, ...]]
"""Operation, name of the model, and options of a request."""

STATIC = Path(__file__).parent / "static"
HEALTH, SCHEMA = "/api/health", "/api/openapi.json"
WARM_UP = 20
"""Number of trees in the calls that measure how long sampling and beam search take."""
SAMPLING = 16
"""What sampling or beam search costs besides the trees: about as much as this many trees."""
CHUNK_BYTES = 2**16
"""Responses are sent in chunks of this size."""
JSON_HEADERS = [(b"content-type", b"application/json")]
NUMBER_BYTES = 12
"""Lower bound on the size of a number in a response; most take 20 bytes."""
WORD = re.compile(r"\w+|[^\w\s]")
GZIP = re.compile(r"(?:^|,)\s*gzip\s*(?:$|,|;\s*q=(?!0(?:\.0*)?\s*(?:,|$)))", re.IGNORECASE)
"""Matches the header Accept-Encoding of clients that accept gzip; the weight 0 means not."""
# browsers reject JavaScript modules of any other type
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}

DESCRIPTION = """Parse, classify and encode sentences with Gumbel Tree-LSTMs.

Requests and responses are JSON. Concurrent requests are batched; an overloaded server responds with
503 and `Retry-After`. The `detail` of an error says what is wrong."""

ERRORS = {
    400: "The request is not valid HTTP.",
    401: "The server requires a token, and it is missing or wrong.",
    404: "Unknown model; the message lists the available ones.",
    408: "The request body was not received in time.",
    413: "The request body is too large.",
    415: "The Content-Type is not application/json.",
    421: "The server does not accept the name in the Host header.",
    422: "The request is invalid; the message names the field.",
    429: "Too many unfinished requests from one address.",
    500: "Internal server error.",
    503: "The server is overloaded or shutting down.",
    504: "The request timed out.",
}
DRAWING = {"seed", "temperature", "samples", "tree"}
"""Fields of a prediction that ask for other trees than the model's choice."""
RETRY_AFTER = {"description": "Seconds until a retry.", "schema": {"type": "integer"}}


def _documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a route for the OpenAPI document."""
    errors: dict[int | str, dict[str, Any]] = {
        status: {"description": ERRORS[status], "model": schema.Failure} for status in statuses
    }
    if 500 in errors:
        errors[500]["model"] = schema.UnexpectedFailure
    for status in errors.keys() & {429, 503}:
        errors[status]["headers"] = {"Retry-After": RETRY_AFTER}
    return errors


class Api:
    """State shared by the routes of an application."""

    def __init__(self, models: Mapping[str, Served], settings: ServerSettings) -> None:
        self.models = dict(models)
        self.settings = settings
        self.worker = Worker(settings.queue, settings.linger, settings.batch)

    def find(self, name: str, trees: bool = False) -> Served:
        """Return a model by name; raise if it is unknown, or if `trees` and it builds none."""
        if name not in self.models:
            known = ", ".join(self.models)
            raise HTTPException(404, f"model: no such model; available: {known}")
        served = self.models[name]
        if trees and not served.has_trees:
            kind = served.model.config.encoder.kind
            raise HTTPException(422, f"model: {name} has a {kind!r} encoder, which builds no trees")
        return served

    async def warm_up(self) -> None:
        """Measure how long sampling and beam search take, and compute the reference phrases.

        The measurements decide how many large requests are accepted.
        """
        for name, served in self.models.items():
            if not served.has_trees:
                continue
            sentences = served.examples
            long = " ".join(sentences[:9])
            options = [service.Options(samples=WARM_UP)]
            if served.model.encoder.why_no_beams() is None:
                options.append(service.Options(beams=WARM_UP))
            similar = partial(service.similar_phrases, served)
            await self._try(("start", name), similar, (sentences[0], None, 1))
            for one in options:
                call = partial(service.parse, served, options=one)
                # the first call of a process takes longer
                await self._try(("start", name), call, sentences[0], WARM_UP)
                await self._try((_operation(one), name), call, long, WARM_UP)

    async def _try(self, kind: Kind, call: Call, item: Any, samples: int = 0) -> None:
        # requests report errors
        with contextlib.suppress(Exception):
            await self.run(kind, call, [item], samples=samples)

    async def run(
        self,
        kind: Kind,
        call: Call,
        items: Sequence[Any],
        field: str | None = None,
        samples: int = 0,
    ) -> list[str]:
        """Return the JSON result of each item; raise an error response if one fails.

        Args:
            kind: requests of the same kind are batched.
            call: processes a batch of that kind.
            items: the items of one request.
            field: name of the item in error messages; by default, its index in `texts`.
            samples: sampled or most probable trees per text.
        """
        timeout = self.settings.timeout
        # longer texts are truncated
        limit = min(LIMITS.words, self.models[kind[1]].model.config.max_words)
        least, most = zip(*(_words(item, limit) for item in items), strict=True)
        costs = [words * (SAMPLING + samples if samples else 1) for words in most]
        # others may take much less time than expected
        typical = 2 * sum(least) >= sum(most)
        try:
            answers = await self.worker.run(kind, call, items, costs, timeout, _is_enough, typical)
        except BusyError as busy:
            detail, seconds = BUSY, math.ceil(busy.seconds)
            if busy.alone is not None:
                detail = (
                    f"the request would take about {busy.alone:.0f} s, and the limit is "
                    f"{MARGIN * timeout:g} s; send fewer texts or samples"
                )
            raise HTTPException(503, detail, {"Retry-After": str(max(1, seconds))}) from None
        except MissingInputError as error:
            raise HTTPException(422, f"model: {error}") from None
        except LateError:
            late = f"timed out after {timeout:g} s; send fewer texts or retry"
            raise HTTPException(504, late) from None
        for place, answer in enumerate(answers):
            if isinstance(answer, RefusedError):
                raise HTTPException(422, f"{answer.field or field or f'texts.{place}'}: {answer}")
        _check_size(sum(len(answer.encode()) for answer in answers))
        return answers


def _operation(options: service.Options) -> str:
    """Return the name of a parse with further trees, whose duration is measured separately."""
    return "+".join(name for name in ("samples", "beams") if getattr(options, name))


def _is_enough(answers: list[str | RefusedError]) -> bool:
    """Return whether the response is an error, whatever the other results are."""
    if any(isinstance(answer, RefusedError) for answer in answers):
        return True
    return sum(map(len, answers)) > LIMITS.answer  # type: ignore[arg-type]


def _words(item: Any, limit: int) -> tuple[int, int]:
    """Estimate how many words the texts of an item have at least and at most.

    The tokenizer of the model would take too long.

    Args:
        item: a text, or a tuple that contains one or two.
        limit: maximum number of words per text.
    """
    parts = item if isinstance(item, tuple) else (item,)
    texts = [part for part in parts if isinstance(part, str)]
    least = sum(min(len(text.split()), limit) for text in texts)
    return least, sum(min(len(WORD.findall(text)), limit) for text in texts)


def create_app(
    models: Mapping[str, TextModel],
    settings: ServerSettings | None = None,
    indexes: Mapping[str, "Index"] | None = None,
) -> FastAPI:
    """Return the API as an ASGI application.

    Args:
        models: models by name, in the order of `/api/models`.
        settings: settings of the server.
        indexes: sentences to search, by the name of the model that encoded them.
    """
    settings = ServerSettings() if settings is None else settings
    indexes = indexes or {}
    served = {name: Served(name, model, indexes.get(name)) for name, model in models.items()}
    api = Api(served, settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await api.warm_up()
        yield
        await asyncio.to_thread(api.worker.close)

    app = _App(
        title="gumbeltree",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=SCHEMA,
        # FastAPI's documentation pages load scripts from other sites
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.api = api
    _add_info_routes(app, api)
    _add_model_routes(app, api)
    _add_handlers(app, settings.root_path)
    pages = page_files() if settings.page else {}
    for path, file in pages.items():
        app.add_api_route(path, _file_route(*file), include_in_schema=False, methods=["GET"])
    app.guarded = _guarded(app, settings, list(pages))
    _add_schema(app, api)
    return app


class _App(FastAPI):
    """FastAPI behind guards, which answer most requests without its many layers."""

    guarded: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the start and end of the server."""
        app = self.guarded if scope["type"] == "http" else super().__call__
        await app(scope, receive, send)


def _guarded(app: FastAPI, settings: ServerSettings, pages: list[str]) -> ASGIApp:
    """Return an application behind all guards, innermost first."""
    guarded: ASGIApp = Bodies(
        partial(FastAPI.__call__, app),
        endpoints={
            route.path: _endpoint(route.endpoint)
            for route in app.routes
            if isinstance(route, APIRoute) and "POST" in (route.methods or ())
        },
        limit=LIMITS.body,
        seconds=settings.client_seconds,
        requests=settings.requests,
        unfinished=settings.unfinished,
    )
    if settings.token is not None:
        guarded = Token(guarded, token=settings.token, free=[HEALTH, *pages])
    if settings.origins:
        guarded = CORSMiddleware(
            guarded,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After"],
        )
    if settings.hosts is not None:
        guarded = Hosts(guarded, names=settings.hosts)
    paths = [str(getattr(route, "path", "")) for route in app.routes]
    return Outside(guarded, pages=pages, paths=paths, access_log=settings.access_log)


def _endpoint(route: Callable[[Any], Awaitable[Response]]) -> Endpoint:
    """Return a function that validates a body and returns the response of a route.

    It replaces FastAPI's request handling, which takes longer than a prediction; FastAPI only
    documents these routes.
    """
    kind: type[schema.Request] = inspect.signature(route).parameters["request"].annotation

    async def answer(body: bytes) -> Response:
        try:
            return await route(kind.model_validate_json(body))
        except HTTPException as error:
            return _failure(error)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False, include_input=False)
            return JSONResponse({"detail": "; ".join(map(_message, details[:3]))}, 422)

    return answer


def _failure(error: HTTPException) -> Response:
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


def _add_handlers(app: FastAPI, root_path: str) -> None:
    """Return every error as a short message in JSON."""
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    known = [
        f"{method} {root_path}{route.path}" for route in routes for method in route.methods or ()
    ]
    no_path = f"no such path; available: {', '.join(known)}; see {root_path}{SCHEMA}"

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            error.detail = no_path
        elif error.status_code == 405:
            methods = (error.headers or {})["Allow"]
            method = "GET" if "GET" in methods else methods
            error.detail = f"send a {method} request to this path"
        return _failure(error)

    @app.exception_handler(Exception)
    async def leave_to_guards(request: Request, error: Exception) -> Response:
        raise error


def _message(error: Mapping[str, Any]) -> str:
    """Return the field and what is wrong with it, without repeating the input."""
    place = [str(part)[:40] for part in error["loc"]]
    message = str(error["msg"])
    if error["type"] == "string_pattern_mismatch":
        message = "Text should have at least one word"
    return f"{'.'.join(place) or 'body'}: {message}"


def _add_info_routes(app: FastAPI, api: Api) -> None:
    """Add the routes that do not run a model."""
    info = {
        "models": [served.describe() for served in api.models.values()],
        "limits": {name: getattr(LIMITS, name) for name in schema.LimitsInfo.model_fields},
    }

    stuck_answer = {"description": "The models are stuck.", "model": schema.Health}
    unhealthy: dict[int | str, dict[str, Any]] = {503: stuck_answer}

    @app.get(HEALTH, response_model=schema.Health, responses={**_documented(421), **unhealthy})
    async def health() -> Response:
        """Return the state of the queue and the models; no authentication required."""
        worker = api.worker
        slice_seconds = worker.slice_seconds
        stuck = slice_seconds > STUCK_SECONDS or not worker.alive
        content = {
            "status": "stuck" if stuck else "ok",
            "version": __version__,
            "models": len(api.models),
            "queue": {"waiting": worker.waiting, "limit": worker.limit, "oldest": worker.oldest},
            "thread": {"alive": worker.alive, "slice": slice_seconds},
        }
        return JSONResponse(content, 503 if stuck else 200)

    @app.get("/api/models", response_model=schema.Models, responses=_documented(401, 421, 500))
    async def models() -> Response:
        """List the models and the limits per request."""
        return JSONResponse(info)


def _add_model_routes(app: FastAPI, api: Api) -> None:
    """Add the routes that run a model."""
    failures = _documented(*ERRORS)

    @app.post("/api/parse", response_model=schema.ParseAnswer, responses=failures)
    async def parse(request: schema.ParseRequest) -> Response:
        """Return the tree of each sentence: candidates, choices, and nodes with their classes."""
        served = api.find(request.model, trees=True)
        reason = served.model.encoder.why_no_beams()
        if request.beams and reason is not None:
            kind_of_encoder = served.model.config.encoder.kind
            raise HTTPException(
                422, f"beams: {served.name} has a {kind_of_encoder!r} encoder, and {reason}"
            )
        longest = min(LIMITS.words, served.model.config.max_words)
        words = [min(len(text.split()), longest) for text in request.texts]
        # two numbers per candidate of each layer
        _check_size(NUMBER_BYTES * sum(count * (count - 1) for count in words))
        options = service.Options(
            **{field.name: getattr(request, field.name) for field in fields(service.Options)}
        )
        call = partial(service.parse, served, options=options)
        kind: Kind = ("parse", served.name, options)
        trees = request.samples + request.beams
        if trees:
            # a unique kind keeps these requests out of batches
            kind = (_operation(options), served.name, object())
        results = await api.run(kind, call, request.texts, samples=trees)
        return _Json('{"results":[', results, "]}")

    @app.post("/api/predict", response_model=schema.PredictAnswer, responses=failures)
    async def predict(request: schema.PredictRequest) -> Response:
        """Return the class of each sentence or pair."""
        served = api.find(request.model)
        second: Sequence[str | None] = [None] * len(request.texts)
        if served.pair:
            if request.second is None or len(request.second) != len(request.texts):
                raise HTTPException(
                    422, "second: this model reads pairs; pass as many texts as in `texts`"
                )
            second = request.second
        elif request.second is not None:
            raise HTTPException(422, "second: must be null; this model reads single sentences")
        items = list(zip(request.texts, second, strict=True))
        kind: Kind = ("predict", served.name)
        call: Call = partial(service.predict, served)
        if request.model_fields_set & DRAWING:
            served = api.find(request.model, trees=True)
            options = service.Options(**{name: getattr(request, name) for name in DRAWING})
            call = partial(service.predict_along, served, options=options)
            # as for `parse`
            operation = _operation(options) or "predict"
            kind = (operation, served.name, object() if request.samples else options)
        results = await api.run(kind, call, items, samples=request.samples)
        return _Json('{"results":[', results, "]}")

    @app.post("/api/encode", response_model=schema.EncodeAnswer, responses=failures)
    async def encode(request: schema.EncodeRequest) -> Response:
        """Return the vector of each sentence."""
        served = api.find(request.model)
        width = served.model.encoder.vector_dim
        _check_size(NUMBER_BYTES * width * len(request.texts))
        call = partial(service.encode, served)
        vectors = await api.run(("encode", served.name), call, request.texts)
        return _Json(f'{{"width":{width},"vectors":[', vectors, "]}")

    @app.post("/api/neighbours", response_model=schema.NeighboursAnswer, responses=failures)
    async def neighbours(request: schema.NeighboursRequest) -> Response:
        """Return the neighbours of a sentence or phrase.

        Neighbours of a whole sentence come from the model's index. Without an index, and for a
        `span` of the sentence, they are phrases of the example sentences.
        """
        served = api.find(request.model)
        call: Call
        if request.span is None and served.index is not None:
            source, call = "index", partial(service.similar_sentences, served)
            items: list[Any] = [(request.text, request.k)]
        else:
            served = api.find(request.model, trees=True)
            source, call = "phrases", partial(service.similar_phrases, served)
            items = [(request.text, request.span, request.k)]
        results = await api.run((source, served.name), call, items, "text")
        return _Json(f'{{"source":"{source}","neighbours":', results, "}")


def _check_size(size: int) -> None:
    """Raise if a response has more bytes than allowed."""
    if size > LIMITS.answer:
        raise HTTPException(
            422,
            f"texts: the response would exceed {LIMITS.answer} bytes; send fewer or shorter texts",
        )


class _Json(Response):
    """A response made of encoded results, sent in chunks.

    Waiting for the client between chunks keeps slow clients from filling the send buffer.
    """

    def __init__(self, before: str, results: list[str], after: str) -> None:
        # without the base class, which takes longer than sending the response
        self.body = f"{before}{','.join(results)}{after}".encode()
        self.status_code, self.background = 200, None
        self.raw_headers = [*JSON_HEADERS, (b"content-length", str(len(self.body)).encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        size = len(self.body)
        for begin in range(0, size, CHUNK_BYTES):
            end = begin + CHUNK_BYTES
            chunk = {"body": self.body[begin:end], "more_body": end < size}
            await send({"type": "http.response.body", **chunk})


def _add_schema(app: FastAPI, api: Api) -> None:
    """Add the model names and the token to the OpenAPI document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                servers=[{"url": api.settings.root_path}] if api.settings.root_path else None,
            )
            for part in made["components"]["schemas"].values():
                if part.get("title", "").endswith("Request"):
                    part["properties"]["model"]["enum"] = list(api.models)
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
    """Return content and media type of the page's files by URL path.

    They are read once, so that a URL is never used as a file path.
    """
    return {
        "/" if path.name == "index.html" else f"/static/{path.name}": (
            path.read_bytes(),
            MEDIA_TYPES[path.suffix],
        )
        for path in (*sorted(STATIC.glob("*")), EXAMPLES)
        if path.suffix in MEDIA_TYPES
    }


def _file_route(content: bytes, media_type: str) -> Callable[..., Any]:
    """Return a route that sends a file, compressed if the client accepts gzip."""
    bodies = {"": content, "gzip": gzip.compress(content, mtime=0)}
    tags = {name: f'"{hashlib.sha256(body).hexdigest()[:32]}"' for name, body in bodies.items()}

    async def send(request: Request) -> Response:
        coding = "gzip" if GZIP.search(request.headers.get("accept-encoding", "")) else ""
        headers = {"ETag": tags[coding], "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == tags[coding]:
            return Response(status_code=304, headers=headers)
        if coding:
            headers["Content-Encoding"] = coding
        return Response(bodies[coding], media_type=media_type, headers=headers)

    return send
