"""Limits of requests, and the settings of a server."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Limits:
    """Maxima per request, the same for every server.

    Attributes:
        characters: per text, checked before tokenization.
        words: per text.
        texts: per request.
        samples: sampled trees per text.
        beams: most probable trees per text.
        neighbours: sentences or phrases per request.
        body: size of a request body in bytes.
        answer: size of a response body in bytes; a trace grows with the square of its words.
    """

    characters: int = 1000
    words: int = 128
    texts: int = 64
    samples: int = 200
    beams: int = 20
    neighbours: int = 50
    # JSON may escape a character in six bytes, and a pair has two texts
    body: int = 2**20
    answer: int = 2**22


LIMITS = Limits()


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        page: whether to serve the explorer's page.
        token: required as `Authorization: Bearer TOKEN`; None disables authentication.
        hosts: accepted names in the Host header; None accepts any.
        origins: web sites allowed to call the server (CORS), such as https://example.org.
        queue: maximum number of requests waiting for the models.
        requests: maximum number of concurrent requests.
        timeout: seconds until a request that has not begun fails with 504.
        grace: seconds until the server ends after SIGTERM.
        client_seconds: time limit for receiving a request body, extended for large ones, and for
            sending each chunk.
        connections: maximum number of connections per client address, except for trusted proxies;
            0 is a quarter of all.
        unfinished: maximum number of unfinished request bodies per client address.
        linger: seconds to wait for more requests to batch.
        batch: maximum number of texts per batch.
        root_path: path prefix added by a proxy, such as /trees.
        access_log: whether to log each request.
    """

    page: bool = False
    token: str | None = None
    hosts: tuple[str, ...] | None = None
    origins: tuple[str, ...] = ()
    queue: int = 256
    requests: int = 512
    timeout: float = 30.0
    grace: float = 30.0
    client_seconds: float = 10.0
    connections: int = 0
    unfinished: int = 32
    linger: float = 0.002
    batch: int = 64
    root_path: str = ""
    access_log: bool = True
