"""The HTTP API in this process: every answer by value, every limit, every refusal."""

import asyncio
import dataclasses
import json
import logging
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

import gumbeltree
from gumbeltree.analysis.index import Index
from gumbeltree.analysis.trace import span_probabilities, trace, trace_many
from gumbeltree.model import SentenceModel
from gumbeltree.text.tokenizer import whitespace_tokenizer
from gumbeltree.web import api as api_module
from gumbeltree.web import guards, phrases, schema, service
from gumbeltree.web.api import create_app
from gumbeltree.web.limits import LIMITS, ServerSettings
from gumbeltree.web.worker import BusyError, LateError, Worker
from tests.models import TEXTS, WORDS, encoder_settings, tiny_config, tiny_model

SINGLE, PAIR = tiny_model("single"), tiny_model("pair")
SENTENCE = "the dog that barked all night sleeps ."
JSON = {"Content-Type": "application/json"}


def make_app(settings=None, models=None, **others):
    """An application of tiny models, with no log unless it is asked for."""
    models = {"single": SINGLE, "pair": PAIR} if models is None else models
    return create_app(models, settings or ServerSettings(access_log=False), **others)


@pytest.fixture(scope="module")
def client():
    return TestClient(make_app())


def ask(client, path, **body):
    """The answer to a question that is in order."""
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def refused(response, status):
    """The message of a refusal, which is JSON and nothing else."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (message,) = response.json().values()
    return message


def close(found, expected):
    """Whether two JSON values are the same but for the last digits of numbers."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[k], expected[k]) for k in found)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(close, found, expected))
    if isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-6)
    return type(found) is type(expected) and found == expected


# answers


def test_health(client):
    assert client.get("/api/health").json() == {
        "status": "ok",
        "version": gumbeltree.__version__,
        "models": 2,
        "queue": {"waiting": 0, "limit": 256},
    }


def test_models(client):
    about = client.get("/api/models").json()
    assert about["models"][::-1] == [
        {
            "name": "pair",
            "kind": "pair",
            "sentences": 2,
            "labels": ["neutral", "entailment", "contradiction"],
            "trees": "sampled",
            "width": 6,
            "vocabulary": len(WORDS) + 2,
            "max_words": 1024,
            "description": "6D, reads pairs of sentences",
            "index": False,
        },
        {
            "name": "single",
            "kind": "single",
            "sentences": 1,
            "labels": ["bad", "good"],
            "trees": "sampled",
            "width": 6,
            "vocabulary": len(WORDS) + 2,
            "max_words": 1024,
            "description": "6D, reads single sentences",
            "index": False,
        },
    ]
    assert about["limits"] == {
        "characters": 1000,
        "words": 128,
        "texts": 64,
        "samples": 200,
        "neighbours": 50,
        "body": 2**20,
        "answer": 2**22,
    }


def test_packaged_models_are_described_by_their_recipes():
    model = gumbeltree.load("sst2-100d")
    assert service.Served("x", model).about()["description"].startswith("Stanford Sentiment")


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"seed": 4, "temperature": 2.5}])
def test_parse_is_the_trace(client, options):
    results = ask(client, "/api/parse", model="single", texts=TEXTS, **options)["results"]
    assert len(results) == len(TEXTS)
    expected = trace_many(SINGLE, TEXTS, **options)
    for text, found, known in zip(TEXTS, results, expected, strict=True):
        assert found.pop("spans") is None
        # of the best tree, also where another was drawn
        (prediction,) = SINGLE.predict([text])
        assert close(found.pop("classes"), prediction.probabilities)
        assert close(found.pop("answer"), prediction.as_dict())
        assert close(found, known.as_dict())
    assert results[1]["sampled"] is bool(options)
    assert results[2]["unknown"] == [False, False, True]


def test_parse_of_a_model_of_pairs_has_no_classes(client):
    (found,) = ask(client, "/api/parse", model="pair", texts=[SENTENCE])["results"]
    assert found["classes"] is found["answer"] is None
    assert [node["classes"] for node in found["nodes"]] == [None] * 15
    assert found["brackets"] == str(PAIR.parse(SENTENCE))


def test_parse_with_samples_says_how_sure_spans_are(client):
    options = {"samples": 40, "seed": 5, "temperature": 3.0}
    results = ask(client, "/api/parse", model="pair", texts=[SENTENCE, "now"], **options)["results"]
    _, shares = span_probabilities(PAIR, SENTENCE, **options)
    assert results[0]["spans"] == [[*span, share] for span, share in shares.items()]
    assert any(0 < share < 1 for share in shares.values())
    assert [0, 8, 1.0] in results[0]["spans"]
    assert results[1]["spans"] == []
    # without a seed the tree is the best one, and spans are those of seed 0
    del options["seed"]
    (found,) = ask(client, "/api/parse", model="pair", texts=[SENTENCE], **options)["results"]
    assert not found["sampled"]
    _, shares = span_probabilities(PAIR, SENTENCE, **options, seed=0)
    assert found["spans"] == [[*span, share] for span, share in shares.items()]


@pytest.mark.parametrize("trees", ["learned", "left", "random"])
def test_parse_says_which_trees_are_fixed(trees):
    model = tiny_model("single", trees=trees)
    fixed = TestClient(make_app(models={"fixed": model}))
    for options in ({}, {"seed": 3}, {"samples": 5}):
        (found,) = ask(fixed, "/api/parse", model="fixed", texts=[SENTENCE], **options)["results"]
        assert found["trees"] == trees
        assert found["sampled"] == ("seed" in options and trees != "left")
        # the rest is as for other models
        assert found.keys() == schema.Parsed.model_fields.keys()
        assert len(found["layers"][0]["scores"]) == 7
    about = fixed.get("/api/openapi.json").json()["components"]["schemas"]["Parsed"]
    assert "trees" in about["required"]
    assert "fixed trees" in about["properties"]["trees"]["description"]


def test_parse_says_what_the_model_leaves_out():
    model = tiny_model("single")
    object.__setattr__(model.config, "max_words", 3)
    app = make_app(models={"short": model})
    (found,) = ask(TestClient(app), "/api/parse", model="short", texts=[SENTENCE])["results"]
    assert found["words"] == ["the", "dog", "that"]
    assert found["cut"] is True


def test_predict_single(client):
    results = ask(client, "/api/predict", model="single", texts=TEXTS)["results"]
    for found, known in zip(results, SINGLE.predict(TEXTS), strict=True):
        assert found["label"] == known.label
        assert close(found["probabilities"], known.probabilities)


def test_predict_pairs(client):
    second = TEXTS[::-1]
    results = ask(client, "/api/predict", model="pair", texts=TEXTS, second=second)["results"]
    for found, known in zip(results, PAIR.predict(TEXTS, second), strict=True):
        assert found["label"] == known.label
        assert close(found["probabilities"], known.probabilities)


def test_encode(client):
    found = ask(client, "/api/encode", model="pair", texts=TEXTS)
    assert found["width"] == 6
    vectors = np.array(found["vectors"], dtype=np.float32)
    assert np.allclose(vectors, PAIR.encode(TEXTS), rtol=1e-5, atol=1e-6)


def test_texts_that_are_not_english(client):
    texts = ["喜欢 <script>alert(1)</script>", "a\u2028b", '"quoted" \\ \x00', "𝄞 é"]
    results = ask(client, "/api/parse", model="single", texts=texts)["results"]
    assert [found["text"] for found in results] == texts
    assert results[0]["words"] == ["喜欢", "<script>alert(1)</script>"]


# neighbours


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """Example sentences of our own."""
    path = tmp_path / "examples.json"
    content = {"sentences": ["the dog sleeps now", "The  Dog barked"], "pairs": [["not one", "."]]}
    path.write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(phrases, "EXAMPLES", path)
    return ["the dog sleeps now", "The  Dog barked", "not one", "."]


def cosines(model, text, span, sentences):
    """Phrases by cosine, worked out one by one."""
    query = trace(model, text)
    state = query.states[[node.span for node in query.nodes].index(span)]
    best = {}
    for sentence in sentences:
        found = trace(model, sentence)
        for node, other in zip(found.nodes, found.states, strict=True):
            phrase = " ".join(found.tree.words[slice(*node.span)])
            cosine = float(state @ other / np.linalg.norm(state) / np.linalg.norm(other))
            if cosine > best.get(phrase.lower(), (-2, ""))[0]:
                best[phrase.lower()] = (cosine, phrase)
    best.pop(" ".join(query.tree.words[slice(*span)]).lower(), None)
    return sorted(((phrase, cosine) for cosine, phrase in best.values()), key=lambda x: -x[1])


@pytest.mark.parametrize("text", ["the dog sleeps", "The dog sleeps", "one dog"])
def test_neighbours_of_every_node(examples, text):
    client = TestClient(make_app())
    for node in trace(SINGLE, text).nodes:
        found = ask(
            client, "/api/neighbours", model="single", text=text, span=list(node.span), k=50
        )
        assert found["source"] == "phrases"
        expected = cosines(SINGLE, text, node.span, examples)
        assert close([near["score"] for near in found["neighbours"]], [c for _, c in expected])
        names = [near["text"] for near in found["neighbours"]]
        assert sorted(names) == sorted(phrase for phrase, _ in expected)
        assert len({name.lower() for name in names}) == len(names)


def test_neighbours_of_a_sentence_without_an_index(examples):
    client = TestClient(make_app())
    question = {"model": "pair", "text": "the dog sleeps"}
    found = ask(client, "/api/neighbours", **question, k=3)
    assert found == ask(client, "/api/neighbours", **question, span=[0, 3], k=3)
    assert len(found["neighbours"]) == 3
    assert len(ask(client, "/api/neighbours", **question)["neighbours"]) == 5


def test_neighbours_without_examples(monkeypatch, tmp_path):
    monkeypatch.setattr(phrases, "EXAMPLES", tmp_path / "none.json")
    found = ask(TestClient(make_app()), "/api/neighbours", model="pair", text="the dog")
    assert found == {"source": "phrases", "neighbours": []}


@pytest.mark.usefixtures("examples")
def test_the_span_must_be_a_node():
    client = TestClient(make_app())
    inside = {node.span for node in trace(SINGLE, SENTENCE).nodes}
    outside = [(i, j) for i in range(9) for j in range(i + 1, 10) if (i, j) not in inside]
    for span in [outside[0], (0, 0), (3, 1), (-1, 1), (0, 10**30)]:
        body = {"model": "single", "text": SENTENCE, "span": span}
        message = refused(client.post("/api/neighbours", json=body), 422)
        assert message.startswith("span: expected a node of the sentence's tree: [0, 1], ")


def test_neighbours_from_an_index(tmp_path):
    index = Index.build(tmp_path / "index", PAIR, TEXTS)
    client = TestClient(make_app(indexes={"pair": index}))
    about = client.get("/api/models").json()["models"]
    assert {model["name"]: model["index"] for model in about} == {"pair": True, "single": False}
    found = ask(client, "/api/neighbours", model="pair", text="the dog sleeps", k=3)
    rows, scores = index.search(PAIR.encode(["the dog sleeps"]), 3)
    assert found["source"] == "index"
    assert [near["text"] for near in found["neighbours"]] == index.texts(rows[0])
    assert close([near["score"] for near in found["neighbours"]], scores[0].tolist())
    # a sentence is no neighbour of itself
    found = ask(client, "/api/neighbours", model="pair", text=TEXTS[4], k=50)["neighbours"]
    assert sorted(near["text"] for near in found) == sorted(set(TEXTS) - {TEXTS[4]})
    # parts are compared with parts all the same
    body = {"model": "pair", "text": "the dog", "span": [0, 1]}
    assert ask(client, "/api/neighbours", **body)["source"] == "phrases"


def test_a_baseline_has_classes_but_no_trees():
    config = tiny_config("single")
    config = dataclasses.replace(config, encoder=encoder_settings(kind="bag"))
    model = SentenceModel(config, whitespace_tokenizer(WORDS)).eval()
    client = TestClient(make_app(models={"bag": model}))
    assert ask(client, "/api/predict", model="bag", texts=["the dog"])["results"]
    response = client.post("/api/parse", json={"model": "bag", "texts": ["the dog"]})
    assert refused(response, 422) == "model: expected one that builds trees, got one of 'bag'"
    response = client.post("/api/neighbours", json={"model": "bag", "text": "the dog"})
    assert refused(response, 422).startswith("model: expected one that builds trees")


# refusals

OK = {"model": "single", "texts": ["the dog"]}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("parse", {**OK, "texts": []}, "texts: List should have at least 1 item"),
        ("parse", {**OK, "texts": ["a"] * 65}, "texts: List should have at most 64 items"),
        ("parse", {**OK, "texts": "the dog"}, "texts: Input should be a valid list"),
        ("parse", {**OK, "texts": ["a", ""]}, "texts.1: String should have at least 1 character"),
        ("parse", {**OK, "texts": ["a", " \n\u3000"]}, "texts.1: Text should have at least one"),
        ("parse", {**OK, "texts": ["a", "b" * 1001]}, "texts.1: String should have at most 1000"),
        ("parse", {**OK, "texts": ["a", "b " * 129]}, "texts.1: expected at most 128 words, got"),
        ("parse", {**OK, "texts": [1]}, "texts.0: Input should be a valid string"),
        ("parse", {**OK, "samples": 201}, "samples: Input should be less than or equal to 200"),
        ("parse", {**OK, "samples": -1}, "samples: Input should be greater than or equal to 0"),
        ("parse", {**OK, "samples": True}, "samples: Input should be a valid integer"),
        ("parse", {**OK, "seed": 2**53}, "seed: Input should be less than or equal to"),
        ("parse", {**OK, "seed": "1"}, "seed: Input should be a valid integer"),
        ("parse", {**OK, "temperature": 0}, "temperature: Input should be greater than"),
        ("parse", {**OK, "temperature": -1}, "temperature: Input should be greater than"),
        ("parse", {**OK, "temprature": 1}, "temprature: Extra inputs are not permitted"),
        ("parse", {"texts": ["a"]}, "model: Field required"),
        ("parse", [], "body: Input should be a valid dictionary"),
        ("predict", {**OK, "second": ["a"]}, "second: expected null"),
        ("predict", {**OK, "model": "pair"}, "second: expected as many texts"),
        ("predict", {**OK, "model": "pair", "second": ["a", "b"]}, "second: expected as many"),
        ("predict", {**OK, "model": "pair", "second": ["b " * 129]}, "texts.0: expected at most"),
        ("encode", {**OK, "texts": ["b " * 129]}, "texts.0: expected at most 128 words, got 129"),
        ("neighbours", {"model": "pair", "text": "b " * 129}, "text: expected at most 128 words"),
        ("neighbours", {"model": "pair", "text": "b", "k": 51}, "k: Input should be less than"),
        ("neighbours", {"model": "pair", "text": "b", "k": 0}, "k: Input should be greater"),
        ("neighbours", {"model": "pair", "text": "b", "span": [1]}, "span: List should have"),
    ],
)
def test_refused_with_what_was_expected(client, path, body, message):
    assert message in refused(client.post(f"/api/{path}", json=body), 422)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"model": "single", "texts": ["a"], "temperature": NaN}',
        b'{"model": "single", "texts": ["a"], "temperature": 1e999}',
        b'{"model": "single", "texts": ["a"], "seed": ' + b"1" * 5000 + b"}",
        b'{"model": "single", "texts": ["\\ud800"]}',
        b'{"model": "single", "texts": ["a"], "<img src=x>": 1}',
    ],
)
def test_what_is_no_json_is_refused(client, body):
    message = refused(client.post("/api/parse", content=body, headers=JSON), 422)
    assert len(message) < 200


def test_as_much_as_is_allowed(client):
    assert len(ask(client, "/api/encode", model="pair", texts=["a"] * 64)["vectors"]) == 64
    ask(client, "/api/encode", model="pair", texts=["b" * 1000])
    (found,) = ask(client, "/api/parse", model="pair", texts=["b " * 128])["results"]
    assert len(found["words"]) == 128
    assert not found["cut"]
    ask(client, "/api/parse", model="pair", texts=["a b"], samples=200, seed=2**53 - 1)
    # temperatures that are hardly numbers
    for temperature in (1e-6, 1e6):
        ask(client, "/api/parse", model="pair", texts=[SENTENCE], temperature=temperature, seed=1)
    # the largest request there is, written in the longest way
    texts = ["\u00e9" * 1000] * 64
    body = json.dumps({"model": "pair", "texts": texts, "second": texts})
    assert 0.7 * LIMITS.body < len(body) <= LIMITS.body
    assert client.post("/api/predict", content=body, headers=JSON).status_code == 200


def test_unknown_models_are_named_with_the_known_ones(client):
    for path in ("parse", "predict", "encode"):
        response = client.post(f"/api/{path}", json={**OK, "model": "../single"})
        assert refused(response, 404) == "model: no such model; known: single, pair"
    response = client.post("/api/neighbours", json={"model": "", "text": "a"})
    assert refused(response, 404).endswith("known: single, pair")


def test_other_paths_and_methods(client):
    for path in ("/", "/static/explorer.js", "/api", "/api/parse/", "/docs", "/redoc"):
        assert refused(client.get(path), 404)
    for path in ("/api/..%2f..%2fetc%2fpasswd", "/%2e%2e/%2e%2e/etc/passwd"):
        assert refused(client.get(path), 404)
    response = client.get("/api/parse")
    assert refused(response, 405)
    assert response.headers["allow"] == "POST"
    assert refused(client.post("/api/health", json={}), 405)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_bodies_must_be_declared_as_json(client, kind):
    # a web page may send these types to any server without asking it first
    headers = {} if kind is None else {"Content-Type": kind}
    response = client.post("/api/encode", content=json.dumps(OK), headers=headers)
    assert "Content-Type: application/json" in refused(response, 415)
    declared = {"Content-Type": "application/json; charset=utf-8"}
    response = client.post("/api/encode", content=json.dumps(OK), headers=declared)
    assert response.status_code == 200


def test_large_bodies_are_refused(client):
    body = b" " * LIMITS.body
    assert client.post("/api/encode", content=body, headers=JSON).status_code == 422
    message = refused(client.post("/api/encode", content=body + b" ", headers=JSON), 413)
    assert message == "expected at most 1048576 bytes"


def call_asgi(app, messages, headers, path="/api/encode", wait=0.0):
    """Send messages to an application by hand; return what it sent, and how many it took."""
    taken, sent = [], []

    async def receive():
        if not messages:
            await asyncio.sleep(60)
        if taken:
            await asyncio.sleep(wait)
        taken.append(messages.pop(0))
        return taken[-1]

    async def send(message):
        sent.append(message)

    asyncio.run(app(asgi_scope(path, headers), receive, send))
    return sent, taken


def asgi_scope(path, headers):
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "root_path": "",
        "http_version": "1.1",
    }


def pieces(count, size):
    return [{"type": "http.request", "body": b" " * size, "more_body": True} for _ in range(count)]


def test_a_body_of_unknown_length_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(guards, "LINGER_SECONDS", 0.0)
    sent, taken = call_asgi(make_app(), pieces(1000, 2**16), JSON)
    assert sent[0]["status"] == 413
    assert dict(sent[0]["headers"])[b"connection"] == b"close"
    assert len(taken) <= 18
    # what is sent after the refusal is taken for a while, so that the client comes to read it
    monkeypatch.setattr(guards, "LINGER_SECONDS", 5.0)
    sent, taken = call_asgi(make_app(), pieces(1000, 2**16), JSON)
    assert 17 + 8 * 16 <= len(taken) <= 18 + 8 * 16
    assert [message.get("more_body") for message in sent] == [None, True, False]


def test_a_body_whose_length_is_declared_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr(guards, "LINGER_SECONDS", 0.0)
    headers = {**JSON, "Content-Length": str(LIMITS.body + 1)}
    sent, taken = call_asgi(make_app(), pieces(1000, 2**16), headers)
    assert sent[0]["status"] == 413
    assert len(taken) <= 1
    # who waits to be told to go on is not told to
    headers["Expect"] = "100-continue"
    sent, taken = call_asgi(make_app(), pieces(1000, 2**16), headers)
    assert sent[0]["status"] == 413
    assert taken == []


def test_a_body_that_comes_too_slowly_is_refused():
    app = make_app(ServerSettings(client_seconds=0.1, access_log=False))
    sent, _ = call_asgi(app, pieces(1000, 1), JSON, wait=0.03)
    assert sent[0]["status"] == 408
    assert b"within 0.1 seconds" in sent[1]["body"]


def test_answers_that_would_be_too_large_are_refused(client):
    text = " ".join(["dog"] * 128)
    found = ask(client, "/api/parse", model="pair", texts=[text] * 4)["results"]
    assert found[3] == found[0]
    response = client.post("/api/parse", json={"model": "pair", "texts": [text] * 64})
    assert refused(response, 422).startswith("texts: expected an answer of at most 4194304 bytes")
    ask(client, "/api/encode", model="pair", texts=[text] * 64)


def test_answers_that_are_sure_to_be_too_large_are_not_computed(client, monkeypatch):
    for name in ("parse", "encode"):
        monkeypatch.setattr(service, name, None)
    body = {"model": "pair", "texts": [" ".join(["dog"] * 128)] * 64}
    for options in ({}, {"samples": 5}):
        response = client.post("/api/parse", json={**body, **options})
        assert refused(response, 422).startswith("texts: expected an answer of at most 4194304")
    monkeypatch.setattr(api_module, "NUMBER", LIMITS.answer // (6 * 64) + 1)
    response = client.post("/api/encode", json=body)
    assert refused(response, 422).startswith("texts: expected an answer of at most 4194304")


def test_nothing_more_is_computed_once_an_answer_is_too_large(monkeypatch):
    asked = []

    def parse(served, texts, *options):
        asked.extend(texts)
        # two bytes each
        return ["\u00e9" * (LIMITS.answer // 4)] * len(texts)

    monkeypatch.setattr(service, "parse", parse)
    body = {**OK, "texts": list("abcdef"), "samples": 5}
    response = TestClient(make_app()).post("/api/parse", json=body)
    assert refused(response, 422).startswith("texts: expected an answer of at most 4194304")
    assert asked == ["a", "b", "c"]


def test_a_client_that_does_not_take_its_answer_is_left():
    app = make_app(ServerSettings(client_seconds=0.2, access_log=False))
    sent = []

    async def main():
        body = json.dumps({"model": "pair", "texts": [" ".join(["dog"] * 128)]}).encode()
        messages = [{"type": "http.request", "body": body}]

        async def receive():
            if not messages:
                await asyncio.sleep(60)
            return messages.pop()

        async def send(message):
            sent.append(message)
            await asyncio.sleep(60 if len(sent) == 3 else 0)

        await app(asgi_scope("/api/parse", JSON), receive, send)

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 20
    assert len(sent) == 3
    assert [len(message["body"]) for message in sent[1:]] == [2**16] * 2
    assert sent[2]["more_body"]


def test_work_ends_when_its_client_hangs_up():
    began, ended = threading.Event(), threading.Event()
    app = make_app(ServerSettings(access_log=False))

    async def main():
        messages = [{"type": "http.request", "body": json.dumps(OK).encode()}]

        async def receive():
            if messages:
                return messages.pop()
            # asked again: the body was read, and the question is with the worker
            began.set()
            return {"type": "http.disconnect"}

        async def send(message):
            ended.set()

        await asyncio.wait_for(app(asgi_scope("/api/parse", JSON), receive, send), 20)

    asyncio.run(main())
    assert began.is_set()
    assert not ended.is_set()


@pytest.mark.parametrize("path", ["/api/parse%0A", "/api/predict%0a", "/api/health%0A"])
def test_a_line_feed_does_not_get_around_the_limits(client, path):
    method = client.get if "health" in path else client.post
    response = method(path, **({} if "health" in path else {"content": b"x" * 2**21}))
    assert response.status_code == 404
    assert response.json() == {"detail": "Not Found"}
    assert "content-security-policy" in response.headers


def test_many_unknown_fields_are_one_error(client):
    response = client.post("/api/parse", json={**OK, **{f"f{i}": 0 for i in range(1000)}})
    assert response.status_code == 422
    assert len(response.content) < 1000


def test_heat_maps_of_several_clients_are_no_one_call():
    calls = []
    real = service.parse

    def counted(served, texts, *options):
        calls.append(len(texts))
        return real(served, texts, *options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "parse", counted)
        with TestClient(make_app()) as client, ThreadPoolExecutor(8) as pool:
            asked = {**OK, "texts": ["the dog sleeps now ."], "samples": 5}
            found = list(pool.map(lambda _: client.post("/api/parse", json=asked), range(8)))
    assert [r.status_code for r in found] == [200] * 8
    assert calls == [1] * 8


def test_a_client_that_leaves_gets_nothing():
    sent, _ = call_asgi(make_app(), [*pieces(1, 5), {"type": "http.disconnect"}], JSON)
    assert sent == []


# headers, names, tokens


def test_every_response_has_the_headers(client):
    responses = [
        client.get("/api/health"),
        client.get("/api/openapi.json"),
        client.get("/nothing"),
        client.get("/api/parse"),
        client.post("/api/parse", json={}),
        client.post("/api/parse", json={**OK, "model": "x"}),
        client.post("/api/parse", json=OK),
        client.post("/api/parse", content=b"x"),
    ]
    assert [r.status_code for r in responses] == [200, 200, 404, 405, 422, 404, 200, 415]
    for response in responses:
        headers = response.headers
        policy = headers["content-security-policy"]
        assert policy == "default-src 'none'; frame-ancestors 'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cross-origin-embedder-policy"] == "require-corp"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


HOSTS = ServerSettings(hosts=("127.0.0.1", "localhost", "[::1]", "trees.example"), access_log=False)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:8000", 200),
        ("LOCALHOST:1", 200),
        ("[::1]", 200),
        ("[::1]:8000", 200),
        ("trees.example:443", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:8000", 421),
        ("[::2]:8000", 421),
        ("[::1", 421),
        ("", 421),
    ],
)
def test_host_names(host, status):
    client = TestClient(make_app(HOSTS))
    response = client.get("/api/health", headers={"Host": host})
    assert response.status_code == status
    assert response.headers["x-content-type-options"] == "nosniff"


def test_other_web_sites_get_nothing_unless_they_are_named():
    origin = {"Origin": "https://example.org"}
    wish = {**origin, "Access-Control-Request-Method": "POST"}
    wish["Access-Control-Request-Headers"] = "content-type,authorization"
    closed = TestClient(make_app())
    assert closed.options("/api/parse", headers=wish).status_code == 405
    response = closed.post("/api/parse", json=OK, headers=origin)
    assert not [name for name in response.headers if name.startswith("access-control")]

    settings = ServerSettings(origins=("https://example.org",), token="a" * 20, access_log=False)
    opened = TestClient(make_app(settings))
    response = opened.options("/api/parse", headers=wish)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://example.org"
    for token, status in (("a" * 20, 200), ("b" * 20, 401)):
        headers = {**origin, "Authorization": f"Bearer {token}"}
        response = opened.post("/api/parse", json=OK, headers=headers)
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == "https://example.org"
        assert "access-control-allow-credentials" not in response.headers
    other = {"Origin": "https://evil.example", "Authorization": f"Bearer {'a' * 20}"}
    assert "access-control-allow-origin" not in opened.get("/api/models", headers=other).headers


def test_the_token():
    client = TestClient(make_app(ServerSettings(token="s3cret-token", access_log=False)))
    assert client.get("/api/health").status_code == 200
    wrong = [None, "", "s3cret-token", "Bearer", "Bearer s3cret-toke", "Basic s3cret-token"]
    for value in [*wrong, "Bearer s3cret-token2", "Bearer s\xe9cret"]:
        headers = {} if value is None else {"Authorization": value.encode("latin-1")}
        for path in ("/api/models", "/api/openapi.json", "/nothing"):
            response = client.get(path, headers=headers)
            assert "Authorization: Bearer TOKEN" in refused(response, 401)
            assert response.headers["www-authenticate"] == "Bearer"
            assert "s3cret" not in response.text
        assert client.post("/api/parse", json=OK, headers=headers).status_code == 401
    for value in ("Bearer s3cret-token", "bearer  s3cret-token"):
        assert client.get("/api/models", headers={"Authorization": value}).status_code == 200
    document = client.get("/api/openapi.json", headers={"Authorization": "Bearer s3cret-token"})
    assert document.json()["security"] == [{"token": []}]


def test_behind_a_proxy_that_gives_it_a_path():
    app = make_app(ServerSettings(root_path="/trees", token="a" * 20, access_log=False))
    client = TestClient(app, root_path="/trees")
    assert client.get("/trees/api/health").status_code == 200
    assert client.get("/trees/api/models").status_code == 401
    assert app.openapi()["servers"] == [{"url": "/trees"}]


# the page


def test_the_page_and_its_files():
    app = make_app(ServerSettings(page=True, token="a" * 20, access_log=False))
    client = TestClient(app)
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; ")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-frame-options"] == "DENY"
    types = {
        "/static/explorer.js": "text/javascript; charset=utf-8",
        "/static/explorer.css": "text/css; charset=utf-8",
        "/static/icon.svg": "image/svg+xml",
        "/static/examples.json": "application/json",
    }
    for path, kind in types.items():
        response = client.get(path)
        assert (response.status_code, response.headers["content-type"]) == (200, kind)
        again = client.get(path, headers={"If-None-Match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for path in ("/static/", "/static", "/static/../api.py", "/static/%2e%2e/api.py", "/api.py"):
        assert client.get(path).status_code in (401, 404)
    assert "/" not in app.openapi()["paths"]
    # the page is free, the models are not
    assert client.get("/api/models").status_code == 401


# what was not foreseen


class Broken:
    """A model's method that fails for some texts, and keeps what it was asked."""

    def __init__(self, method, poison="poison", error=RuntimeError):
        self.method, self.poison, self.error = method, poison, error
        self.calls = []
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()

    def __call__(self, texts, *arguments, **options):
        self.calls.append(list(texts))
        self.begun.set()
        assert self.gate.wait(20)
        if any(self.poison in text for text in texts):
            raise self.error("it broke on " + self.poison)
        return self.method(texts, *arguments, **options)


@pytest.fixture
def broken():
    model = tiny_model("single")
    model.encode = Broken(model.encode)
    return model


@contextmanager
def heard(name):
    """What is logged; the log is not handed on, once a server ran in this process."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger(name)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield records
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_an_unexpected_error_is_logged_under_its_number(broken):
    client = TestClient(make_app(models={"m": broken}))
    with heard("gumbeltree.web") as records:
        response = client.post("/api/encode", json={"model": "m", "texts": ["a poison"]})
    assert response.status_code == 500
    number = response.json()["id"]
    assert response.json()["detail"] == f"an error of the server; its log has it as {number}"
    assert "poison" not in response.text
    assert "Traceback" not in response.text
    assert response.headers["x-content-type-options"] == "nosniff"
    (record,) = records
    assert number in record.getMessage()
    assert "it broke on poison" in str(record.exc_info[1])
    # and the server goes on
    assert ask(client, "/api/encode", model="m", texts=["the dog"])["vectors"]


def test_nan_never_becomes_json():
    model = tiny_model("single")
    model.embedding.weight.data.fill_(float("nan"))
    client = TestClient(make_app(models={"m": model}))
    with heard("gumbeltree.web"):
        for path in ("parse", "predict", "encode"):
            response = client.post(f"/api/{path}", json={"model": "m", "texts": ["the dog"]})
            assert response.status_code == 500
            assert "NaN" not in response.text
        # nor where the model does not notice
        model.encode = lambda texts: np.full((len(texts), 6), np.nan)
        response = client.post("/api/encode", json={"model": "m", "texts": ["the dog"]})
        assert response.status_code == 500


def test_a_text_in_which_the_tokenizer_finds_nothing():
    from tokenizers import normalizers

    model = tiny_model("single")
    model.tokenizer.normalizer = normalizers.Replace("#", "")
    client = TestClient(make_app(models={"m": model}))
    for path in ("parse", "predict", "encode"):
        response = client.post(f"/api/{path}", json={"model": "m", "texts": ["the dog", "##"]})
        assert refused(response, 422) == "texts.1: expected at least one word, got none"


def test_the_access_log_has_no_texts():
    client = TestClient(make_app(ServerSettings(token="tttttttt")))
    headers = {"Authorization": "Bearer tttttttt"}
    with heard("gumbeltree.web.access") as records:
        client.post("/api/encode?secret=1", json={**OK, "texts": ["secret"]}, headers=headers)
        client.post("/api/secret%0aline", json={"secret": 1}, headers=headers)
        client.request("SECRET", "/api/models", headers=headers)
        client.get("/api/models")
    lines = [record.getMessage().rpartition(" ")[0].rpartition(" ")[0] for record in records]
    assert lines == [
        "POST /api/encode 200",
        "POST (no such path) 404",
        "? /api/models 405",
        "GET /api/models 401",
    ]


# together


def in_threads(count, run):
    pool = ThreadPoolExecutor(count)
    return pool, [pool.submit(run, number) for number in range(count)]


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_requests_that_wait_are_answered_by_one_call(broken):
    app = make_app(models={"m": broken})
    worker = app.state.api.worker
    broken.encode.gate.clear()
    texts = [" ".join(WORDS[:length]) for length in range(1, 11)]

    def run(number):
        return ask(TestClient(app), "/api/encode", model="m", texts=[texts[number]])["vectors"][0]

    pool, first = in_threads(1, lambda _: run(0))
    broken.encode.begun.wait(20)
    others, answers = in_threads(10, run)
    until(lambda: worker.waiting == 10)
    health = TestClient(app).get("/api/health").json()
    assert health["queue"] == {"waiting": 10, "limit": 256}
    broken.encode.gate.set()
    found = [answer.result(20) for answer in answers]
    assert close(first[0].result(20), found[0])
    pool.shutdown()
    others.shutdown()
    assert [len(call) for call in broken.encode.calls] == [1, 10]
    assert sorted(broken.encode.calls[1]) == sorted(texts)
    assert np.allclose(found, SINGLE.encode(texts), atol=1e-6)


def test_a_poisoned_text_fails_nobody_else(broken):
    app = make_app(models={"m": broken})
    broken.encode.gate.clear()
    texts = ["the dog", "now poison", "one dog", "not one"]

    def run(number):
        body = {"model": "m", "texts": [texts[number]]}
        return TestClient(app).post("/api/encode", json=body)

    pool, first = in_threads(1, run)
    broken.encode.begun.wait(20)
    others, answers = in_threads(4, run)
    until(lambda: app.state.api.worker.waiting == 4)
    with heard("gumbeltree.web"):
        broken.encode.gate.set()
        responses = [answer.result(20) for answer in answers]
    first[0].result(20)
    pool.shutdown()
    others.shutdown()
    assert [response.status_code for response in responses] == [200, 500, 200, 200]
    for number in (0, 2, 3):
        vectors = responses[number].json()["vectors"]
        assert np.allclose(vectors, SINGLE.encode([texts[number]]), atol=1e-6)


def test_nothing_is_mixed_up():
    app = make_app(ServerSettings(access_log=False, linger=0.005))
    texts = [f"{a} {b} {c}" for a in WORDS[:4] for b in WORDS[4:7] for c in WORDS[7:10]]
    vectors = dict(zip(texts, PAIR.encode(texts), strict=True))

    def run(number):
        client = TestClient(app)
        for turn in range(6):
            own = [texts[(7 * number + 5 * turn + step) % len(texts)] for step in range(3)]
            found = ask(client, "/api/encode", model="pair", texts=own)["vectors"]
            assert np.allclose(found, [vectors[text] for text in own], atol=1e-6)
            parsed = ask(client, "/api/parse", model="single", texts=own)["results"]
            assert [tree["text"] for tree in parsed] == own
        return number

    pool, answers = in_threads(12, run)
    assert [answer.result(60) for answer in answers] == list(range(12))
    pool.shutdown()


def test_a_full_queue_answers_at_once(broken):
    app = make_app(ServerSettings(queue=2, access_log=False), models={"m": broken})
    broken.encode.gate.clear()

    def run(number):
        return TestClient(app).post("/api/encode", json={"model": "m", "texts": ["the dog"]})

    pool, first = in_threads(1, run)
    broken.encode.begun.wait(20)
    others, answers = in_threads(2, run)
    until(lambda: app.state.api.worker.waiting == 2)
    response = run(0)
    assert refused(response, 503) == "the server is busy; try again in a second"
    assert response.headers["retry-after"] == "1"
    # all models share the queue, and health does not wait in it
    assert TestClient(app).get("/api/health").json()["queue"] == {"waiting": 2, "limit": 2}
    broken.encode.gate.set()
    assert [answer.result(20).status_code for answer in first + answers] == [200] * 3
    assert run(0).status_code == 200
    pool.shutdown()
    others.shutdown()


def test_too_many_requests_at_a_time(broken):
    app = make_app(ServerSettings(requests=1, access_log=False), models={"m": broken})
    broken.encode.gate.clear()

    def run(number):
        return TestClient(app).post("/api/encode", json={"model": "m", "texts": ["the dog"]})

    pool, first = in_threads(1, run)
    broken.encode.begun.wait(20)
    response = run(0)
    assert refused(response, 503)
    assert response.headers["retry-after"] == "1"
    broken.encode.gate.set()
    assert first[0].result(20).status_code == 200
    pool.shutdown()


def test_who_waits_too_long_is_told_and_the_work_is_dropped(broken):
    app = make_app(ServerSettings(timeout=0.3, access_log=False), models={"m": broken})
    broken.encode.gate.clear()

    def run(text):
        return TestClient(app).post("/api/encode", json={"model": "m", "texts": [text]})

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run, "the dog")
        broken.encode.begun.wait(20)
        second = run("now")
        assert refused(second, 504) == "no answer within 0.3 seconds; ask for less, or later"
        assert app.state.api.worker.waiting == 0
        broken.encode.gate.set()
        assert first.result(20).status_code == 504
    assert run("one dog").status_code == 200
    assert broken.encode.calls == [["the dog"], ["one dog"]]


def test_sampling_lets_others_in_between(monkeypatch):
    order = []

    def parse(served, texts, *options):
        order.append(texts)
        return ["1" if text != "x" else service.RefusedError("no") for text in texts]

    monkeypatch.setattr(service, "parse", parse)
    client = TestClient(make_app())
    body = {**OK, "texts": ["a", "b", "c"]}
    assert client.post("/api/parse", json=body).text == '{"results":[1,1,1]}'
    assert client.post("/api/parse", json={**body, "samples": 5}).text == '{"results":[1,1,1]}'
    assert order == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    # nothing is drawn once there is no answer
    body["texts"][1] = "x"
    assert refused(client.post("/api/parse", json={**body, "samples": 5}), 422) == "texts.1: no"
    assert order[4:] == [["a"], ["x"]]


# the worker alone


def test_the_worker_takes_what_fits():
    calls = []

    def call(items):
        calls.append(items)
        if items == [0]:
            begun.set()
            assert gate.wait(20)
        return [10 * item for item in items]

    gate, begun = threading.Event(), threading.Event()
    worker = Worker(limit=100, linger=0.0, batch=4)

    async def main():
        late = asyncio.get_running_loop().time() + 20
        first = asyncio.ensure_future(worker.run("a", call, [0], late))
        await asyncio.to_thread(begun.wait, 20)
        jobs = [("a", [1, 2]), ("b", [3]), ("a", [4, 5, 6]), ("a", [7]), ("c", [8] * 9), ("b", [9])]
        waiting = [asyncio.ensure_future(worker.run(key, call, own, late)) for key, own in jobs]
        await asyncio.sleep(0)
        assert worker.waiting == 6
        gate.set()
        assert await first == [0]
        for (_, own), answer in zip(jobs, waiting, strict=True):
            assert await answer == [10 * item for item in own]

    asyncio.run(main())
    worker.close()
    # in the order of the first that waits, each with its like, four at most unless one has more
    assert calls == [[0], [1, 2, 7], [3, 9], [4, 5, 6], [8] * 9]


def test_the_worker_waits_a_little_for_others():
    calls = []
    worker = Worker(limit=100, linger=0.3, batch=3)

    def call(items):
        calls.append(items)
        return items

    async def main(count):
        late = asyncio.get_running_loop().time() + 20
        await asyncio.gather(*(worker.run("a", call, [number], late) for number in range(count)))

    asyncio.run(main(2))
    assert calls == [[0, 1]]
    worker.close()
    # closed and asked again, it works again
    asyncio.run(main(1))
    assert calls[1:] == [[0]]
    worker.close()


def test_the_worker_gives_up_what_nobody_waits_for():
    calls = []
    gate, begun = threading.Event(), threading.Event()
    worker = Worker(limit=2, linger=0.0, batch=1)

    def call(items):
        calls.append(items)
        begun.set()
        assert gate.wait(20)
        return items

    async def main():
        now = asyncio.get_running_loop().time()
        first = asyncio.ensure_future(worker.run("a", call, [0], now + 20))
        await asyncio.to_thread(begun.wait, 20)
        with pytest.raises(LateError):
            await worker.run("a", call, [1], now + 0.01)
        gone = asyncio.ensure_future(worker.run("a", call, [2], now + 20))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        assert worker.waiting == 0
        waiting = [asyncio.ensure_future(worker.run("a", call, [n], now + 20)) for n in (3, 4)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await worker.run("a", call, [5], now + 20)
        again = asyncio.ensure_future(worker.run("a", call, [6], now + 20, again=True))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *waiting, again)

    asyncio.run(main())
    worker.close()
    assert calls == [[0], [3], [4], [6]]


def test_a_call_that_forgets_an_answer_is_an_error():
    worker = Worker(limit=2, linger=0.0, batch=1)

    async def main():
        late = asyncio.get_running_loop().time() + 20
        with pytest.raises(RuntimeError, match="expected 2 results, got 1"):
            await worker.run("a", lambda items: items[1:], [1, 2], late)

    asyncio.run(main())
    worker.close()
