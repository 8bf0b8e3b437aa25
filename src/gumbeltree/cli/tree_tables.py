"""The tables that the command `trees` prints."""

from collections.abc import Iterator, Sequence

from gumbeltree.analysis.metrics import BASELINES
from gumbeltree.analysis.metrics.report import Accuracy, Comparison, Row
from gumbeltree.answers import ResultTable
from gumbeltree.nn.heads.class_evaluation import Bucket


def results(comparison: Comparison, accuracies: Sequence[Accuracy]) -> Iterator[str | ResultTable]:
    """Yield F1, shape and agreement of the trees, and accuracy by length and depth."""
    kept = {True: "kept", False: "dropped"}
    yield (
        f"sentences: {comparison.sentences:,}; punctuation {kept[comparison.keep_punctuation]}, "
        f"trivial spans {kept[comparison.keep_trivial]}; all values except depth in percent"
    )
    models = comparison.of("model")
    shape = ("depth", "left", "right", "both")
    if comparison.of("gold"):
        rows = [(row.name, *_scores(row), *_shape(row)) for row in comparison.rows]
        yield ResultTable("", ("trees", "F1", "corpus F1", *shape), rows)
    else:
        f1 = [(m.name, *(_percent(m.f1_with[kind].sentence) for kind in BASELINES)) for m in models]
        yield ResultTable("F1 with the trees of each baseline:", ("trees", *BASELINES), f1)
        shapes = [(row.name, *_shape(row)) for row in comparison.rows]
        yield ResultTable("Shape:", ("trees", *shape), shapes)
    if comparison.self_f1 is not None:
        random = comparison.random_self_f1.sentence
        yield f"\nF1 between the models: {_percent(comparison.self_f1.sentence) or 'no spans'}"
        yield f"F1 between random trees: {_percent(random) or 'no spans'}"
        if len(models) > 2:
            for pair in comparison.self_f1.pairs:
                yield f"  {pair.first}, {pair.second}: {_percent(pair.sentence) or 'no spans'}"
    for title, key in (
        ("number of words", "by_length"),
        ("depth of the model's tree", "by_depth"),
        ("depth of the gold tree", "by_gold_depth"),
    ):
        bins = {x.model: {b.name: b for b in getattr(x, key)} for x in accuracies}
        order = {b.name: b.shortest for buckets in bins.values() for b in buckets.values()}
        if order:
            cells = [
                (name, *(_accuracy(buckets.get(name)) for buckets in bins.values()))
                for name in sorted(order, key=order.__getitem__)
            ]
            yield ResultTable(f"Accuracy and number of examples by {title}:", ("", *bins), cells)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def _scores(row: Row) -> tuple[str, str]:
    return ("", "") if row.f1 is None else (_percent(row.f1.sentence), _percent(row.f1.corpus))


def _shape(row: Row) -> tuple[str, str, str, str]:
    shape = row.shape
    if shape is None:
        return ("", "", "", "")
    depth = "" if shape.depth is None else f"{shape.depth:.2f}"
    return (depth, _percent(shape.left), _percent(shape.right), _percent(shape.both))


def _accuracy(bucket: Bucket | None) -> str:
    return f"{_percent(bucket.correct / bucket.examples)} of {bucket.examples:,}" if bucket else ""
