"""Estimators for scikit-learn: X is a column of texts, such as a list, an array or a Series."""

import numbers
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gumbeltree.extras import needs
from gumbeltree.hub import FILES
from gumbeltree.runtimes import load_for_use
from gumbeltree.store import find_model
from gumbeltree.text.batches import as_texts, is_missing
from gumbeltree.text_model import TextModel

with needs(__name__, "scikit-learn", "sklearn", "sklearn"):
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        ClassNamePrefixFeaturesOutMixin,
        RegressorMixin,
        TransformerMixin,
    )
    from sklearn.utils import assert_all_finite, check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted


class _TextEstimator(BaseEstimator):
    """An estimator of texts, pickled as the files of its model folder."""

    model_: TextModel
    _files: dict[str, bytes]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in super().__getstate__().items() if name != "model_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_files" in state:
            with TemporaryDirectory() as folder:
                for name, content in self._files.items():
                    Path(folder, name).write_bytes(content)
                self.model_ = _load(Path(folder))

    def _keep(self, folder: Path) -> None:
        """Use the model in a folder, which can be deleted afterwards."""
        self.model_ = _load(folder)
        self._files = {name: (folder / name).read_bytes() for name in FILES}

    def _fitted(self) -> TextModel:
        """Return the model; raise NotFittedError before `fit`."""
        check_is_fitted(self, "model_")
        return self.model_


class _TrainedEstimator(_TextEstimator):
    """An estimator that trains its model."""

    def __init__(
        self,
        *,
        encoder: str = "tree",
        vectors: str | Path | None = None,
        settings: Sequence[str] = (),
        epochs: int | None = None,
        random_state: Any = 0,
        out: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        self.encoder = encoder
        self.vectors = vectors
        self.settings = settings
        self.epochs = epochs
        self.random_state = random_state
        self.out = out
        self.verbose = verbose

    def _train(self, X: Any, labels: list[Any], target: str) -> None:
        # through the package, whose message says how to install torch
        from gumbeltree import save, train_text

        settings = self.settings
        # `train_text` rejects a single string
        if not isinstance(settings, str):
            epochs = () if self.epochs is None else (f"epochs={self.epochs}",)
            # scores come from scikit-learn, so no test split is needed
            settings = ("test_fraction=0", *settings, *epochs)
        seed = self.random_state
        if not isinstance(seed, numbers.Integral):
            seed = check_random_state(seed).randint(2**31 - 1)
        model = train_text(
            _texts(X),
            labels,
            vectors=self.vectors,
            target=target,
            encoder=self.encoder,
            out=self.out,
            settings=settings,
            seed=int(seed),
            quiet=not self.verbose,
        )
        with TemporaryDirectory() as folder:
            save(model, folder)
            self._keep(Path(folder))

    def _column(self, y: Any) -> NDArray[Any]:
        """Return the labels as an array `[n]`."""
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None; pass "
                "one label per text"
            )
        for row, label in enumerate(y):
            if is_missing(label):
                raise ValueError(f"the label of row {row} is missing ({label}); remove the row")
        column: NDArray[Any] = column_or_1d(y, warn=True)
        assert_all_finite(column, input_name="y")
        return column


class TreeClassifier(ClassifierMixin, _TrainedEstimator):
    """Train a classifier of texts with `gumbeltree.train_text`.

    A tenth of the texts becomes the development split, which selects the best model. Predictions
    do not need torch.

    Args:
        encoder: tree, lstm, bag or another kind of encoder; auto trains these three and keeps the
            best model on the development split.
        vectors: a GloVe text file. None computes word vectors from the texts.
        settings: changes to the recipe `text`, each "key=value"; see `gumbeltree.with_settings`.
        epochs: number of epochs; None uses that of the recipe.
        random_state: seed of the training; None draws one.
        out: run folder to keep, which must not exist yet. None leaves nothing on the disk.
        verbose: show the progress of training.

    Attributes:
        classes_: the labels in sorted order, with their own type, `[C]`.
        model_: the model, which also has `encode` and `parse`.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train a model.

        Args:
            X: texts, `[n]`.
            y: label of each text, `[n]`: strings, whole numbers or truth values.
        """
        labels = self._column(y)
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        names = _names(classes)
        if len(names) < 2:
            raise ValueError(f"y contains only one class, {names}; pass texts of two or more")
        if len(set(names)) < len(names):
            raise ValueError(
                f"classes must differ in more than white space around them, got {classes.tolist()}"
            )
        self._train(X, [names[code] for code in codes], "classes")
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each text, `[n]`, with the dtype of `classes_`.

        Args:
            X: texts, `[n]`.
        """
        shares = self.predict_proba(X)
        labels: NDArray[Any] = self.classes_[shares.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class, float64 `[n, C]`, in the order of `classes_`.

        Args:
            X: texts, `[n]`.
        """
        answers = self._fitted().predict(_texts(X))
        names = _names(self.classes_)
        shares = [[answer.probabilities[name] for name in names] for answer in answers]
        return np.array(shares, dtype=np.float64).reshape(-1, len(names))


class TreeRegressor(RegressorMixin, _TrainedEstimator):
    """Train a model that predicts a number per text, with `gumbeltree.train_text`.

    The arguments are those of `TreeClassifier`. Predictions do not need torch.

    Attributes:
        model_: the model, which also has `encode` and `parse`.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train a model.

        Args:
            X: texts, `[n]`.
            y: number of each text, `[n]`.
        """
        self._train(X, self._column(y).astype(np.float64).tolist(), "number")
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the predicted number of each text, float64 `[n]`.

        Args:
            X: texts, `[n]`.
        """
        answers = self._fitted().predict(_texts(X))
        return np.array([answer.value for answer in answers], dtype=np.float64)


class TreeTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _TextEstimator):
    """Encode texts with a trained model, without torch.

    Args:
        model: name of a packaged model, a model folder, the folder of a run, or
            "hub:org/name[@revision]".

    Attributes:
        model_: the model, which also has `parse` and `predict`.
    """

    def __init__(self, model: str | Path = "snli-100d") -> None:
        self.model = model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Load the model.

        Args:
            X: ignored.
            y: ignored.
        """
        self._keep(find_model(self.model))
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return the vectors of texts, float32 `[n, D]`.

        Args:
            X: texts, `[n]`.
        """
        return self._fitted().encode(_texts(X))

    @property
    def _n_features_out(self) -> int:
        width: int = self.model_.encoder.vector_dim
        return width


def _load(folder: Path) -> TextModel:
    """Load a model, without torch unless one of its parts exists only there."""
    return load_for_use(str(folder), "cpu")


def _names(classes: NDArray[Any]) -> list[str]:
    """Return the labels of classes in a model."""
    return [str(label).strip() for label in classes.tolist()]


def _texts(X: Any) -> list[str]:
    """Return a column of texts as a list; raise for anything else."""
    shape = getattr(X, "shape", None)
    if not hasattr(X, "__iter__") or (shape is not None and len(shape) != 1):
        kind = type(X).__name__ if shape is None else f"{type(X).__name__} of shape {shape}"
        raise ValueError(f"X must be one column of texts, got {kind}; pass a list of strings")
    return as_texts(X)
