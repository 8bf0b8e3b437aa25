"""Ports on which no server listens."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port that no other process gets meanwhile; a server that asks for it can listen."""
    with socket.socket() as holder:
        # a server that sets this option as well can share the port, because the holder is silent
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
