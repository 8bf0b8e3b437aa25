"""The HTTP API, called in this process."""

import asyncio
import dataclasses
import json
import logging
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi")

from starlette.testclient import TestClient
from tokenizers import Regex, normalizers, pre_tokenizers

import gumbeltree
from gumbeltree.analysis.index import Index
from gumbeltree.analysis.samples import sample_trees, span_probabilities
from gumbeltree.analysis.trace import trace, trace_many
from gumbeltree.model import SentenceModel
from gumbeltree.packaged import packaged_folder
from gumbeltree.runtimes import load
from gumbeltree.states import Encoding
from gumbeltree.text.tokenizer import whitespace_tokenizer
from gumbeltree.web import api as api_module
from gumbeltree.web import guards, phrases, schema, service
from gumbeltree.web import worker as worker_module
from gumbeltree.web.api import create_app
from gumbeltree.web.limits import LIMITS, ServerSettings
from gumbeltree.web.worker import BusyError, LateError, Worker
from tests.models import TEXTS, WORDS, encoder_settings, tiny_config, tiny_model

SINGLE, PAIR = tiny_model("single"), tiny_model("pair")
SENTENCE = "the dog that barked all night sleeps ."
JSON = {"Content-Type": "application/json"}
OK = {"model": "single", "texts": ["the dog"]}
LONGEST = " ".join(["dog"] * LIMITS.words)


def make_app(models=None, indexes=None, **settings):
    models = {"single": SINGLE, "pair": PAIR} if models is None else models
    return create_app(models, ServerSettings(**{"access_log": False, **settings}), indexes)


@pytest.fixture(scope="module")
def client():
    return TestClient(make_app())


def post(client, path, **body):
    """Return the content of a successful response."""
    response = client.post(f"/api/{path}", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def refused(response, status):
    """Return the message of an error, which is the only field of its JSON."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (message,) = response.json().values()
    return message


def is_close(value, expected):
    """Return whether two JSON values are equal up to rounding."""
    if isinstance(expected, dict):
        same = value.keys() == expected.keys()
        return same and all(is_close(value[k], expected[k]) for k in value)
    if isinstance(expected, list | tuple):
        return len(value) == len(expected) and all(map(is_close, value, expected))
    if isinstance(expected, float):
        return math.isclose(value, expected, rel_tol=1e-4, abs_tol=1e-6)
    return type(value) is type(expected) and value == expected


# responses


def test_health(client):
    assert client.get("/api/health").json() == {
        "status": "ok",
        "version": gumbeltree.__version__,
        "models": 2,
        "queue": {"waiting": 0, "limit": 256, "oldest": 0.0},
        "thread": {"alive": True, "slice": 0.0},
    }


def test_lists_models_and_limits(client):
    info = client.get("/api/models").json()
    single, pair = info["models"]
    assert pair == {
        "name": "pair",
        "kind": "pair",
        "sentences": 2,
        "labels": ["neutral", "entailment", "contradiction"],
        "trees": "sampled",
        "beams": True,
        "width": 6,
        "vocabulary": len(WORDS) + 2,
        "max_words": 1024,
        "description": "6D, reads pairs of sentences",
        "index": False,
        "measured": None,
    }
    assert (single["kind"], single["sentences"], single["labels"]) == ("single", 1, ["bad", "good"])
    assert info["limits"] == dataclasses.asdict(LIMITS)


@pytest.mark.parametrize("runtime", ["torch", "numpy"])
def test_packaged_models_show_their_own_results(runtime):
    models = {name: load(name, runtime=runtime) for name in ("snli-100d", "sst2-100d")}
    listed = TestClient(make_app(models)).get("/api/models").json()["models"]
    for about in listed:
        config = json.loads((packaged_folder(about["name"]) / "config.json").read_text("utf-8"))
        metrics = config["provenance"]["metrics"]
        own = about["measured"]
        assert own["value"] == metrics[f"{own['split']}_accuracy"]
        assert own["metric"] == "accuracy"
        assert own["trained_on"] > own["examples"] > 1000
        # the description of the recipe quotes the paper
        assert "Table" not in about["description"]
        assert "%" not in about["description"]
    assert [about["measured"]["split"] for about in listed] == ["dev", "test"]
    assert listed[0]["description"] == "SNLI, 100D"


GIVEN = [
    {"tree": "left"},
    {"tree": "right", "seed": 1},
    {"tree": "balanced"},
    {"prefix": (0,)},
    {"prefix": (0,), "seed": 2},
]


@pytest.mark.parametrize(
    "options", [{}, {"seed": 3}, {"seed": 4, "temperature": 2.5}, *GIVEN], ids=str
)
def test_parse_returns_the_trace(client, options):
    texts = [text for text in TEXTS if " " in text] if "prefix" in options else TEXTS
    results = post(client, "parse", model="single", texts=texts, **options)["results"]
    for result, known in zip(results, trace_many(SINGLE, texts, **options), strict=True):
        assert result.pop("spans") is result.pop("samples") is result.pop("beams") is None
        assert is_close(result.pop("classes"), known.answer.probabilities)
        assert is_close(result, known.as_dict())
    assert results[-1]["sampled"] is ("seed" in options and "tree" not in options)


def test_parse_reports_unknown_words(client):
    texts = ["not one cat", "zebra", "the dog"]
    results = post(client, "parse", model="single", texts=texts)["results"]
    assert [result["unknown"] for result in results] == [
        [False, False, True],
        [True],
        [False, False],
    ]
    assert [result["unknown_share"] for result in results] == [pytest.approx(1 / 3), 1, 0]


def test_predictions_belong_to_the_tree_shown(client):
    """A given tree, a sampled one and the greedy one have predictions of their own."""
    body = {"model": "single", "texts": [SENTENCE]}
    (greedy,) = post(client, "parse", **body)["results"]
    (left,) = post(client, "parse", tree="left", **body)["results"]
    (predicted,) = post(client, "predict", **body)["results"]
    assert greedy["greedy"]
    assert not left["greedy"]
    assert is_close(greedy["answer"], predicted)
    assert not is_close(left["answer"], predicted)
    for result in (greedy, left):
        assert is_close(result["nodes"][-1]["classes"], result["answer"]["probabilities"])
        assert result["classes"] == result["answer"]["probabilities"]
    # the same tree, whoever asks for it
    (again,) = post(client, "parse", tree=greedy["brackets"], **body)["results"]
    assert again["greedy"]
    assert is_close(again["answer"], predicted)


@pytest.mark.parametrize("options", [{"samples": 20, "temperature": 0.1}, *GIVEN], ids=str)
def test_the_numpy_runtime_gives_the_same_results(tmp_path, options):
    results = []
    gumbeltree.save(SINGLE, tmp_path / "model")
    for runtime in ("torch", "numpy"):
        app = make_app({"m": load(tmp_path / "model", runtime=runtime)})
        body = {"model": "m", "texts": [SENTENCE, "not one cat"], **options}
        results.append(post(TestClient(app), "parse", **body)["results"])
    assert results[0][0]["brackets"] == results[1][0]["brackets"]
    assert is_close(*results)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tree": "up"}, ["tree: ", "'up'", "'the dog sleeps'"]),
        ({"tree": "((the dog) sleeps"}, ["tree: ", "')' missing"]),
        ({"tree": "(the dog sleeps)"}, ["tree: ", "two children"]),
        ({"tree": "((the cat) sleeps)"}, ["tree: ", "'the cat sleeps'"]),
        ({"tree": ""}, ["tree: ", "no words"]),
        ({"tree": "x" * 4001}, ["tree: ", "4000"]),
        ({"prefix": [0, 1]}, ["prefix: ", "position 1 of merge 2", "0..0"]),
        ({"prefix": [0, 0, 0]}, ["prefix: ", "merge 3", "merged by then"]),
        ({"prefix": [-1]}, ["prefix.0: "]),
        ({"prefix": [0] * 128}, ["prefix: "]),
        ({"prefix": [0], "tree": "left"}, ["prefix: ", "'left'"]),
    ],
    ids=str,
)
def test_rejects_trees_that_do_not_fit(client, options, words):
    body = {"model": "pair", "texts": ["the dog sleeps"], **options}
    message = refused(client.post("/api/parse", json=body), 422)
    assert message.startswith(words[0])
    assert all(word in message for word in words)


def test_fixed_trees_follow_no_other():
    client = TestClient(make_app({"fixed": tiny_model("single", trees="left")}))
    for options in ({"tree": "right"}, {"prefix": [0]}):
        body = {"model": "fixed", "texts": [SENTENCE], **options}
        assert "left" in refused(client.post("/api/parse", json=body), 422)


def test_parse_of_a_pair_model_has_no_classes(client):
    (result,) = post(client, "parse", model="pair", texts=[SENTENCE])["results"]
    assert result["classes"] is result["answer"] is None
    assert [node["classes"] for node in result["nodes"]] == [None] * 15
    assert result["brackets"] == str(PAIR.parse(SENTENCE))


@pytest.mark.parametrize("seed", [5, None])
def test_parse_estimates_span_probabilities(client, seed):
    options = {"samples": 40, "seed": seed, "temperature": 3.0}
    results = post(client, "parse", model="pair", texts=[SENTENCE, "now"], **options)["results"]
    _, shares = span_probabilities(PAIR, SENTENCE, **{**options, "seed": seed or 0})
    assert results[0]["spans"] == [[*span, share] for span, share in shares.items()]
    assert results[0]["sampled"] is (seed is not None)
    assert any(0 < share < 1 for share in shares.values())
    assert [0, 8, 1.0] in results[0]["spans"]
    assert results[1]["spans"] == []
    assert results[0]["samples"] == sample_trees(
        PAIR, SENTENCE, **{**options, "seed": seed or 0}
    ).as_dict() | {"trees": results[0]["samples"]["trees"]}
    assert results[0]["samples"]["answers"] is None


@pytest.mark.parametrize("encoder", ["gumbel_tree", "beam_tree"])
def test_parse_lists_the_most_probable_trees(encoder):
    model = tiny_model("single", encoder=encoder)
    client = TestClient(make_app({"single": model, "pair": PAIR}))
    body = {"texts": [SENTENCE, "now"], "beams": 3}
    results = post(client, "parse", model="single", **body)["results"]
    for result, best in zip(results, model.best_trees(body["texts"], 3), strict=True):
        assert len(result["beams"]) == len(best)
        for shown, (tree, probability, log_prob) in zip(result["beams"], best, strict=True):
            assert (shown["brackets"], shown["order"]) == (str(tree), list(tree.order))
            assert shown["probability"] == pytest.approx(probability, abs=1e-5)
            assert shown["log_prob"] == pytest.approx(log_prob, abs=1e-5)
            assert shown["greedy"] == (tree == model.parse(result["text"]))
            given = trace(model, result["text"], tree=str(tree))
            assert is_close(shown["answer"], given.answer.as_dict())
    assert sum(len({tree["brackets"] for tree in result["beams"]}) for result in results) == 4
    (pair, _) = post(client, "parse", model="pair", **body)["results"]
    assert [tree["answer"] for tree in pair["beams"]] == [None] * 3
    (plain,) = post(client, "parse", model="single", texts=["now"])["results"]
    assert plain["beams"] is None


def test_models_without_learned_trees_have_no_beams():
    client = TestClient(make_app({"left": tiny_model("single", trees="left"), "single": SINGLE}))
    models = client.get("/api/models").json()["models"]
    assert {model["name"]: model["beams"] for model in models} == {"left": False, "single": True}
    body = {"model": "left", "texts": [SENTENCE], "beams": 2}
    message = refused(client.post("/api/parse", json=body), 422)
    assert message == "beams: left has a 'fixed_tree' encoder, and it does not score merges"
    for wrong in (-1, LIMITS.beams + 1, "2"):
        body = {"model": "single", "texts": [SENTENCE], "beams": wrong}
        assert "beams" in refused(client.post("/api/parse", json=body), 422)


@pytest.mark.parametrize("trees", ["learned", "left", "random"])
def test_parse_reports_fixed_trees(trees):
    client = TestClient(make_app({"fixed": tiny_model("single", trees=trees)}))
    for options in ({}, {"seed": 3}, {"samples": 5}):
        (result,) = post(client, "parse", model="fixed", texts=[SENTENCE], **options)["results"]
        assert result["trees"] == trees
        assert result["sampled"] == ("seed" in options and trees != "left")
        assert result.keys() == schema.Parsed.model_fields.keys()
        assert len(result["layers"][0]["scores"]) == 7


def test_parse_reports_truncated_texts():
    model = tiny_model("single")
    object.__setattr__(model.config, "max_words", 3)
    client = TestClient(make_app({"short": model}))
    (result,) = post(client, "parse", model="short", texts=[SENTENCE])["results"]
    assert (result["words"], result["cut"]) == (["the", "dog", "that"], True)


@pytest.mark.parametrize(("name", "second"), [("single", None), ("pair", TEXTS[::-1])])
def test_predict(client, name, second):
    results = post(client, "predict", model=name, texts=TEXTS, second=second)["results"]
    expected = {"single": SINGLE, "pair": PAIR}[name].predict(TEXTS, second)
    assert is_close(results, [prediction.as_dict() for prediction in expected])


@pytest.mark.parametrize("options", [{"seed": 3, "temperature": 2.5}, {"tree": "left"}], ids=str)
def test_predicts_along_the_trees_that_parse_returns(client, options):
    single = post(client, "predict", model="single", texts=TEXTS, **options)["results"]
    parsed = post(client, "parse", model="single", texts=TEXTS, **options)["results"]
    assert is_close(single, [result["answer"] for result in parsed])
    assert not is_close(single, post(client, "predict", model="single", texts=TEXTS)["results"])
    # a pair depends on the trees of both sentences
    pair = {"model": "pair", "texts": [SENTENCE], "second": [TEXTS[4]]}
    (drawn,) = post(client, "predict", **pair, **options)["results"]
    (greedy,) = post(client, "predict", **pair)["results"]
    assert not is_close(drawn, greedy)
    vectors = [trace(PAIR, text, **options).vector for text in (SENTENCE, TEXTS[4])]
    output = PAIR.head_output(*(Encoding(torch.from_numpy(vector[None])) for vector in vectors))
    assert is_close(drawn, PAIR.head.answers(output)[0].as_dict())


def test_samples_of_a_pair_have_predictions(client):
    body = {"model": "pair", "texts": [SENTENCE], "second": [TEXTS[4]], "samples": 30, "seed": 2}
    (result,) = post(client, "predict", **body)["results"]
    drawn = sample_trees(PAIR, SENTENCE, TEXTS[4], samples=30, seed=2)
    summary = result.pop("samples")
    assert is_close(summary, json.loads(json.dumps(drawn.as_dict())))
    assert sum(about["share"] for about in summary["answers"].values()) == pytest.approx(1)
    assert len(set(summary["top"])) > 5
    (parsed,) = post(client, "parse", model="pair", texts=[SENTENCE], samples=30, seed=2)["results"]
    assert parsed["samples"]["distinct"] == summary["distinct"]


def test_models_with_fixed_trees_predict_along_no_others():
    client = TestClient(make_app({"left": tiny_model("single", trees="left")}))
    body = {"model": "left", "texts": [SENTENCE], "tree": "right"}
    assert "tree: " in refused(client.post("/api/predict", json=body), 422)


def test_encode(client):
    content = post(client, "encode", model="pair", texts=TEXTS)
    assert content["width"] == 6
    assert np.allclose(content["vectors"], PAIR.encode(TEXTS), rtol=1e-5, atol=1e-6)


def test_returns_any_text_unchanged(client):
    texts = ["喜欢 <script>alert(1)</script>", "a\u2028b", '"quoted" \\ \x00', "𝄞 é"]
    results = post(client, "parse", model="single", texts=texts)["results"]
    assert [result["text"] for result in results] == texts
    assert results[0]["words"] == ["喜欢", "<script>alert(1)</script>"]


def test_baselines_predict_but_do_not_parse():
    config = dataclasses.replace(tiny_config("single"), encoder=encoder_settings(kind="bag"))
    model = SentenceModel(config, whitespace_tokenizer(WORDS)).eval()
    client = TestClient(make_app({"bag": model}))
    assert post(client, "predict", model="bag", texts=["the dog"])["results"]
    for path, body in [
        ("parse", {"texts": ["dog"]}),
        ("predict", {"texts": ["dog"], "samples": 3}),
        ("neighbours", {"text": "dog"}),
    ]:
        response = client.post(f"/api/{path}", json={"model": "bag", **body})
        assert "no trees" in refused(response, 422)


# neighbours


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """A few example sentences instead of those of the page."""
    path = tmp_path / "examples.json"
    content = {"sentences": ["the dog sleeps now", "The  Dog barked"], "pairs": [["not one", "."]]}
    path.write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(phrases, "EXAMPLES", path)
    return ["the dog sleeps now", "The  Dog barked", "not one", "."]


def expected_neighbours(model, text, span, sentences):
    """Return phrases and cosines, computed one by one."""
    query = trace(model, text)
    state = query.states[[node.span for node in query.nodes].index(span)]
    best = {}
    for sentence in sentences:
        other = trace(model, sentence)
        for node, vector in zip(other.nodes, other.states, strict=True):
            phrase = " ".join(other.tree.words[slice(*node.span)])
            cosine = float(state @ vector / np.linalg.norm(state) / np.linalg.norm(vector))
            if cosine > best.get(phrase.lower(), (-2, ""))[0]:
                best[phrase.lower()] = (cosine, phrase)
    best.pop(" ".join(query.tree.words[slice(*span)]).lower(), None)
    return sorted(((phrase, cosine) for cosine, phrase in best.values()), key=lambda x: -x[1])


@pytest.mark.parametrize("text", ["The dog sleeps", "one dog"])
def test_neighbours_of_every_node(examples, text):
    client = TestClient(make_app())
    for node in trace(SINGLE, text).nodes:
        body = {"model": "single", "text": text, "span": node.span, "k": 50}
        content = post(client, "neighbours", **body)
        assert content["source"] == "phrases"
        expected = expected_neighbours(SINGLE, text, node.span, examples)
        assert is_close([near["score"] for near in content["neighbours"]], [c for _, c in expected])
        names = [near["text"] for near in content["neighbours"]]
        assert sorted(names) == sorted(phrase for phrase, _ in expected)
        assert len({name.lower() for name in names}) == len(names)


def test_phrases_are_those_of_the_task():
    served = service.Served("listops-64d", gumbeltree.load("listops-64d"))
    near = served.phrases.nearest(served.phrases._vectors[0], (), 5)
    assert all(set(text) <= set("[]MINAXEDS 0123456789") for text, _ in near)
    english = service.Served("sst2-100d", gumbeltree.load("sst2-100d"))
    assert english.examples == phrases.example_sentences() != served.examples


@pytest.mark.parametrize("path", ["parse", "encode"])
def test_texts_that_are_none_of_the_task_are_not_read(path):
    client = TestClient(make_app({"listops": gumbeltree.load("listops-64d")}))
    answer = client.post(f"/api/{path}", json={"model": "listops", "texts": ["hello ( world"]})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("texts.0: expected one expression of")


@pytest.mark.parametrize("further", [{}, {"samples": 2}])
def test_texts_that_are_none_of_the_task_are_not_predicted(further):
    client = TestClient(make_app({"listops": gumbeltree.load("listops-64d")}))
    body = {"model": "listops", "texts": ["[MAX 2 9 ]", "[MAX 2 9"], **further}
    answer = client.post("/api/predict", json=body)
    assert answer.status_code == 422
    message = answer.json()["detail"]
    assert message.startswith("texts.1: expected one expression of")
    assert message.endswith("got the end with 1 open bracket")
    body["texts"].pop()
    (result,) = client.post("/api/predict", json=body).json()["results"]
    assert result["label"] == "9"


@pytest.mark.usefixtures("examples")
def test_neighbours_of_a_sentence_without_an_index():
    client = TestClient(make_app())
    body = {"model": "pair", "text": "the dog sleeps"}
    content = post(client, "neighbours", **body, k=3)
    assert content == post(client, "neighbours", **body, span=[0, 3], k=3)
    assert len(content["neighbours"]) == 3
    assert len(post(client, "neighbours", **body)["neighbours"]) == 5


@pytest.mark.usefixtures("examples")
def test_neighbours_rejects_a_span_that_is_not_a_node():
    client = TestClient(make_app())
    nodes = {node.span for node in trace(SINGLE, SENTENCE).nodes}
    other = next((i, i + 2) for i in range(7) if (i, i + 2) not in nodes)
    for span in [other, (0, 0), (3, 1), (-1, 1), (0, 10**30)]:
        body = {"model": "single", "text": SENTENCE, "span": span}
        message = refused(client.post("/api/neighbours", json=body), 422)
        assert message.startswith("span: ")
        assert "[0, 1], " in message


def test_neighbours_from_an_index(tmp_path):
    index = Index.build(tmp_path / "index", PAIR, TEXTS)
    client = TestClient(make_app(indexes={"pair": index}))
    models = client.get("/api/models").json()["models"]
    assert {model["name"]: model["index"] for model in models} == {"pair": True, "single": False}
    content = post(client, "neighbours", model="pair", text="the dog sleeps", k=3)
    rows, scores = index.search(PAIR.encode(["the dog sleeps"]), 3)
    assert content["source"] == "index"
    assert [near["text"] for near in content["neighbours"]] == index.texts(rows[0])
    assert is_close([near["score"] for near in content["neighbours"]], scores[0].tolist())
    # a sentence is not its own neighbour
    near = post(client, "neighbours", model="pair", text=TEXTS[4], k=50)["neighbours"]
    assert sorted(one["text"] for one in near) == sorted(set(TEXTS) - {TEXTS[4]})
    # spans are still compared with phrases
    body = {"model": "pair", "text": "the dog", "span": [0, 1]}
    assert post(client, "neighbours", **body)["source"] == "phrases"


# invalid requests


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("parse", {**OK, "texts": []}, ["texts: ", "at least 1"]),
        ("parse", {**OK, "texts": ["a"] * 65}, ["texts: ", "at most 64"]),
        ("parse", {**OK, "texts": "the dog"}, ["texts: ", "array"]),
        ("parse", {**OK, "texts": ["a", ""]}, ["texts.1: ", "at least 1"]),
        ("parse", {**OK, "texts": ["a", " \n\u3000"]}, ["texts.1: ", "word"]),
        ("parse", {**OK, "texts": ["a", "b" * 1001]}, ["texts.1: ", "1000"]),
        ("parse", {**OK, "texts": ["a", "b " * 129]}, ["texts.1: ", "129 words", "128"]),
        ("parse", {**OK, "texts": [1]}, ["texts.0: ", "string"]),
        ("parse", {**OK, "samples": 201}, ["samples: ", "200"]),
        ("parse", {**OK, "samples": -1}, ["samples: "]),
        ("parse", {**OK, "samples": True}, ["samples: ", "integer"]),
        ("parse", {**OK, "seed": 2**53}, ["seed: "]),
        ("parse", {**OK, "seed": "1"}, ["seed: ", "integer"]),
        ("parse", {**OK, "temperature": 0}, ["temperature: "]),
        ("parse", {**OK, "temprature": 1}, ["temprature: "]),
        ("parse", {"texts": ["a"]}, ["model: ", "required"]),
        ("parse", [], ["body: "]),
        ("predict", {**OK, "second": ["a"]}, ["second: ", "null"]),
        ("predict", {**OK, "model": "pair"}, ["second: ", "pairs"]),
        ("predict", {**OK, "model": "pair", "second": ["a", "b"]}, ["second: ", "pairs"]),
        ("predict", {**OK, "model": "pair", "second": ["b " * 129]}, ["texts.0: ", "129"]),
        ("encode", {**OK, "texts": ["b " * 129]}, ["texts.0: ", "129"]),
        ("neighbours", {"model": "pair", "text": "b " * 129}, ["text: ", "129"]),
        ("neighbours", {"model": "pair", "text": "b", "k": 51}, ["k: ", "50"]),
        ("neighbours", {"model": "pair", "text": "b", "k": 0}, ["k: "]),
        ("neighbours", {"model": "pair", "text": "b", "span": [1]}, ["span: "]),
    ],
)
def test_rejects_invalid_fields(client, path, body, words):
    message = refused(client.post(f"/api/{path}", json=body), 422)
    assert message.startswith(words[0])
    assert all(word in message for word in words)


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
        json.dumps({**OK, **{f"f{i}": 0 for i in range(1000)}}).encode(),
    ],
)
def test_rejects_malformed_bodies_briefly(client, body):
    assert len(refused(client.post("/api/parse", content=body, headers=JSON), 422)) < 200


def test_accepts_requests_at_the_limits(client):
    assert len(post(client, "encode", model="pair", texts=["a"] * 64)["vectors"]) == 64
    (result,) = post(client, "parse", model="pair", texts=["b " * 128])["results"]
    assert (len(result["words"]), result["cut"]) == (128, False)
    post(client, "parse", model="pair", texts=["a b"], samples=200, seed=2**53 - 1)
    for temperature in (1e-6, 1e6):
        post(client, "parse", model="pair", texts=[SENTENCE], temperature=temperature, seed=1)
    # the largest valid request with every character escaped
    texts = ["\u00e9" * 1000] * 64
    body = json.dumps({"model": "pair", "texts": texts, "second": texts})
    assert 0.7 * LIMITS.body < len(body) <= LIMITS.body
    assert client.post("/api/predict", content=body, headers=JSON).status_code == 200


def test_unknown_models_list_the_available_ones(client):
    for path in ("parse", "predict", "encode", "neighbours"):
        body = {"text": "a"} if path == "neighbours" else {"texts": ["a"]}
        response = client.post(f"/api/{path}", json={"model": "../single", **body})
        assert "single, pair" in refused(response, 404)


def test_unknown_paths_and_methods(client):
    traversal = ["/api/..%2f..%2fetc%2fpasswd", "/%2e%2e/%2e%2e/etc/passwd"]
    for path in ("/", "/static/explorer.js", "/api", "/api/parse/", "/docs", "/redoc", *traversal):
        message = refused(client.get(path), 404)
        assert "GET /api/health, GET /api/models, POST /api/parse, " in message
        assert "static" not in message
    response = client.get("/api/parse")
    assert refused(response, 405) == "send a POST request to this path"
    assert response.headers["allow"] == "POST"
    message = refused(client.post("/api/health", json={}), 405)
    assert message == "send a GET request to this path"
    assert refused(client.post("/api/openapi.json", json={}), 405) == message
    client = TestClient(make_app(root_path="/trees", page=True))
    assert "POST /trees/api/parse" in refused(client.get("/nowhere"), 404)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (None, 415),
        # any web page may send these without a preflight request
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/json; charset=utf-8", 200),
    ],
)
def test_requires_json_as_content_type(client, kind, status):
    headers = {} if kind is None else {"Content-Type": kind}
    response = client.post("/api/encode", content=json.dumps(OK), headers=headers)
    assert response.status_code == status
    assert status == 200 or "application/json" in refused(response, 415)


def test_rejects_text_without_tokens():
    from tokenizers import normalizers

    model = tiny_model("single")
    model.tokenizer.normalizer = normalizers.Replace("#", "")
    client = TestClient(make_app({"m": model}))
    for path in ("parse", "predict", "encode"):
        response = client.post(f"/api/{path}", json={"model": "m", "texts": ["the dog", "##"]})
        message = refused(response, 422)
        assert message.startswith("texts.1: ")
        assert "no words" in message


# sizes and times


def exchange(app, messages, *arguments, **options):
    """Return the result of `converse`, in an event loop of its own."""
    return asyncio.run(asyncio.wait_for(converse(app, messages, *arguments, **options), 20))


async def converse(
    app, messages, path="/api/encode", delay=0.0, stall=None, client="192.0.2.1", **headers
):
    """Call an application directly; return the messages it sent and how many it received.

    The client sends a message every `delay` seconds and stops reading at message number `stall`.
    """
    fields = {**JSON, **headers}.items()
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in fields],
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "root_path": "",
        "http_version": "1.1",
        "client": (client, 4711),
    }
    taken, sent = [], []

    async def receive():
        await asyncio.sleep(60 if len(taken) == len(messages) else delay)
        taken.append(messages[len(taken)])
        return taken[-1]

    async def send(message):
        sent.append(message)
        await asyncio.sleep(60 if len(sent) == stall else 0)

    await app(scope, receive, send)
    return sent, len(taken)


GONE = {"type": "http.disconnect"}


def chunks(count, size):
    return [{"type": "http.request", "body": b" " * size, "more_body": True}] * count


def test_rejects_large_bodies(client):
    body = b" " * LIMITS.body
    assert client.post("/api/encode", content=body, headers=JSON).status_code == 422
    message = refused(client.post("/api/encode", content=body + b" ", headers=JSON), 413)
    assert str(LIMITS.body) in message


@pytest.mark.parametrize(
    ("linger", "headers", "read"),
    [
        (0.0, {}, {17, 18}),
        # reading continues after the error, so that the client can receive it
        (5.0, {}, {17 + 8 * 16, 18 + 8 * 16}),
        (0.0, {"Content-Length": str(LIMITS.body + 1)}, {0, 1}),
        (5.0, {"Content-Length": str(LIMITS.body + 1), "Expect": "100-continue"}, {0}),
    ],
)
def test_large_bodies_are_not_read_to_the_end(monkeypatch, linger, headers, read):
    monkeypatch.setattr(guards, "LINGER_SECONDS", linger)
    sent, taken = exchange(make_app(), chunks(1000, 2**16), **headers)
    assert sent[0]["status"] == 413
    assert dict(sent[0]["headers"])[b"connection"] == b"close"
    assert taken in read
    assert [message.get("more_body") for message in sent] == [None, True, False]


def test_rejects_slow_bodies():
    sent, _ = exchange(make_app(client_seconds=0.1), chunks(1000, 1), delay=0.03)
    assert sent[0]["status"] == 408
    assert b"0.1 seconds" in sent[1]["body"]


COMPLETE = {"type": "http.request", "body": json.dumps(OK).encode()}


def test_slow_connections_get_time_for_large_bodies(monkeypatch):
    monkeypatch.setattr(guards, "BYTES_PER_SECOND", 10)
    messages = [*chunks(2, 100), COMPLETE]
    sent, _ = exchange(make_app(client_seconds=0.5), messages, delay=0.3)
    assert sent[0]["status"] == 200


def test_unfinished_bodies_are_limited_per_client():
    """Clients with many unfinished bodies keep out neither others nor their complete requests."""
    app = make_app(unfinished=2, requests=1, client_seconds=60)

    async def status(message, client):
        sent, _ = await converse(app, [message], client=client)
        return sent[0]["status"], dict(sent[0]["headers"]).get(b"retry-after")

    async def attack():
        (part,) = chunks(1, 5)
        attacker, neighbour, other = "2001:db8::1", "2001:db8::ffff", "2001:db8:0:1::1"
        slow = [asyncio.create_task(status(part, attacker)) for _ in range(2)]
        await asyncio.sleep(0)
        # all addresses of an IPv6 network belong to one client
        assert await status(part, neighbour) == (429, b"1")
        assert await status(COMPLETE, attacker) == (200, None)
        assert await status(COMPLETE, other) == (200, None)
        allowed = asyncio.create_task(status(part, other))
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in (*slow, allowed))
        slow[0].cancel()
        await asyncio.wait(slow[:1])
        again = asyncio.create_task(status(part, neighbour))
        await asyncio.sleep(0.05)
        assert not again.done()
        for task in (*slow, allowed, again):
            task.cancel()
        await asyncio.wait([*slow, allowed, again])

    asyncio.run(asyncio.wait_for(attack(), 20))


def test_unfinished_bodies_are_limited_in_total(monkeypatch):
    monkeypatch.setattr(guards, "HELD_BYTES", 1000)
    monkeypatch.setattr(guards, "LINGER_SECONDS", 0.0)
    app = make_app()
    # the second time, nothing is left over from the first
    for _ in range(2):
        assert exchange(app, [*chunks(2, 500), COMPLETE])[0][0]["status"] == 200
        assert exchange(app, [*chunks(2, 501), COMPLETE])[0][0]["status"] == 503


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::7", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix:" + "x" * 1000, "unix:" + "x" * 95),
    ],
)
def test_clients_are_told_apart_by_network(address, client):
    assert guards.network_of(address) == client


@pytest.mark.parametrize("path", ["/api/encode", "/api/health"])
def test_rejects_two_lengths_of_a_body(path):
    headers = {"Content-Length": "5", "Transfer-Encoding": "chunked"}
    sent, taken = exchange(make_app(), chunks(1, 5), path, **headers)
    assert (sent[0]["status"], taken) == (400, 0)
    assert dict(sent[0]["headers"])[b"connection"] == b"close"
    assert b"not both" in sent[1]["body"]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/api/health", 200), ("/", 200), ("/api/parse", 405), ("/nowhere", 404)],
)
def test_head_has_the_headers_of_get(path, status):
    client = TestClient(make_app(page=True))
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content, head.headers) == (status, b"", get.headers)
    assert get.content


@pytest.mark.parametrize("message", [*chunks(1, 5), COMPLETE])
def test_work_stops_when_the_client_disconnects(message):
    assert exchange(make_app(), [message, GONE]) == ([], 2)


def test_a_client_that_does_not_read_is_disconnected():
    body = json.dumps({"model": "pair", "texts": [LONGEST]}).encode()
    messages = [{"type": "http.request", "body": body}]
    sent, _ = exchange(make_app(client_seconds=0.2), messages, "/api/parse", stall=3)
    assert [len(message["body"]) for message in sent[1:]] == [api_module.CHUNK_BYTES] * 2
    assert sent[2]["more_body"]


def test_rejects_responses_that_would_be_too_large(client, monkeypatch):
    results = post(client, "parse", model="pair", texts=[LONGEST] * 4)["results"]
    # the last bits of scores depend on the batch
    assert results[3]["order"] == results[0]["order"]
    body = {"model": "pair", "texts": [LONGEST] * 64}
    post(client, "encode", **body)
    # before anything is computed
    for name in ("parse", "encode"):
        monkeypatch.setattr(service, name, None)
    for options in ({}, {"samples": 5}):
        response = client.post("/api/parse", json={**body, **options})
        assert str(LIMITS.answer) in refused(response, 422)
    monkeypatch.setattr(api_module, "NUMBER_BYTES", LIMITS.answer // (6 * 64) + 1)
    assert str(LIMITS.answer) in refused(client.post("/api/encode", json=body), 422)


def test_stops_computing_once_a_response_is_too_large(monkeypatch):
    parsed = []

    def parse(served, texts, options):
        parsed.extend(texts)
        return ["1" * (LIMITS.answer // 2)] * len(texts)

    monkeypatch.setattr(service, "parse", parse)
    body = {**OK, "texts": list("abcdef"), "samples": 5}
    response = TestClient(make_app(batch=1)).post("/api/parse", json=body)
    assert str(LIMITS.answer) in refused(response, 422)
    assert parsed == ["a", "b", "c"]


@pytest.mark.parametrize("path", ["/api/parse%0A", "/api/health%0A"])
def test_a_line_feed_in_the_path_does_not_bypass_the_limits(client, path):
    method = "GET" if "health" in path else "POST"
    response = client.request(method, path, content=b"x" * 2**21)
    assert refused(response, 404)
    assert "content-security-policy" in response.headers


# headers, host names, tokens


def test_every_response_has_security_headers(client):
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
        assert guards.API.items() <= {k: response.headers[k] for k in guards.API}.items()
        assert "access-control-allow-origin" not in response.headers
    assert guards.API["Content-Security-Policy"].startswith("default-src 'none'")
    assert guards.API["X-Content-Type-Options"] == "nosniff"
    assert guards.API["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:8000", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8000", 200),
        ("trees.example:443", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("[::2]:8000", 421),
        ("[::1", 421),
        ("", 421),
    ],
)
def test_host_names(host, status):
    app = make_app(hosts=("127.0.0.1", "localhost", "[::1]", "trees.example"))
    assert TestClient(app).get("/api/health", headers={"Host": host}).status_code == status


def test_other_web_sites_need_cors():
    origin = {"Origin": "https://example.org"}
    preflight = {**origin, "Access-Control-Request-Method": "POST"}
    preflight["Access-Control-Request-Headers"] = "content-type,authorization"
    closed = TestClient(make_app())
    assert closed.options("/api/parse", headers=preflight).status_code == 405
    response = closed.post("/api/parse", json=OK, headers=origin)
    assert not [name for name in response.headers if name.startswith("access-control")]

    opened = TestClient(make_app(origins=("https://example.org",), token="a" * 20))
    response = opened.options("/api/parse", headers=preflight)
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


def test_requires_the_token():
    client = TestClient(make_app(token="s3cret-token"))
    assert client.get("/api/health").status_code == 200
    wrong = [None, "", "s3cret-token", "Bearer", "Bearer s3cret-toke", "Basic s3cret-token"]
    for value in [*wrong, "Bearer s3cret-token2", "Bearer s\xe9cret"]:
        headers = {} if value is None else {"Authorization": value.encode("latin-1")}
        for path in ("/api/models", "/api/openapi.json", "/nothing"):
            response = client.get(path, headers=headers)
            assert "s3cret" not in refused(response, 401)
            assert response.headers["www-authenticate"] == "Bearer"
        assert client.post("/api/parse", json=OK, headers=headers).status_code == 401
    for value in ("Bearer s3cret-token", "bearer  s3cret-token"):
        document = client.get("/api/openapi.json", headers={"Authorization": value})
        assert document.json()["security"] == [{"token": []}]


def test_serves_the_page_without_the_token():
    app = make_app(page=True, token="a" * 20)
    client = TestClient(app)
    policy = client.get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; ")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    types = {
        "/": "text/html; charset=utf-8",
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
    plain, packed = (
        client.get("/static/explorer.js", headers={"Accept-Encoding": accepted})
        for accepted in ("gzip;q=0, br", "br, gzip;q=0.5")
    )
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    assert int(packed.headers["content-length"]) < len(plain.content) / 2
    assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert packed.headers["etag"] != plain.headers["etag"]
    for path in ("/static/", "/static", "/static/../api.py", "/static/%2e%2e/api.py", "/api.py"):
        assert client.get(path).status_code in (401, 404)
    assert "/" not in app.openapi()["paths"]
    assert client.get("/api/models").status_code == 401


# errors of the server and its log


class Gated:
    """A method of a model that waits for `gate`, records its calls and fails on "poison"."""

    def __init__(self, method):
        self.method, self.calls = method, []
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, texts):
        self.calls.append(list(texts))
        self.begun.set()
        assert self.gate.wait(20)
        if any("poison" in text for text in texts):
            raise RuntimeError("it broke on poison")
        return self.method(texts)


@pytest.fixture
def gated():
    model = tiny_model("single")
    model.encode = Gated(model.encode)
    return model


@contextmanager
def logged(name):
    """Collect log records; a server run in this process disables their propagation."""
    records, handler, logger = [], logging.Handler(), logging.getLogger(name)
    handler.emit = records.append
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield records
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_unexpected_errors_are_logged_by_id(gated):
    client = TestClient(make_app({"m": gated}))
    with logged("gumbeltree.web") as records:
        response = client.post("/api/encode", json={"model": "m", "texts": ["a poison"]})
    assert response.status_code == 500
    number = response.json()["id"]
    assert number in response.json()["detail"]
    assert "poison" not in response.text
    assert response.headers["x-content-type-options"] == "nosniff"
    (record,) = records
    assert number in record.getMessage()
    assert "it broke on poison" in str(record.exc_info[1])
    assert post(client, "encode", model="m", texts=["the dog"])["vectors"]


def test_unexpected_errors_of_get_requests_are_logged_by_id(caplog):
    app = make_app()

    @app.get("/broken")
    async def broken():
        raise RuntimeError("it broke")

    response = TestClient(app).get("/broken")
    assert response.status_code == 500
    assert response.json()["id"] in caplog.text
    assert "it broke" not in response.text


def test_nan_is_never_sent():
    model = tiny_model("single")
    model.embedding.weight.data.fill_(float("nan"))
    client = TestClient(make_app({"m": model}))
    with logged("gumbeltree.web"):
        for path in ("parse", "predict", "encode", "encode"):
            response = client.post(f"/api/{path}", json={"model": "m", "texts": ["the dog"]})
            assert response.status_code == 500
            assert "NaN" not in response.text
            # without the model's own check
            model.encode = lambda texts: np.full((len(texts), 6), np.nan)


def test_the_access_log_contains_no_input():
    client = TestClient(make_app(access_log=True, token="tttttttt"))
    headers = {"Authorization": "Bearer tttttttt"}
    with logged("gumbeltree.web.access") as records:
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


# concurrent requests


def encode(app, text):
    return TestClient(app).post("/api/encode", json={"model": "m", "texts": [text]})


@contextmanager
def queued(app, gated, texts):
    """Yield futures of requests: one being processed, and the rest waiting in the queue."""
    gated.encode.gate.clear()
    with ThreadPoolExecutor(len(texts)) as pool:
        try:
            first = pool.submit(encode, app, texts[0])
            assert gated.encode.begun.wait(20)
            futures = [first, *(pool.submit(encode, app, text) for text in texts[1:])]
            deadline = time.monotonic() + 20
            while app.state.api.worker.waiting < len(texts) - 1:
                assert time.monotonic() < deadline
                time.sleep(0.002)
            yield futures
        finally:
            gated.encode.gate.set()


def test_waiting_requests_are_batched_but_fail_separately(gated):
    app = make_app({"m": gated})
    texts = ["the dog", "now poison", "one dog", "not one"]
    with logged("gumbeltree.web"), queued(app, gated, ["now", *texts]) as futures:
        health = TestClient(app).get("/api/health").json()
        oldest = health["queue"].pop("oldest")
        assert oldest >= health["thread"].pop("slice") > 0
        assert health["queue"] == {"waiting": 4, "limit": 256}
    responses = [future.result() for future in futures[1:]]
    assert [response.status_code for response in responses] == [200, 500, 200, 200]
    assert [len(call) for call in gated.encode.calls] == [1, 4, 1, 1, 1, 1]
    for number in (0, 2, 3):
        vectors = responses[number].json()["vectors"]
        assert np.allclose(vectors, SINGLE.encode([texts[number]]), atol=1e-6)


def test_concurrent_requests_get_their_own_results():
    app = make_app(linger=0.005)
    texts = [f"{a} {b} {c}" for a in WORDS[:4] for b in WORDS[4:7] for c in WORDS[7:10]]
    vectors = dict(zip(texts, PAIR.encode(texts), strict=True))

    def run(number):
        client = TestClient(app)
        for turn in range(4):
            own = [texts[(7 * number + 5 * turn + step) % len(texts)] for step in range(3)]
            content = post(client, "encode", model="pair", texts=own)
            assert np.allclose(content["vectors"], [vectors[text] for text in own], atol=1e-6)
            results = post(client, "parse", model="single", texts=own)["results"]
            assert [result["text"] for result in results] == own

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(run, range(12)))


@pytest.mark.parametrize("settings", [{"queue": 2}, {"requests": 3}])
def test_overload_is_reported_immediately(gated, settings):
    app = make_app({"m": gated}, **settings)
    with queued(app, gated, ["the dog"] * 3) as futures:
        response = encode(app, "now")
        assert refused(response, 503)
        assert response.headers["retry-after"] == "1"
        assert TestClient(app).get("/api/health").json()["queue"]["waiting"] == 2
    assert [future.result().status_code for future in futures] == [200] * 3
    assert encode(app, "now").status_code == 200


def test_requests_that_time_out_are_dropped(gated):
    app = make_app({"m": gated})
    patient = app.state.api.settings
    with queued(app, gated, ["the dog"]):
        # only for this request: a busy machine may need longer for the others
        app.state.api.settings = dataclasses.replace(patient, timeout=0.3)
        assert "0.3 s" in refused(encode(app, "now"), 504)
        assert app.state.api.worker.waiting == 0
    app.state.api.settings = patient
    assert encode(app, "one dog").status_code == 200
    assert gated.encode.calls == [["the dog"], ["one dog"]]


def test_requests_that_cost_too_much_are_refused(monkeypatch):
    # the cost is 50 and 2 words times 16 + 200 samples
    monkeypatch.setattr(worker_module, "START_RATE", 0.01)
    for path in ("parse", "predict"):
        client = TestClient(make_app(timeout=2))
        response = client.post(f"/api/{path}", json={**OK, "samples": 200})
        assert "about 5 s, and the limit is 1.4 s" in refused(response, 503)
        assert response.headers["retry-after"] == "2"
        # short requests are always accepted
        assert post(client, path, **OK, samples=20)["results"][0]["samples"]
    # only the words that the model reads count
    model = tiny_model("single")
    object.__setattr__(model.config, "max_words", 2)
    client = TestClient(make_app({"single": model}, timeout=2))
    body = {"model": "single", "texts": ["the dog " * 20], "samples": 200}
    assert "about 5 s" in refused(client.post("/api/parse", json=body), 503)


@pytest.mark.parametrize("trees", [{"samples": 100}, {"beams": 20}])
def test_the_server_measures_long_operations_when_it_starts(monkeypatch, trees):
    monkeypatch.setattr(worker_module, "START_RATE", 0.01)
    app = make_app(timeout=60)
    body = {"model": "single", "texts": ["the dog " * 30] * 3, **trees}
    assert refused(TestClient(app).post("/api/parse", json=body), 503)
    with TestClient(app) as client:
        assert post(client, "parse", **body)["results"]
    measured = {operation for operation, _ in app.state.api.worker._measured}
    assert measured == {"start", "samples", "beams"}


def test_the_first_request_for_neighbours_finds_the_phrases_computed():
    app = make_app()
    served = app.state.api.models["single"]
    assert "phrases" not in vars(served)
    with TestClient(app):
        assert "phrases" in vars(served)


@pytest.mark.parametrize("runtime", ["torch", "numpy"])
@pytest.mark.parametrize("encoder", ["gumbel_tree", "beam_tree", "parser_composer"])
def test_beam_search_proceeds_in_steps(tmp_path, runtime, encoder):
    gumbeltree.save(tiny_model("single", encoder=encoder), tmp_path / "model")
    model = load(tmp_path / "model", runtime=runtime)
    text = LONGEST.replace("dog dog dog", "the dog sleeps")
    options = service.Options(beams=5)
    steps = service.parse(service.Served("m", model), [text], options)
    count, result = 0, None
    while result is None:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            (result,) = end.value
    # at most 16 merges each
    assert count > LIMITS.words / 16
    (best,) = model.best_trees([text], 5)
    found = json.loads(result)["beams"]
    assert [tree["order"] for tree in found] == [list(tree.order) for tree, _, _ in best]
    found = [tree["log_prob"] for tree in found]
    assert found == pytest.approx([log_prob for _, _, log_prob in best], abs=1e-4)


@pytest.mark.parametrize(
    "text", ["a " * 500, "dog" + "." * 900, "-dog-" * 190], ids=["refused", "dots", "hyphens"]
)
def test_requests_that_take_no_time_do_not_make_others_seem_fast(text):
    app = make_app({"single": SINGLE, "m": tiny_model("single")})
    client = TestClient(app)
    for _ in range(20):
        response = client.post("/api/parse", json={**OK, "texts": [text], "samples": 200})
        assert response.status_code in (200, 422)
    assert not app.state.api.worker._measured


def test_sampling_is_not_batched(monkeypatch):
    calls = []

    def parse(served, texts, options):
        calls.append(texts)
        return ["1" if text != "x" else service.RefusedError("no") for text in texts]

    monkeypatch.setattr(service, "parse", parse)
    body = {**OK, "texts": ["a", "x", "c"], "samples": 5}
    # the first error ends the request
    response = TestClient(make_app(batch=1)).post("/api/parse", json=body)
    assert refused(response, 422) == "texts.1: no"
    assert calls == [["a"], ["x"]]
    calls.clear()
    body["texts"] = ["a"]
    with TestClient(make_app()) as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: client.post("/api/parse", json=body), range(8)))
    # besides the measurements at the start
    assert calls[8:] == [["a"]] * 8


# the worker


class GatedCall:
    """Record calls, and wait in each for `gate`."""

    def __init__(self):
        self.calls, self.gate, self.begun = [], threading.Event(), threading.Event()

    def __call__(self, items):
        self.calls.append(items)
        self.begun.set()
        assert self.gate.wait(20)
        return [10 * item for item in items]


def start(worker, call, items, cost=1.0, key="a", timeout=20.0, **options):
    """Submit a request from a coroutine; return its task."""
    costs = [cost] * len(items)
    request = worker.run((key,), call, items, costs, timeout, **options)
    return asyncio.ensure_future(request)


@pytest.fixture
def make_worker(monkeypatch):
    """Create workers that believe that a unit of cost takes a second; close them at the end."""
    monkeypatch.setattr(worker_module, "CALL_COST", 0.0)
    monkeypatch.setattr(worker_module, "SHORT_COST", 0.0)
    monkeypatch.setattr(Worker, "_rate", lambda worker, job: 1.0)
    made = []

    def make(**settings):
        made.append(Worker(**{"limit": 100, "linger": 0.0, "batch": 64, **settings}))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def test_worker_batches_by_key_and_size():
    call, worker = GatedCall(), Worker(limit=100, linger=0.0, batch=4)

    async def main():
        first = start(worker, call, [0])
        await asyncio.to_thread(call.begun.wait, 20)
        jobs = [("a", [1, 2]), ("b", [3]), ("a", [4, 5, 6]), ("a", [7]), ("c", [8] * 9), ("b", [9])]
        waiting = [start(worker, call, own, key=key) for key, own in jobs]
        await asyncio.sleep(0)
        assert worker.waiting == 6
        call.gate.set()
        assert await first == [0]
        for (_, own), answer in zip(jobs, waiting, strict=True):
            assert await answer == [10 * item for item in own]

    asyncio.run(main())
    worker.close()
    assert call.calls == [[0], [1, 2, 7], [3, 9], [4, 5, 6], [8] * 4, [8] * 4, [8]]


def test_worker_waits_for_more_requests_and_restarts():
    call, worker = GatedCall(), Worker(limit=100, linger=0.3, batch=3)
    call.gate.set()

    async def main(count):
        await asyncio.gather(*(start(worker, call, [number]) for number in range(count)))

    for count in (2, 1):
        asyncio.run(main(count))
        worker.close()
    assert call.calls == [[0, 1], [0]]


def test_worker_drops_requests_nobody_waits_for():
    call, worker = GatedCall(), Worker(limit=2, linger=0.0, batch=1)

    async def main():
        tasks = [start(worker, call, [0])]
        await asyncio.sleep(0)
        await asyncio.to_thread(call.begun.wait, 20)
        with pytest.raises(LateError):
            await start(worker, call, [1], timeout=0.01)
        cancelled = start(worker, call, [2])
        await asyncio.sleep(0)
        assert worker.waiting == 1
        cancelled.cancel()
        with suppress(asyncio.CancelledError):
            await cancelled
        assert worker.waiting == 0
        tasks += [start(worker, call, [3]), start(worker, call, [4])]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await start(worker, call, [5])
        call.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    worker.close()
    assert call.calls == [[0], [3], [4]]


class Steps:
    """Record the steps of calls; each takes as many as its item says."""

    def __init__(self):
        self.taken, self.gate, self.begun = [], threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, items):
        for item in items:
            for _ in range(item):
                self.taken.append(item)
                self.begun.set()
                assert self.gate.wait(20)
                yield
        return items


def test_short_requests_take_turns_with_long_ones(make_worker, monkeypatch):
    # one step per slice
    monkeypatch.setattr(worker_module, "SLICE_SECONDS", 1e-9)
    steps, worker = Steps(), make_worker()
    steps.gate.clear()

    async def main():
        tasks = [start(worker, steps, [4], cost=1.0, key="long")]
        await asyncio.to_thread(steps.begun.wait, 20)
        # the shorter of two long ones runs first, also if it arrives later
        tasks += [
            start(worker, steps, [6], cost=3.0, key="longer"),
            start(worker, steps, [2], cost=0.5, key="shorter"),
            *(start(worker, steps, [1], cost=0.0, key=key) for key in "ab"),
        ]
        await asyncio.sleep(0)
        assert worker.waiting == 4
        steps.gate.set()
        assert await asyncio.gather(*tasks) == [[4], [6], [2], [1], [1]]

    asyncio.run(main())
    assert steps.taken == [4, 1, 2, 2, 1, *[4] * 3, *[6] * 6]


def test_requests_that_would_end_too_late_are_refused(make_worker):
    call, worker = GatedCall(), make_worker(batch=1)

    async def main():
        with pytest.raises(BusyError) as long:
            await start(worker, call, [1, 2], cost=6.0, timeout=10.0)
        assert long.value.alone == 12.0
        tasks = [start(worker, call, [number], cost=3.0, timeout=10.0) for number in range(2)]
        await asyncio.to_thread(call.begun.wait, 20)
        # 3 + 3 + 3 s of at most 7 s
        with pytest.raises(BusyError) as third:
            await start(worker, call, [2], cost=3.0, timeout=10.0)
        assert 1.5 < third.value.seconds < 2.5
        # one that would delay the others
        with pytest.raises(BusyError):
            await start(worker, call, [2], cost=2.0, timeout=100.0)
        # two that fit
        tasks.append(start(worker, call, [3], cost=0.5, timeout=10.0))
        tasks.append(start(worker, call, [4], cost=9.0, timeout=100.0))
        await asyncio.sleep(0)
        call.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert call.calls == [[0], [3], [1], [4]]


def test_requests_that_have_begun_are_finished(make_worker):
    worker, over, running = make_worker(), threading.Event(), threading.Event()

    def slow(items):
        while not over.is_set():
            running.set()
            time.sleep(0.01)
            yield
        return items

    async def main():
        begun = start(worker, slow, [1], timeout=1.5, cost=0.1)
        await asyncio.to_thread(running.wait, 20)
        with pytest.raises(LateError):
            # longer than the first
            await start(worker, slow, [2], timeout=1.6, cost=0.2, key="b")
        over.set()
        assert await begun == [1]

    asyncio.run(main())


class Panic(BaseException):
    """Not an Exception, as the panics of libraries in Rust."""


@pytest.mark.parametrize("error", [Panic("lost"), SystemExit(3), StopIteration(1)])
@pytest.mark.parametrize("steps", [False, True])
def test_no_error_ends_the_thread(make_worker, error, steps):
    worker = make_worker()

    def fail(items):
        if "bad" in items:
            raise error
        return items

    def fail_later(items):
        yield
        if "bad" in items:
            raise error
        return items

    async def main():
        call = fail_later if steps else fail
        tasks = [start(worker, call, [item]) for item in ("a", "bad", "b")]
        first, failure, last = await asyncio.gather(*tasks, return_exceptions=True)
        assert (first, last) == (["a"], ["b"])
        assert type(failure) is RuntimeError
        assert await start(worker, call, ["c"]) == ["c"]

    asyncio.run(main())


@pytest.mark.parametrize("how", ["item", "call", "not typical"])
def test_only_typical_calls_are_measured(how):
    worker = Worker(limit=100, linger=0.0, batch=64)

    def call(items):
        if how == "call":
            raise ValueError
        return [ValueError() if how == "item" else item for item in items]

    async def main():
        for _ in range(9):
            with suppress(ValueError):
                await start(worker, call, [1], cost=1e5, typical=how != "not typical")
        with pytest.raises(BusyError):
            await start(worker, call, [1], cost=1e6)

    asyncio.run(main())
    worker.close()


def test_old_measurements_do_not_keep_requests_out(monkeypatch):
    worker = Worker(limit=100, linger=0.0, batch=64)

    def call(items):
        time.sleep(items[0])
        return items

    async def main():
        assert await start(worker, call, [0.0], cost=1e5)
        assert await start(worker, call, [0.0], cost=1e6)
        for _ in range(3):
            assert await start(worker, call, [0.1], cost=1.0, key="slow")
        with pytest.raises(BusyError):
            await start(worker, call, [0.0], cost=1e5, key="slow")
        monkeypatch.setattr(worker_module, "RECENT_SECONDS", -1.0)
        assert await start(worker, call, [0.0], cost=1e6)
        assert await start(worker, call, [0.0], cost=1e5, key="slow")

    asyncio.run(main())
    worker.close()


def test_a_slow_call_does_not_make_the_next_ones_refused():
    call, worker = GatedCall(), Worker(limit=100, linger=0.0, batch=64)

    async def main():
        with pytest.raises(LateError):
            await start(worker, call, [1], timeout=0.2)
        call.gate.set()
        assert await start(worker, call, [2], timeout=2.0) == [20]
        assert await start(worker, call, [3, 4], cost=150.0, timeout=2.0) == [30, 40]

    asyncio.run(main())
    worker.close()


def test_a_dead_thread_is_replaced(make_worker, monkeypatch):
    worker, call = make_worker(), GatedCall()
    call.gate.set()
    monkeypatch.setattr(threading, "excepthook", lambda details: None)

    async def kill(item):
        with monkeypatch.context() as patch:
            patch.setattr(worker_module, "_outcome", None)
            with pytest.raises(LateError):
                await start(worker, call, [item], timeout=0.1, cost=0)
            # on a busy machine, the thread may have been too late for this request
            request = start(worker, call, [item], cost=0)
            while worker.alive:
                await asyncio.sleep(0.002)
            request.cancel()
            await asyncio.wait([request])

    async def main():
        await kill(1)
        assert not worker.alive
        worker.check()
        assert worker.alive
        await kill(2)
        # without `check`
        assert await start(worker, call, [3]) == [30]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_stuck_thread_is_reported_and_gets_no_requests(gated, monkeypatch):
    app = make_app({"m": gated}, timeout=2)
    worker = app.state.api.worker
    with queued(app, gated, ["the dog", "one dog"]) as futures:
        assert TestClient(app).get("/api/health").json()["status"] == "ok"
        monkeypatch.setattr(worker_module, "STUCK_SECONDS", 0.0)
        monkeypatch.setattr(api_module, "STUCK_SECONDS", 0.0)
        response = TestClient(app).get("/api/health")
        assert (response.status_code, response.json()["status"]) == (503, "stuck")
        assert refused(encode(app, "now"), 503)
        worker.check()
        assert refused(futures[1].result(), 503)
        assert refused(futures[0].result(), 504)
    worker.close()
    assert encode(app, "now").status_code == 200


def test_other_threads_run_during_tokenization():
    model = tiny_model("single")
    model.tokenizer.normalizer = normalizers.Replace("a", "a" * 999)
    model.tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("a+b"), "isolated")

    def tokenize():
        began = time.monotonic()
        service._find_error(service.Served("m", model), ["a" * 16])
        return began, time.monotonic()

    times = []
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(tokenize)
        while not done.done():
            times.append(time.monotonic())
            time.sleep(0.001)
    began, ended = done.result()
    # not at its start or end, where the thread may be waiting
    middle, margin = (began + ended) / 2, (ended - began) / 4
    assert any(abs(now - middle) < margin for now in times)


def test_a_panic_of_the_tokenizer_fails_one_request(capfd):
    model = tiny_model("single")
    model.tokenizer.normalizer = normalizers.Replace(Regex("(a+)+$"), "b")
    app = make_app({"m": model, "single": SINGLE})
    with logged("gumbeltree.web"):
        assert encode(app, f"{'a' * 53}!").status_code == 500
    assert encode(app, "now").status_code == 200
    assert post(TestClient(app), "predict", model="single", texts=["the dog"])
    with pytest.raises(ValueError, match=r"tokenizer failed on text 0: .*retry-limit"):
        model.predict([f"{'a' * 53}!"])


@pytest.mark.parametrize("settings", [{"trees": "gold"}, {"encoder": "constituency"}])
def test_models_that_follow_the_trees_of_the_data_refuse_plain_text(settings):
    client = TestClient(make_app({"given": tiny_model("single", **settings)}))
    for path in ("parse", "predict", "encode"):
        response = client.post(f"/api/{path}", json={"model": "given", "texts": ["the dog"]})
        assert "model: the model follows gold trees" in refused(response, 422)
