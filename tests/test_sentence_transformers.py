"""The module for sentence-transformers: encoding, saving, loading and training."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gumbeltree
from gumbeltree.model import save
from tests.models import TEXTS, tiny_model

pytest.importorskip("sentence_transformers", reason="needs gumbeltree[sentence-transformers]")

from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Normalize

from gumbeltree.sentence_transformers import GumbelTree

PAIRS = [
    ("the dog that barked", "one dog sleeps now"),
    ("not all night", "now ."),
    ("the night sleeps .", "all night"),
    ("one dog barked now", "the dog"),
]


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def model():
    return SentenceTransformer(modules=[GumbelTree(tiny_model("single"))], device="cpu")


def test_vectors_equal_those_of_the_model():
    texts = [*TEXTS, "naïve ☃ words", "love " * 300]
    model = SentenceTransformer(modules=[GumbelTree("sst2-100d")], device="cpu")
    expected = gumbeltree.load("sst2-100d").encode(texts)
    np.testing.assert_allclose(model.encode(texts), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode(texts, batch_size=2), expected, atol=1e-5)
    assert model.get_embedding_dimension() == 100
    assert model.max_seq_length == 256


def test_features_are_padded_tensors(model):
    features = model.preprocess(["the dog sleeps", "now"], prompt="not ")
    names = [[model.tokenizer.id_to_token(i) for i in row] for row in features["input_ids"]]
    assert names[0] == ["not", "the", "dog", "sleeps"]
    assert names[1][:2] == ["not", "now"]
    assert features["attention_mask"].tolist() == [[int(i < n) for i in range(4)] for n in (4, 2)]
    # padding has no effect
    features["input_ids"][1, 2:] = 3
    vector = model(features)["sentence_embedding"][1].detach().numpy()
    np.testing.assert_allclose(vector, model[0].model.encode(["not now"])[0], atol=1e-6)


def test_length_limit(model):
    model.max_seq_length = 2
    np.testing.assert_allclose(*model.encode(["the dog sleeps", "the dog"]), atol=1e-6)
    assert model[0].model.config.max_words == 2


@pytest.mark.parametrize("rest", [[], [Normalize()]], ids=["alone", "normalized"])
def test_saving_and_loading(tmp_path, rest):
    model = SentenceTransformer(modules=[GumbelTree(tiny_model("single")), *rest], device="cpu")
    expected = model.encode(TEXTS)
    # twice, to the same folder
    for _ in range(2):
        model.save_pretrained(str(tmp_path / "model"))
    files = {path.name for path in (tmp_path / "model" / "0_GumbelTree").iterdir()}
    assert files == {"config.json", "model.safetensors", "tokenizer.json"}
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".bin", ".pt", ".pkl")]
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        SentenceTransformer(str(tmp_path / "model"), device="cpu")
    again = SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=True)
    assert np.array_equal(again.encode(TEXTS), expected)
    inner = tmp_path / "model" / "0_GumbelTree"
    without_flag = SentenceTransformer(modules=[GumbelTree(inner), *rest], device="cpu")
    assert np.array_equal(without_flag.encode(TEXTS), expected)
    vectors = gumbeltree.load(inner, runtime="numpy").encode(TEXTS)
    assert rest or vectors == pytest.approx(expected, abs=1e-5)


def test_a_saved_model_imports_its_module_by_name(model, tmp_path, monkeypatch):
    model.save_pretrained(str(tmp_path / "model"))
    name = "gumbeltree.sentence_transformers"
    # restored at the end
    monkeypatch.setattr(gumbeltree, "sentence_transformers", sys.modules[name])
    monkeypatch.delitem(sys.modules, name)
    again = SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=True)
    assert type(again[0]).__module__ == name
    assert type(again[0]) is sys.modules[name].GumbelTree is not GumbelTree


# the import takes seconds
@pytest.mark.slow
def test_a_saved_model_loads_in_a_new_process(model, tmp_path):
    model.save_pretrained(str(tmp_path / "model"))
    code = (
        "from sentence_transformers import SentenceTransformer\n"
        f"model = SentenceTransformer({str(tmp_path / 'model')!r}, trust_remote_code=True)\n"
        "print(type(model[0]).__module__)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1:] == ["gumbeltree.sentence_transformers"], result.stderr


def test_merges_are_sampled_in_training_only(model):
    # embeddings have dropout in training, so compare the trees
    module, orders = model[0], []
    encode = module.model.encoder.forward

    def record(*args, **kwargs):
        encoding = encode(*args, **kwargs)
        orders.append(encoding.order.tolist())
        return encoding

    module.model.encoder.forward = record
    features = model.preprocess(["the dog that barked all night sleeps now ."] * 20)
    model.eval()
    model(dict(features))
    model.train()
    model(dict(features))
    greedy, sampled = orders
    assert all(order == greedy[0] for order in greedy)
    assert len({tuple(order) for order in sampled}) > 5


def test_training_lowers_the_loss(model, tmp_path):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("accelerate")
    loss = MultipleNegativesRankingLoss(model)
    columns = dict(zip(("anchor", "positive"), map(list, zip(*PAIRS, strict=True)), strict=True))
    features = [model.preprocess(column) for column in zip(*PAIRS, strict=True)]
    before = {name: x.clone() for name, x in model[0].model.state_dict().items()}

    def measured():
        model.eval()
        with torch.no_grad():
            return loss([dict(column) for column in features], torch.zeros(4)).item()

    first = measured()
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path / "trainer"),
        num_train_epochs=80,
        per_device_train_batch_size=4,
        learning_rate=0.03,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    data = datasets.Dataset.from_dict(columns)
    SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss).train()
    assert measured() < 0.5 * first
    changed = {
        name.partition(".")[0]
        for name, x in model[0].model.state_dict().items()
        if not torch.equal(x, before[name])
    }
    assert changed == {"embedding", "encoder"}
    assert not torch.equal(model[0].model.encoder.query, before["encoder.query"])
    model.save_pretrained(str(tmp_path / "model"))
    again = SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=True)
    assert np.array_equal(again.encode(TEXTS), model.encode(TEXTS))


def test_results_from_before_the_training_are_kept_apart(tmp_path):
    start = tiny_model("single")
    start.provenance = {"metrics": {"dev_accuracy": 0.9}}
    save(start, tmp_path / "start")
    model = SentenceTransformer(modules=[GumbelTree(tmp_path / "start")], device="cpu")
    model.encode(["now"])
    model.save_pretrained(str(tmp_path / "same"))
    model.train()
    for _ in range(2):
        model(model.preprocess(["the dog"]))
    model.save_pretrained(str(tmp_path / "trained"))

    def provenance(name):
        path = Path(tmp_path, name, "0_GumbelTree", "config.json")
        return json.loads(path.read_text("utf-8"))["provenance"]

    assert provenance("same") == start.provenance
    assert provenance("trained")["init"] == start.provenance
    assert provenance("trained").keys() == {"init", "trained_by"}


def test_wrong_texts(model):
    with pytest.raises(ValueError, match="must contain at least one word, got ''"):
        model.encode(["now", ""])
    with pytest.raises(TypeError, match="must be a string, got int"):
        model.preprocess(["now", 3])
    with pytest.raises(FileNotFoundError, match="no-model"):
        GumbelTree("no-model")
    with pytest.raises(AttributeError):
        model.tokenizer = None


def test_importing_without_the_library_names_the_extra():
    code = (
        "import sys\nsys.modules['sentence_transformers'] = None\n"
        "try:\n    import gumbeltree.sentence_transformers\n"
        "except ImportError as error:\n    print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    (line,) = result.stdout.splitlines()
    assert "gumbeltree.sentence_transformers needs sentence-transformers, which is not" in line
    assert "[sentence-transformers]" in line
