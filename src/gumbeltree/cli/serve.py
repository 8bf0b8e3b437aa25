"""The command `serve`: serve models over HTTP."""

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumbeltree.cli import completion, streams
from gumbeltree.cli.app import app

if TYPE_CHECKING:
    from gumbeltree.web.server import ServerPlan

Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL",
        help="Model folders, run folders, names from `gumbeltree models`, or hub:ORG/NAME. "
        "Default: all packaged models.",
        autocompletion=completion.models,
    ),
]
Index = Annotated[
    list[Path] | None,
    typer.Option(
        help="Index of sentences to search, written by `gumbeltree index` with one of the models. "
        "Can be repeated, once per model."
    ),
]
AccessLog = Annotated[
    bool, typer.Option("--access-log/--no-access-log", help="Log requests, but no texts.")
]


@app.command()
def serve(
    models: Models = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 listens on all interfaces.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")] = 8000,
    index: Index = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="GUMBELTREE_TOKEN",
            help="Require clients to send Authorization: Bearer TOKEN. Prefer the environment "
            "variable: other users of the machine can see command lines.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Additional host name that clients can use. Can be repeated.",
        ),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Website whose pages may call the server, such as https://example.org. Can be "
            "repeated.",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Number of processes, each with its own models.")
    ] = 1,
    threads: Annotated[
        int, typer.Option(min=0, help="Threads per process; 0 divides the CPU cores evenly.")
    ] = 0,
    queue: Annotated[
        int,
        typer.Option(
            min=1,
            help="Maximum number of waiting requests per process; others receive status 503.",
        ),
    ] = 256,
    connections_per_address: Annotated[
        int,
        typer.Option(
            min=0,
            help="Maximum number of connections per client address and process, except for "
            "trusted proxies; 0 allows a quarter of all connections.",
        ),
    ] = 0,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Seconds until a request fails with status 504, and until a process that hangs is "
            "replaced.",
        ),
    ] = 30.0,
    grace: Annotated[
        float,
        typer.Option(min=0.1, help="Seconds to finish requests after Ctrl-C or SIGTERM."),
    ] = 30.0,
    root_path: Annotated[
        str, typer.Option(help="Path prefix added by a proxy, such as /trees.")
    ] = "",
    forwarded_allow_ips: Annotated[
        str,
        typer.Option(help="Addresses of proxies whose X-Forwarded headers are trusted, or *."),
    ] = "127.0.0.1",
    access_log: AccessLog = True,
    device: streams.Device = "auto",
    plugin: streams.Plugin = None,
    runtime: streams.Runtime = "auto",
) -> None:
    """Serve models over HTTP as a JSON API: parse, predict, encode and neighbours.

    On Ctrl-C or SIGTERM, the server finishes the requests it has received and exits, at the latest
    after the time set by --grace.

    Examples, with all packaged models and with selected ones:

    gumbeltree serve

    gumbeltree serve sst2-100d runs/reviews --port 9000 --token TOKEN --workers 4
    """
    from gumbeltree import web

    web.check_installed()
    from gumbeltree.runtimes import check_choice
    from gumbeltree.web import server
    from gumbeltree.web.limits import ServerSettings

    check_choice(device, runtime)

    if token is None and server.TOKEN in os.environ:
        # typer ignores an empty variable, which would silently disable authentication
        token = ""
    settings = ServerSettings(
        token=server.checked_token(token),
        hosts=server.allowed_hosts(host, allow_host or []),
        origins=server.checked_origins(cors or []),
        queue=queue,
        requests=2 * queue,
        connections=connections_per_address,
        timeout=timeout,
        grace=grace,
        root_path=_checked_root(root_path),
        access_log=access_log,
    )
    plan = server.ServerPlan(
        models=tuple(models or ()),
        indexes=tuple(map(str, index or ())),
        device=device,
        runtime=runtime,
        threads=threads or _share(workers),
        settings=settings,
        plugins=tuple(plugin or ()),
    )
    run_server(plan, host, port, workers, forwarded_allow_ips, browser=False)


def run_server(
    plan: "ServerPlan", host: str, port: int, workers: int, proxies: str, *, browser: bool
) -> None:
    """Listen, print the address, and serve."""
    import threading
    import webbrowser

    from gumbeltree.web import processes, server

    listener = server.listen(host, port)
    address = server.address_of(listener, host)

    def ready() -> None:
        what = "Explorer running at" if plan.settings.page else "Serving at"
        how = f" with {workers} processes" if workers > 1 else ""
        typer.echo(f"{what} {address}{how} (press Ctrl-C to stop)")
        if not plan.settings.page:
            typer.echo(f"Status: {address}api/health, API description: {address}api/openapi.json")
        if browser:
            # in a thread, because a text browser would block the server
            threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()

    with listener:
        if plan.settings.token is None and not server.is_loopback(host):
            typer.echo(
                f"gumbeltree: warning: {host} is reachable from other machines; pass --token to "
                "require authentication",
                err=True,
            )
        if sys.platform == "win32" and workers == 1:
            # without SIGTERM, a supervisor could only kill it
            from gumbeltree.web.serving import serve as serve_here

            serve_here(plan, listener, ready, proxies)
        else:
            processes.supervise(plan, listener, workers, ready, proxies)


def _checked_root(path: str) -> str:
    if path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", path):
        raise ValueError(f"`--root-path` must be a path such as /trees, got {path!r}")
    return path


def _share(workers: int) -> int:
    """Return the number of threads per process; 0 is the default."""
    return 0 if workers == 1 else max(1, (os.cpu_count() or 1) // workers)
