"""The estimators for scikit-learn: training, use, pickling and errors."""

import io
import pickle
import subprocess
import sys

import numpy as np
import pytest

import gumbeltree
from gumbeltree.light.model import LightModel
from gumbeltree.model import SentenceModel
from gumbeltree.parts import ENCODERS

pytest.importorskip("sklearn", reason="needs gumbeltree[sklearn]")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

from gumbeltree.sklearn import TreeClassifier, TreeRegressor, TreeTransformer

TEXTS = ["a gem .", "so dull .", "i loved it .", "what a waste of time ."] * 8
LABELS = ["good", "bad"] * 16
SETTINGS = (
    "evaluation_steps=1",
    *("embedding_dim=8", "encoder.hidden_dim=8", "head.hidden_dim=8", "learning_rate=0.05"),
    *("embedding.dropout=0", "training.average=0", "batch_size=8", "stop_after=0"),
    *("dev_fraction=0.3", "patience=100"),
)


def classifier(**params):
    return TreeClassifier(**{"settings": SETTINGS, "epochs": 4, **params})


def regressor(**params):
    return TreeRegressor(**{"settings": SETTINGS, "epochs": 4, **params})


def without(*modules, code):
    """Run code in a process that does not find these modules.

    None in `sys.modules` would break SciPy, which looks for torch there.
    """
    program = f"""
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *rest):
        if name.partition(".")[0] not in {modules}:
            return self.finder.find_spec(name, *rest)

sys.meta_path[:] = map(Without, sys.meta_path)
{code}
"""
    command = [sys.executable, "-W", "error", "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def modules_in(state):
    """Return the modules whose objects a pickle needs."""
    found = set()

    class Recorder(pickle.Unpickler):
        def find_class(self, module, name):
            found.add(module.partition(".")[0])
            return super().find_class(module, name)

    Recorder(io.BytesIO(state)).load()
    return found


def test_classifier_learns():
    model = classifier().fit(TEXTS, LABELS)
    assert model.score(TEXTS, LABELS) == 1
    shares = model.predict_proba(np.array(TEXTS, dtype=object))
    assert shares.shape == (32, 2)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert model.classes_.tolist() == ["bad", "good"]
    assert (model.classes_[shares.argmax(1)] == model.predict(TEXTS)).all()
    assert model.predict_proba([]).shape == (0, 2)
    # no text is held out for a test
    assert "test" not in model.model_.provenance["data"]["splits"]


def test_the_arguments_are_those_of_train_text(tmp_path):
    settings = [*SETTINGS, "epochs=4", "test_fraction=0"]
    expected = gumbeltree.train_text(
        TEXTS, LABELS, encoder="lstm", settings=settings, seed=3, quiet=True
    )
    model = classifier(encoder="lstm", random_state=3, out=tmp_path / "run").fit(TEXTS, LABELS)
    np.testing.assert_allclose(model.model_.encode(TEXTS), expected.encode(TEXTS), atol=1e-6)
    assert gumbeltree.load(tmp_path / "run").labels == ("bad", "good")
    drawn = [classifier(random_state=state).fit(TEXTS, LABELS) for state in (None, None)]
    assert not np.array_equal(*(one.model_.encode(TEXTS) for one in drawn))


@pytest.mark.parametrize(
    "labels",
    [[10, 9], [True, False], ["10", " 9"], [1.0, 0.0]],
    ids=["int", "bool", "str", "float"],
)
@pytest.mark.parametrize("column", [list, np.array, "Series"])
def test_labels_keep_their_type(labels, column):
    if column == "Series":
        column = pytest.importorskip("pandas").Series
    model = classifier(encoder="bag").fit(column(TEXTS), column(labels * 16))
    assert model.classes_.dtype.kind == np.array(labels).dtype.kind or column is not np.array
    assert model.classes_.tolist() == sorted(labels)
    assert model.predict(column(TEXTS[:2])).tolist() == labels
    assert model.predict_proba(TEXTS[:1])[0].argmax() == sorted(labels).index(labels[0])


def test_regressor_learns():
    y = [2.5, -1.5] * 16
    model = regressor(epochs=20).fit(TEXTS, y)
    assert model.predict(TEXTS).shape == (32,)
    assert model.score(TEXTS, y) > 0.9


@pytest.mark.parametrize(
    ("estimator", "method"),
    [(classifier(), "predict_proba"), (regressor(), "predict"), (TreeTransformer(), "transform")],
    ids=["classifier", "regressor", "transformer"],
)
def test_pickles_hold_a_model_folder_and_work_without_torch(estimator, method, tmp_path):
    estimator.fit(TEXTS, [1, 0] * 16)
    assert isinstance(estimator.model_, LightModel)
    expected = getattr(estimator, method)(TEXTS)
    state = pickle.dumps(estimator)
    assert modules_in(state) <= {"gumbeltree", "numpy"}
    assert b"LightModel" not in state
    again = pickle.loads(state)
    assert np.array_equal(getattr(again, method)(TEXTS), expected)
    assert pickle.dumps(again) == state

    (tmp_path / "state").write_bytes(state)
    code = (
        "import pickle, tempfile, pathlib, numpy\n"
        f"tempfile.tempdir = {str(tmp_path / 'empty')!r}\n"
        "folder = pathlib.Path(tempfile.tempdir); folder.mkdir()\n"
        f"estimator = pickle.loads(pathlib.Path({str(tmp_path / 'state')!r}).read_bytes())\n"
        "assert not list(folder.iterdir())\n"
        f"numpy.save({str(tmp_path / 'found.npy')!r}, estimator.{method}({TEXTS!r}))"
    )
    without("torch", "lightning_fabric", code=code)
    assert np.array_equal(np.load(tmp_path / "found.npy"), expected)


def test_pickles_of_estimators_before_fit():
    again = pickle.loads(pickle.dumps(classifier()))
    assert again.get_params() == classifier().get_params()
    with pytest.raises(NotFittedError):
        again.predict(TEXTS)


def test_parts_without_a_numpy_version_use_torch(monkeypatch):
    monkeypatch.delitem(ENCODERS.light, "bag")
    model = classifier(encoder="bag", epochs=1).fit(TEXTS, LABELS)
    assert isinstance(model.model_, SentenceModel)
    state = pickle.dumps(model)
    assert modules_in(state) <= {"gumbeltree", "numpy"}
    assert b"SentenceModel" not in state
    assert (pickle.loads(state).predict(TEXTS) == model.predict(TEXTS)).all()


def test_training_without_torch_names_the_extra():
    code = (
        "from gumbeltree.sklearn import TreeClassifier\n"
        "try:\n    TreeClassifier().fit(['a', 'b'], [0, 1])\n"
        "except ImportError as error:\n    print(error)"
    )
    assert "needs PyTorch" in without("torch", "lightning_fabric", code=code)


def test_importing_without_scikit_learn_names_the_extra():
    code = "try:\n    import gumbeltree.sklearn\nexcept ImportError as error:\n    print(error)"
    (line,) = without("sklearn", code=code).splitlines()
    assert line.startswith("gumbeltree.sklearn needs scikit-learn, which is not installed; run: ")
    assert "[sklearn]" in line


def test_grid_search_and_cross_validation():
    search = GridSearchCV(classifier(epochs=1), {"encoder": ["bag", "lstm"]}, cv=2)
    search.fit(TEXTS, LABELS)
    assert search.best_params_["encoder"] in ("bag", "lstm")
    assert search.predict(TEXTS[:3]).shape == (3,)
    scores = cross_val_score(classifier(epochs=1, encoder="bag"), np.array(TEXTS), LABELS, cv=2)
    assert scores.shape == (2,)


def test_transformer_in_a_pipeline():
    expected = gumbeltree.load("sst2-100d").encode(TEXTS)
    transformer = TreeTransformer("sst2-100d")
    vectors = transformer.fit_transform(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert list(transformer.get_feature_names_out())[::99] == [
        "treetransformer0",
        f"treetransformer{99}",
    ]
    pipeline = make_pipeline(transformer, LogisticRegression()).fit(TEXTS, LABELS)
    assert pipeline.score(TEXTS, LABELS) == 1
    again = pickle.loads(pickle.dumps(pipeline))
    assert (again.predict(TEXTS) == pipeline.predict(TEXTS)).all()
    assert clone(pipeline).get_params()["treetransformer__model"] == "sst2-100d"


def test_transformer_reads_folders_and_returns_data_frames(tmp_path):
    pandas = pytest.importorskip("pandas")
    run = tmp_path / "run"
    classifier(encoder="bag", epochs=1, out=run).fit(TEXTS, LABELS)
    frame = (
        TreeTransformer(run)
        .set_output(transform="pandas")
        .fit_transform(pandas.Series(TEXTS[:3], index=[5, 6, 7]))
    )
    assert frame.shape == (3, 8)
    assert list(frame.index) == [5, 6, 7]
    with pytest.raises(FileNotFoundError, match="sst2-10d"):
        TreeTransformer("sst2-10d").fit(TEXTS)


@pytest.mark.parametrize(
    ("estimator", "method"),
    [
        (classifier(), "predict"),
        (classifier(), "predict_proba"),
        (regressor(), "predict"),
        (TreeTransformer(), "transform"),
        (TreeTransformer(), "get_feature_names_out"),
    ],
)
def test_use_before_fit(estimator, method):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(estimator, method)(TEXTS)


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (np.array([TEXTS]).T, ValueError, r"one column of texts, got ndarray of shape \(32, 1\)"),
        (np.arange(32), TypeError, "text 0 must be a string, got int"),
        ([*TEXTS[:31], 5], TypeError, "text 31 must be a string, got int"),
        ([*TEXTS[:3], None, *TEXTS[4:]], TypeError, r"text of row 3 is missing \(None\)"),
        ([*TEXTS[:3], float("nan"), *TEXTS[4:]], TypeError, r"text of row 3 is missing \(nan\)"),
        (None, ValueError, "one column of texts, got NoneType"),
        ("a gem .", TypeError, "got one string"),
        (np.array("a gem ."), ValueError, r"shape \(\)"),
    ],
)
def test_wrong_texts(X, error, message):
    fitted = TreeTransformer("sst2-100d").fit(TEXTS)
    for call in (
        lambda: classifier().fit(X, LABELS),
        lambda: regressor().fit(X, [1.0, 2.0] * 16),
        lambda: fitted.transform(X),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize(
    ("make", "y", "message"),
    [
        (classifier, LABELS[:31], "32 texts and 31 labels"),
        (regressor, [1.0, 2.0, 3.0], "32 texts and 3 labels"),
        (classifier, None, "requires y to be passed"),
        (classifier, [*LABELS[:5], None, *LABELS[6:]], r"label of row 5 is missing \(None\)"),
        (regressor, [*[1.0] * 31, float("nan")], r"label of row 31 is missing \(nan\)"),
        (regressor, [*[1.0] * 31, float("inf")], "Input y contains infinity"),
        (regressor, LABELS, "could not convert string to float: .*'good'"),
        (classifier, ["good"] * 32, r"only one class, \['good'\]"),
        (classifier, np.linspace(0, 1, 32), "continuous"),
        (classifier, ["good", "good "] * 16, r"white space .* \['good', 'good '\]"),
        (classifier, np.array([LABELS, LABELS]).T, "1d array"),
    ],
)
def test_wrong_labels(make, y, message):
    with pytest.raises(ValueError, match=message):
        make().fit(TEXTS, y)


def test_settings_must_be_a_list():
    with pytest.raises(TypeError, match=r"pass \['epochs=1'\]"):
        classifier(settings="epochs=1").fit(TEXTS, LABELS)
