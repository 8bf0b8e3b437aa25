"""Run scikit-learn's own checks on texts.

They make numbers and skip estimators that do not accept two-dimensional arrays. Here, every row of
numbers becomes a text before an estimator sees it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("sklearn", reason="needs gumbeltree[sklearn]")

from sklearn.utils import estimator_checks

from gumbeltree.sklearn import TreeClassifier, TreeRegressor, TreeTransformer

SETTINGS = (
    *("embedding_dim=8", "head.hidden_dim=8", "encoder.hidden_dim=8", "learning_rate=0.05"),
    *("embedding.dropout=0", "head.dropout=0", "training.average=0", "evaluations=1"),
)
ESTIMATORS = (
    TreeClassifier(encoder="bag", epochs=4, settings=SETTINGS),
    TreeRegressor(encoder="bag", epochs=8, settings=SETTINGS),
    TreeTransformer("sst2-100d"),
)

# the table of docs/sklearn.md
NUMBERS = "computes with the numbers in X"
SHAPE = "needs features, columns or rows of X"
ONE_COLUMN = "expects an error for one-dimensional X"
FIT = "expects `fit` to read X, but `TreeTransformer.fit` only loads a model"
SKIPPED = {
    "check_positive_only_tag_during_fit": NUMBERS,
    "check_estimators_dtypes": NUMBERS,
    "check_estimators_nan_inf": NUMBERS,
    "check_estimator_sparse_tag": NUMBERS,
    "check_estimator_sparse_array": NUMBERS,
    "check_estimator_sparse_matrix": NUMBERS,
    "check_f_contiguous_array_estimator": NUMBERS,
    "check_estimators_empty_data_messages": SHAPE,
    "check_methods_subset_invariance": SHAPE,
    "check_fit2d_predict1d": SHAPE,
    "check_n_features_in": SHAPE,
    "check_transformer_general": SHAPE,
    "check_transformer_data_not_an_array": SHAPE,
    "check_classifier_data_not_an_array": SHAPE,
    "check_regressor_data_not_an_array": SHAPE,
    "check_fit1d": ONE_COLUMN,
}
OWN_SKIPPED: dict[type, dict[str, str]] = {
    TreeRegressor: {"check_fit2d_1sample": "expects the words `1 sample` in an error message"},
    TreeTransformer: {"check_complex_data": FIT},
}


class Words(np.ndarray[Any, Any]):
    """Texts `[n]` made of numbers `[n, features]`, which checks use to make labels."""

    numbers: NDArray[Any]

    @classmethod
    def of(cls, X: Any) -> "Words":
        numbers = np.asarray(X).reshape(len(X), -1)
        texts = [" ".join(f"{i}:{2 * x:.0f}" for i, x in enumerate(row)) for row in numbers]
        words = np.array(texts).view(cls)
        words.numbers = numbers
        return words

    def __getitem__(self, key: Any) -> Any:
        column = isinstance(key, tuple) and isinstance(key[-1], int)
        return self.numbers[key] if column else super().__getitem__(key)

    @property
    def T(self) -> Any:
        return self.numbers.T


def texts_of(estimator: Any, X: Any, X_test: Any = None, kernel: Any = None) -> Any:
    return Words.of(X) if X_test is None else (Words.of(X), Words.of(X_test))


def same_in_float32(x: Any, y: Any, err_msg: str = "", **_: float) -> None:
    """Compare results as far as float32 allows; the checks ask for seven digits.

    Some BLAS kernels, such as those of OpenBLAS for Haswell, round differently by row.
    """
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6, err_msg=err_msg)


def checks() -> Iterator[Any]:
    """Yield estimators with all checks of their kind."""
    tags_of = estimator_checks.get_tags

    def tags_with_two_dimensions(estimator: Any) -> Any:
        tags = tags_of(estimator)
        tags.input_tags.two_d_array = True
        return tags

    estimator_checks.get_tags = tags_with_two_dimensions
    try:
        found = [(one, list(estimator_checks._yield_all_checks(one, True))) for one in ESTIMATORS]
    finally:
        estimator_checks.get_tags = tags_of
    for estimator, its_checks in found:
        skipped = {**SKIPPED, **OWN_SKIPPED.get(type(estimator), {})}
        for check in its_checks:
            name = estimator_checks._check_name(check)
            if getattr(check, "keywords", {}).get("readonly_memmap") and "pickle" not in name:
                # the same again: texts made of memory-mapped numbers are an ordinary array
                continue
            reason = skipped.get(name)
            # strict: a check that passes must leave the list
            marks = [] if reason is None else [pytest.mark.xfail(reason=reason)]
            label = f"{type(estimator).__name__}-{name}"
            yield pytest.param(estimator, check, marks=marks, id=label)


@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_check(estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimator_checks, "_enforce_estimator_tags_X", texts_of)
    monkeypatch.setattr(estimator_checks, "assert_allclose_dense_sparse", same_in_float32)
    check(type(estimator).__name__, estimator)
