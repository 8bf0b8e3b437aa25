"""The command `serve`: models over HTTP."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app

if TYPE_CHECKING:
    from gumbeltree.web.server import ServerPlan

Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL",
        help="Model folders, folders of runs, names of `gumbeltree models`, or hub:ORG/NAME; "
        "without, all packaged models.",
    ),
]
Index = Annotated[
    list[Path] | None,
    typer.Option(
        help="A folder of `gumbeltree index`, made with one of the models, to search for "
        "sentences; may be given for each model."
    ),
]
AccessLog = Annotated[
    bool, typer.Option("--access-log/--no-access-log", help="Log each request, without its texts.")
]


@app.command()
def serve(
    models: Models = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is every one of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any free one.")] = 8000,
    index: Index = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="GUMBELTREE_TOKEN",
            help="What clients must send as Authorization: Bearer TOKEN. In the environment other "
            "users of the machine do not see it.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name by which clients may call the server, beside those of loopback; may be "
            "given several times.",
        ),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="A web site whose pages may call the server, such as https://example.org; may be "
            "given several times.",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Processes, each with models of its own.")
    ] = 1,
    threads: Annotated[
        int, typer.Option(min=0, help="Threads of torch in each process; 0 shares out the cores.")
    ] = 0,
    queue: Annotated[
        int,
        typer.Option(
            min=1,
            help="Most requests that wait for the models in each process, beside those being "
            "answered; one more gets 503 and may come again.",
        ),
    ] = 256,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which a request is given up with 504.")
    ] = 30.0,
    root_path: Annotated[
        str, typer.Option(help="Where a proxy puts the server, such as /trees.")
    ] = "",
    forwarded_allow_ips: Annotated[
        str,
        typer.Option(help="Addresses of proxies whose X-Forwarded headers are believed, or *."),
    ] = "127.0.0.1",
    access_log: AccessLog = True,
    device: streams.Device = "auto",
) -> None:
    """Serve models over HTTP, as JSON: trees, classes, vectors, neighbours.

    Ctrl-C or SIGTERM stops it, after what was asked is answered.

    Examples, with the packaged models and with others:

    gumbeltree serve

    gumbeltree serve sst2-100d runs/reviews --port 9000 --token TOKEN --workers 4
    """
    from gumbeltree import web

    web.check_installed()
    from gumbeltree.web import server
    from gumbeltree.web.limits import ServerSettings

    if token is None and server.TOKEN in os.environ:
        # set but empty, as after a command that failed; typer takes that for not set
        token = ""
    settings = ServerSettings(
        token=server.checked_token(token),
        hosts=server.allowed_hosts(host, allow_host or []),
        origins=server.checked_origins(cors or []),
        queue=queue,
        requests=2 * queue,
        timeout=timeout,
        root_path=_checked_root(root_path),
        access_log=access_log,
    )
    plan = server.ServerPlan(
        models=tuple(models or ()),
        indexes=tuple(map(str, index or ())),
        device=streams.pick_device(device),
        threads=threads or _share(workers),
        settings=settings,
    )
    run_server(plan, host, port, workers, forwarded_allow_ips, browser=False)


def run_server(
    plan: "ServerPlan", host: str, port: int, workers: int, proxies: str, *, browser: bool
) -> None:
    """Listen, say where, and serve."""
    import threading
    import webbrowser

    from gumbeltree.web import processes, server

    listener = server.listen(host, port)
    address = server.address_of(listener, host)

    def ready() -> None:
        what = "The explorer is at" if plan.settings.page else "Serving at"
        how = "(Ctrl-C stops it)"
        if workers > 1:
            how = f"with {workers} processes (Ctrl-C stops them)"
        typer.echo(f"{what} {address} {how}")
        if browser:
            # a browser in the terminal would keep the server waiting
            threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()

    with listener:
        if plan.settings.token is None and not server.is_loopback(host):
            typer.echo(
                f"gumbeltree: warning: {host} can be reached from outside, and there is no "
                "--token: whoever can connect may ask",
                err=True,
            )
        if workers == 1:
            server.serve(plan, listener, ready, proxies)
        else:
            processes.serve_many(plan, listener, workers, ready, proxies)


def _checked_root(path: str) -> str:
    if path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", path):
        raise ValueError(f"`--root-path` must be such as /trees, got {path!r}")
    return path


def _share(workers: int) -> int:
    """Return how many threads torch may use in each of several processes; 0 lets it choose."""
    return 0 if workers == 1 else max(1, (os.cpu_count() or 1) // workers)
