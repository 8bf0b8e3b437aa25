"""The command `explore`: explore trees in the browser."""

from typing import Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app
from gumbeltree.cli.serve import AccessLog, Index, Models, run_server


@app.command()
def explore(
    models: Models = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")] = 0,
    index: Index = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    access_log: AccessLog = False,
    device: streams.Device = "auto",
    threads: streams.Threads = None,
    plugin: streams.Plugin = None,
    runtime: streams.Runtime = "auto",
) -> None:
    """Explore trees in the browser; the page is accessible only from this machine.

    Press Ctrl-C to stop.

    Examples, with all packaged models and with one of them:

    gumbeltree explore

    gumbeltree explore sst2-100d --port 8080 --no-open
    """
    from gumbeltree import web

    web.check_installed()
    from gumbeltree.runtimes import check_choice
    from gumbeltree.web import server
    from gumbeltree.web.limits import ServerSettings

    check_choice(device, runtime)

    host = "127.0.0.1"
    hosts = server.allowed_hosts(host, [])
    plan = server.ServerPlan(
        models=tuple(models or ()),
        indexes=tuple(map(str, index or ())),
        device=device,
        runtime=runtime,
        threads=threads or 0,
        plugins=tuple(plugin or ()),
        settings=ServerSettings(page=True, hosts=hosts, access_log=access_log),
    )
    run_server(plan, host, port, 1, host, browser=not no_open)
