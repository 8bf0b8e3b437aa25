"""What the API takes of a request, and what it keeps waiting."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of one request, the same for every server, as the API's schema names them.

    Attributes:
        characters: of a text, counted before it is split into words.
        words: of a text.
        texts: of a request.
        samples: trees that are drawn of a text.
        neighbours: sentences or phrases that are named.
        body: bytes of a request.
        answer: bytes of an answer. A trace holds two numbers for each candidate of each layer, and
            so grows with the square of the words.
    """

    characters: int = 1000
    words: int = 128
    texts: int = 64
    samples: int = 200
    neighbours: int = 50
    # every character may be written in six bytes, and a pair has two texts
    body: int = 2**20
    answer: int = 2**22


LIMITS = Limits()


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """How a server behaves.

    Attributes:
        page: whether the explorer's page is served, too.
        token: what clients must send as `Authorization: Bearer TOKEN`; None asks for nothing.
        hosts: names by which clients may call the server, in the Host header; None is any.
        origins: web pages that may call it from a browser, such as https://example.org.
        queue: most requests that wait for the models.
        requests: most requests that are read and answered at a time.
        timeout: seconds after which a client is told to give up.
        client_seconds: that a client has to send a request, and to take each piece of the answer.
        linger: seconds that a request waits for others to be answered together with it.
        batch: most texts that are answered together, unless one request alone has more.
        root_path: where a proxy puts the server, such as /trees; what calls the application adds
            it to the path.
        access_log: whether each request is logged.
    """

    page: bool = False
    token: str | None = None
    hosts: tuple[str, ...] | None = None
    origins: tuple[str, ...] = ()
    queue: int = 256
    requests: int = 512
    timeout: float = 30.0
    client_seconds: float = 10.0
    linger: float = 0.002
    batch: int = 64
    root_path: str = ""
    access_log: bool = True
