"""The NumPy runtime and torch give the same answers, and NumPy does so without torch."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import gumbeltree
from gumbeltree.analysis.index import model_digest
from gumbeltree.analysis.samples import predict_trees, span_probabilities
from gumbeltree.analysis.trace import trace_many
from gumbeltree.light.model import LightModel
from gumbeltree.model import SentenceModel, save
from gumbeltree.parts import LEAVES
from gumbeltree.runtimes import load, load_for_use
from tests.models import TEXTS, tiny_model

SHORT = ["i", "i love", *TEXTS, "naïve ☃ 🙂 words", "love " * 40]


@pytest.fixture(params=["single", "pair"])
def folder(request, tmp_path):
    save(tiny_model(request.param), tmp_path / "model")
    return tmp_path / "model"


def both(folder):
    return load(folder, runtime="torch"), load(folder, runtime="numpy")


def test_runtimes_agree_on_texts(folder):
    torch_model, light = both(folder)
    assert isinstance(torch_model, SentenceModel)
    assert isinstance(light, LightModel)
    np.testing.assert_allclose(light.encode(SHORT), torch_model.encode(SHORT), atol=1e-5)
    assert light.parse_many(SHORT) == torch_model.parse_many(SHORT)
    texts = SHORT if light.head.sentences == 1 else list(zip(SHORT, SHORT[::-1], strict=True))
    for a, b in zip(light.predict(texts), torch_model.predict(texts), strict=True):
        assert a.label == b.label
        assert a.probabilities == pytest.approx(b.probabilities, abs=1e-5)


@pytest.mark.parametrize("seed", [None, 3])
def test_runtimes_agree_on_traces(folder, seed):
    torch_model, light = both(folder)
    for a, b in zip(
        trace_many(light, SHORT, seed=seed), trace_many(torch_model, SHORT, seed=seed), strict=True
    ):
        assert a.tree == b.tree
        np.testing.assert_allclose(a.states, b.states, atol=1e-5)
        for layer, other in zip(a.layers, b.layers, strict=True):
            assert layer.scores == pytest.approx(other.scores, abs=1e-5)
        for node, other in zip(a.nodes, b.nodes, strict=True):
            assert node.classes == (other.classes and pytest.approx(other.classes, abs=1e-5))
    spans = [span_probabilities(model, TEXTS[0], samples=20, seed=1) for model in both(folder)]
    assert spans[0] == spans[1]
    second = SHORT[::-1] if light.head.sentences == 2 else None
    for options in ({"seed": 2}, {"tree": "balanced"}):
        for a, b in zip(
            predict_trees(light, SHORT, second, **options),
            predict_trees(torch_model, SHORT, second, **options),
            strict=True,
        ):
            assert a.probabilities == pytest.approx(b.probabilities, abs=1e-5)


@pytest.mark.parametrize("half", [False, True])
def test_runtimes_agree_on_the_digest_of_a_model(tmp_path, half):
    save(tiny_model("single"), tmp_path / "model", half_embeddings=half)
    torch_model, light = both(tmp_path / "model")
    assert model_digest(light) == model_digest(torch_model)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_runtimes_agree_on_the_digest_in_every_precision(tmp_path, dtype):
    save(tiny_model("single").to(dtype), tmp_path / "model")
    torch_model, light = both(tmp_path / "model")
    assert model_digest(light) == model_digest(torch_model)


def test_digest_is_that_of_the_loaded_weights(tmp_path):
    save(tiny_model("single"), tmp_path / "model")
    light = load(tmp_path / "model", runtime="numpy")
    before = model_digest(light)
    other = tiny_model("single")
    other.embedding.weight.data += 1
    save(other, tmp_path / "model")
    assert model_digest(light) == before


def test_public_load_uses_torch_if_installed(folder):
    assert isinstance(gumbeltree.load(folder), SentenceModel)


def test_commands_use_numpy_on_a_cpu(folder):
    assert isinstance(load_for_use(str(folder), "cpu"), LightModel)
    assert isinstance(load_for_use(str(folder), "cpu", "torch"), SentenceModel)


@pytest.mark.parametrize("command", ["parse", "predict"])
def test_commands_print_the_same_with_both_runtimes(cli, tmp_path, command):
    save(tiny_model("single"), tmp_path / "model")
    results = [
        cli(command, tmp_path / "model", *TEXTS, "--runtime", runtime)
        for runtime in ("numpy", "torch")
    ]
    assert results[0].code == 0
    assert results[0] == results[1]


def test_rejects_unknown_runtimes_and_numpy_on_cuda(cli, folder):
    assert "jax" in cli("predict", folder, "i", "--runtime", "jax").refused()
    refused = cli("encode", folder, "i", "--runtime", "numpy", "--device", "cuda", "--out", "x.npy")
    assert "cuda" in refused.refused()
    with pytest.raises(ValueError, match="cuda"):
        load(folder, "cuda", "numpy")


def without_torch(*arguments: object, code: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command, or `code`, in a process that cannot import torch."""
    program = (
        "import sys\n"
        "sys.modules.update(torch=None, lightning_fabric=None)\n"
        f"{code or 'from gumbeltree.cli import main; main()'}"
    )
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "MODEL", "i love this"),
        ("parse", "MODEL", "i love this", "--draw"),
        ("encode", "MODEL", "i love this", "--out", "OUT.npy"),
        ("draw", "MODEL", "i love this", "--out", "OUT.svg", "--seed", "1"),
        ("models",),
        ("info", "MODEL"),
        ("info", "sst2-100d"),
        ("recipes",),
        ("data", "get", "--list"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_commands_that_work_without_torch(tmp_path, arguments):
    save(tiny_model("single"), tmp_path / "model")
    places = {name: tmp_path / name.lower() for name in ("MODEL", "OUT.npy", "OUT.svg")}
    result = without_torch(*(places.get(argument, argument) for argument in arguments))
    assert result.returncode == 0, result.stderr
    assert "torch" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "demo", "--out", "RUN"),
        ("evaluate", "MODEL", "--data", "x.tsv"),
        ("predict", "MODEL", "i", "--runtime", "torch"),
        ("predict", "MODEL", "i", "--device", "cuda"),
        ("bench",),
        ("demo", "--out", "RUN"),
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_commands_that_need_torch_say_so_in_one_line(tmp_path, arguments):
    save(tiny_model("single"), tmp_path / "model")
    places = {"MODEL": tmp_path / "model", "RUN": tmp_path / "run"}
    result = without_torch(*(places.get(argument, argument) for argument in arguments))
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "PyTorch" in line
    assert "[torch]" in line
    assert not (tmp_path / "run").exists()


def test_python_without_torch(tmp_path):
    save(tiny_model("single"), tmp_path / "model")
    code = (
        "import gumbeltree\n"
        f"model = gumbeltree.load({str(tmp_path / 'model')!r})\n"
        "print(type(model).__name__, model.encode(['i love this']).shape)\n"
        f"gumbeltree.load({str(tmp_path / 'model')!r}, 'cpu')\n"
        "for name in ('cuda', 'cpu'):\n"
        "    try:\n"
        f"        gumbeltree.load({str(tmp_path / 'model')!r}, name, 'torch')\n"
        "    except ImportError as error:\n        print(error)\n"
        "try:\n    gumbeltree.train\n"
        "except ImportError as error:\n    print(error)"
    )
    result = without_torch(code=code)
    assert result.returncode == 0, result.stderr
    first, *loads, second = result.stdout.splitlines()
    assert len(loads) == 2
    assert all("PyTorch" in line for line in loads)
    assert first.startswith("LightModel (1, ")
    assert "gumbeltree.train needs PyTorch" in second


def test_packaged_models_give_the_same_answers():
    for about in gumbeltree.pretrained_models():
        torch_model, light = both(about.folder)
        # it knows no English word, and the scores of unknown words tie
        texts = ["7", "[MIN 8 6 ]", "[SM 2 [MAX 3 9 ] 4 ]"] if about.task == "listops" else SHORT
        np.testing.assert_allclose(light.encode(texts), torch_model.encode(texts), atol=1e-5)
        assert light.parse_many(texts) == torch_model.parse_many(texts)


def test_parts_without_a_numpy_version_are_refused_by_name(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.delitem(LEAVES.light, "lstm")
        with pytest.raises(ImportError, match=r"leaf 'lstm'.*use the torch runtime"):
            load(folder, runtime="numpy")
        # commands fall back to torch where it is installed
        assert isinstance(load_for_use(str(folder), "cpu"), SentenceModel)
    assert isinstance(load_for_use(str(folder), "cpu"), LightModel)


@pytest.mark.parametrize("runtime", ["numpy", "torch"])
@pytest.mark.parametrize("method", ["predict", "encode", "parse_many", "best_trees"])
def test_models_of_listops_read_expressions_alone(runtime, method):
    read = getattr(load_for_use("listops-64d", "cpu", runtime), method)
    assert len(read(["[MAX 1 2 ]"])) == 1
    with pytest.raises(ValueError, match=r"text 1: expected one expression .* no parentheses$"):
        read(["[MAX 1 2 ]", "hello world"])
