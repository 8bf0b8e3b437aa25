"""Test the heads that classify sentences and pairs."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from gumbeltree import Encoding
from gumbeltree.config import HeadConfig
from gumbeltree.nn.heads.class_evaluation import ClassEvaluation
from gumbeltree.nn.heads.head import Metric
from gumbeltree.ops.pair_features import pair_features
from gumbeltree.parts import HEADS

EPSILON = 1e-5


def randomized(head):
    """Give every weight and running statistic a random value."""
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
        for module in head.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
    return head


def head_of(config, vector_dim):
    return HEADS[config.kind](config, vector_dim)


def run(head, *vectors):
    """Return the output for vectors `[B, D]`."""
    return head(*(Encoding(vector, None) for vector in vectors))


def inputs_of(head, *vectors):
    """Run a head; return its scores and the input of each linear layer."""
    seen = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].detach()))
        for layer in [*head.hidden, head.output]
    ]
    scores = run(head, *vectors)
    for hook in hooks:
        hook.remove()
    return scores.detach(), seen


def normalized(x, norm, mean, variance):
    """Return batch normalization by its definition."""
    weight, bias = norm.weight.detach(), norm.bias.detach()
    return (x - mean) / torch.sqrt(variance + EPSILON) * weight + bias


def test_pair_features_by_hand():
    first = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    second = torch.tensor([[3.0, 4.0], [0.5, -1.0]])
    expected = [
        [1.0, -2.0, 3.0, 4.0, 2.0, 6.0, 3.0, -8.0],
        [0.5, 3.0, 0.5, -1.0, 0.0, 4.0, 0.25, -3.0],
    ]
    assert pair_features(first, second).tolist() == expected


def test_head_by_hand():
    head = head_of(HeadConfig("single", ("bad", "good"), hidden_dim=2), 2).eval()
    with torch.no_grad():
        head.hidden[0].weight.copy_(torch.tensor([[1.0, 2.0], [-1.0, 1.0]]))
        head.hidden[0].bias.copy_(torch.tensor([0.5, -3.0]))
        head.output.weight.copy_(torch.tensor([[2.0, 5.0], [-1.0, 5.0]]))
        head.output.bias.copy_(torch.tensor([0.25, 1.0]))
    # hidden: [1 + 4 + 0.5, -1 + 2 - 3] = [5.5, -2], the second clipped at zero
    assert run(head, torch.tensor([[1.0, 2.0]])).tolist() == [[11.25, -4.5]]


@pytest.mark.parametrize(("kind", "layers"), [("pair", 1), ("single", 3), ("pair", 0)])
def test_number_of_hidden_layers(kind, layers):
    head = randomized(
        head_of(HeadConfig(kind, ("a", "b", "c", "d"), hidden_dim=5, hidden_layers=layers), 3)
    ).eval()
    vectors = [torch.randn(7, 3) for _ in range(2 if kind == "pair" else 1)]
    x = pair_features(*vectors) if kind == "pair" else vectors[0]
    shapes = [(5, x.shape[1]), *[(5, 5)] * 2][:layers]
    assert [tuple(layer.weight.shape) for layer in head.hidden] == shapes
    for layer in head.hidden:
        x = torch.clamp(x @ layer.weight.T + layer.bias, min=0)
    expected = x @ head.output.weight.T + head.output.bias
    torch.testing.assert_close(run(head, *vectors), expected)


def test_batch_norm_uses_running_statistics_in_evaluation():
    config = HeadConfig("pair", hidden_dim=5, hidden_layers=2, batch_norm=True, dropout=0.5)
    head = randomized(head_of(config, 3)).eval()
    u, v = torch.randn(4, 3), torch.randn(4, 3)
    scores, (first, second, last) = inputs_of(head, u, v)
    norm_in, norm_out = head.batch_norm_in, head.batch_norm_out
    x = normalized(pair_features(u, v), norm_in, norm_in.running_mean, norm_in.running_var)
    torch.testing.assert_close(first, x)
    x = torch.relu(head.hidden[0](x))
    torch.testing.assert_close(second, x)
    x = torch.relu(head.hidden[1](x))
    x = normalized(x, norm_out, norm_out.running_mean, norm_out.running_var)
    torch.testing.assert_close(last, x)
    torch.testing.assert_close(scores, head.output(x).detach())


def test_batch_norm_precedes_dropout_in_training():
    # after normalization, dropout sets entries to exactly zero and doubles the others
    config = HeadConfig("pair", hidden_dim=40, hidden_layers=2, batch_norm=True, dropout=0.5)
    head = randomized(head_of(config, 10)).train()
    u, v = torch.randn(16, 10), torch.randn(16, 10)
    before = [norm.running_mean.clone() for norm in (head.batch_norm_in, head.batch_norm_out)]
    scores, (first, second, last) = inputs_of(head, u, v)

    features = pair_features(u, v)
    mean, variance = features.mean(0), features.var(0, unbiased=False)
    whole = normalized(features, head.batch_norm_in, mean, variance)
    kept = first != 0
    assert 0.4 < kept.float().mean() < 0.6
    torch.testing.assert_close(first[kept], 2 * whole[kept])

    # no dropout or normalization between hidden layers
    torch.testing.assert_close(second, torch.relu(head.hidden[0](first)).detach())

    hidden = torch.relu(head.hidden[1](second)).detach()
    mean_out, variance_out = hidden.mean(0), hidden.var(0, unbiased=False)
    whole = normalized(hidden, head.batch_norm_out, mean_out, variance_out)
    kept = last != 0
    assert 0.4 < kept.float().mean() < 0.6
    torch.testing.assert_close(last[kept], 2 * whole[kept])
    torch.testing.assert_close(scores, head.output(last).detach())

    # running statistics are those before dropout
    for norm, old, new in zip(
        (head.batch_norm_in, head.batch_norm_out), before, (mean, mean_out), strict=True
    ):
        torch.testing.assert_close(norm.running_mean, 0.9 * old + 0.1 * new)


def test_without_hidden_layers_batch_norm_and_dropout_apply_once():
    config = HeadConfig("single", hidden_layers=0, batch_norm=True, dropout=0.5)
    head = randomized(head_of(config, 40)).train()
    u = torch.randn(16, 40)
    scores, (last,) = inputs_of(head, u)
    whole = normalized(u, head.batch_norm_in, u.mean(0), u.var(0, unbiased=False))
    kept = last != 0
    assert 0.4 < kept.float().mean() < 0.6
    torch.testing.assert_close(last[kept], 2 * whole[kept])
    torch.testing.assert_close(scores, head.output(last).detach())


def test_batch_norm_is_optional():
    head = head_of(HeadConfig(hidden_dim=5), 3)
    assert not any(isinstance(module, nn.BatchNorm1d) for module in head.modules())
    assert not list(head.buffers())


@pytest.mark.parametrize("batch_norm", [False, True])
def test_dropout_is_off_in_evaluation(batch_norm):
    head = randomized(
        head_of(HeadConfig(hidden_dim=5, dropout=0.9, batch_norm=batch_norm), 3)
    ).eval()
    u, v = torch.randn(4, 3), torch.randn(4, 3)
    assert torch.equal(run(head, u, v), run(head, u, v))


def test_initial_weights_follow_the_supplement():
    config = HeadConfig("pair", hidden_dim=400, hidden_layers=2, output_range=0.02, batch_norm=True)
    head = head_of(config, 50)
    for layer, inputs in zip(head.hidden, (200, 400), strict=True):
        weight = layer.weight.detach().numpy().ravel()
        scale = math.sqrt(2 / inputs)
        assert abs(weight.mean()) < 4 * scale / math.sqrt(weight.size)
        assert weight.std() == pytest.approx(scale, rel=0.02)
        # of a normal distribution, 31.7 % lie beyond one standard deviation
        assert np.mean(np.abs(weight) > scale) == pytest.approx(0.317, abs=0.01)
        assert layer.bias.count_nonzero() == 0
    output = head.output.weight.detach().numpy().ravel()
    assert np.abs(output).max() <= 0.02
    assert np.abs(output).max() > 0.0195
    assert output.std() == pytest.approx(0.02 / math.sqrt(3), rel=0.1)
    assert abs(output.mean()) < 0.002
    assert head.output.bias.count_nonzero() == 0
    assert torch.equal(head.batch_norm_in.weight, torch.ones(200))
    assert torch.equal(head.batch_norm_out.bias, torch.zeros(400))


@pytest.mark.parametrize(
    ("difference", "expected"), [("signed", [-2.0, -6.0]), ("squared", [4.0, 36.0])]
)
def test_differences_by_hand(difference, expected):
    config = HeadConfig("pair", hidden_dim=5, difference=difference)
    u, v = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 4.0]])
    _, (features, _) = inputs_of(head_of(config, 2), u, v)
    assert features.tolist() == [[1.0, -2.0, 3.0, 4.0, *expected, 3.0, -8.0]]


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_every_layer_is_normalised(batch_norm, skip):
    """In float64, against the definition, with all gradients."""
    config = HeadConfig(
        "pair",
        hidden_dim=5,
        hidden_layers=3,
        batch_norm=batch_norm,
        normalise="every",
        difference="signed",
        skip=skip,
    )
    head = randomized(head_of(config, 3)).double()
    assert [layer.weight.shape[1] for layer in head.hidden] == [12, *[5 + 12 * skip] * 2]
    u, v = (torch.randn(6, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    norms = [head.batch_norm_in, *head.batch_norm_between, head.batch_norm_out]
    assert len(norms) == 4

    def normal(x, norm):
        if not batch_norm:
            return x
        mean, variance = x.mean(0), x.var(0, correction=0)
        return (x - mean) / torch.sqrt(variance + EPSILON) * norm.weight + norm.bias

    features = x = normal(torch.cat([u, v, u - v, u * v], 1), norms[0])
    for i, (layer, norm) in enumerate(zip(head.hidden, norms[1:], strict=True)):
        read = torch.cat([x, features], 1) if i and skip else x
        x = normal(torch.clamp(read @ layer.weight.T + layer.bias, min=0), norm)
    expected = x @ head.output.weight.T + head.output.bias
    scores = run(head, u, v)
    torch.testing.assert_close(scores, expected, rtol=1e-11, atol=1e-11)
    weights, leaves = torch.randn_like(scores), [u, v, *head.parameters()]
    found = torch.autograd.grad((scores * weights).sum(), leaves, retain_graph=True)
    wanted = torch.autograd.grad((expected * weights).sum(), leaves)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("normalise", ["ends", "every"])
@pytest.mark.parametrize("own", [None, 0.0])
def test_places_of_dropout(normalise, own):
    torch.manual_seed(0)
    config = HeadConfig(
        "single",
        hidden_dim=400,
        hidden_layers=2,
        dropout=0.5,
        normalise=normalise,
        input_dropout=own,
    )
    head = head_of(config, 400).train()
    for layer in head.hidden:
        nn.init.ones_(layer.bias)
        nn.init.zeros_(layer.weight)
    _, inputs = inputs_of(head, torch.ones(1, 400))
    shares = [float((x == 0).float().mean()) for x in inputs]
    wanted = [0.0 if own == 0 else 0.5, 0.5 if normalise == "every" else 0.0, 0.5]
    assert shares == pytest.approx(wanted, abs=0.1)


def test_initial_weights_of_xavier():
    torch.manual_seed(0)
    head = head_of(HeadConfig("pair", hidden_dim=400, hidden_layers=2, hidden_init="xavier"), 50)
    first, second = (layer.weight.std().item() for layer in head.hidden)
    assert first == pytest.approx(math.sqrt(4 / 600), rel=0.02)
    assert second == pytest.approx(math.sqrt(4 / 800), rel=0.02)


def test_rejects_the_wrong_number_of_sentences():
    x = torch.randn(2, 3)
    with pytest.raises(ValueError, match=r"PairHead .*2.* got 1"):
        run(head_of(HeadConfig("pair", hidden_dim=5), 3), x)
    with pytest.raises(ValueError, match=r"SingleHead .*1.* got 2"):
        run(head_of(HeadConfig("single", hidden_dim=5), 3), x, x)


def test_empty_batch_gives_no_scores():
    head = head_of(HeadConfig(hidden_dim=5, batch_norm=True), 3).eval()
    assert run(head, torch.empty(0, 3), torch.empty(0, 3)).shape == (0, 3)


# class weights and metrics of classes


def weighted(weights, labels=("a", "b", "c")):
    return HeadConfig("single", labels, hidden_dim=5, class_weights=weights)


def test_class_weights_scale_the_loss_of_each_example():
    head = head_of(weighted({"a": 2.0, "b": 0.5}), 3)
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    plain = head_of(weighted("none"), 3).loss(logits, target)
    assert head.loss(logits, target).tolist() == pytest.approx(
        (plain * torch.tensor([2.0, 0.5, 1.0, 0.5])).tolist()
    )
    logits = logits.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: head.loss(x, target), logits)


def test_without_class_weights_nothing_changes():
    head = head_of(weighted("none"), 3)
    assert head.class_weights is None
    assert not any("weights" in name for name in head.state_dict())
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    plain = nn.functional.cross_entropy(logits, target, reduction="none")
    assert torch.equal(head.loss(logits, target), plain)


def test_balanced_weights_give_all_classes_the_same_total():
    targets = np.array([0] * 6 + [1] * 3 + [2])
    config = HEADS["single"].completed(weighted("balanced"), ("a", "b", "c"), targets)
    expected = {"a": 10 / 18, "b": 10 / 9, "c": 10 / 3}
    assert config.class_weights == pytest.approx(expected)
    weights = head_of(config, 3).class_weights
    assert weights.tolist() == pytest.approx(list(expected.values()))
    # the mean weight of an example is 1
    assert weights[torch.from_numpy(targets)].mean() == pytest.approx(1)


def test_class_weights_must_name_labels():
    config = HEADS["single"].completed(weighted({"b": 3}), ("a", "b", "c"), np.array([0, 1, 2]))
    assert config.class_weights == {"a": 1, "b": 3, "c": 1}
    with pytest.raises(ValueError, match=r"weight for 'd', which is not .* labels are a, b, c"):
        HEADS["single"].completed(weighted({"d": 3}), ("a", "b", "c"), np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="must be one of none, balanced, got 'even'"):
        weighted("even")
    with pytest.raises(ValueError, match=r"class_weights\.a` must be at least 0, got -1"):
        weighted({"a": -1})


def test_metrics_of_classes_by_name():
    head = HEADS["single"]
    assert head.metric().name == "accuracy"
    assert head.metric("accuracy").shown(0.5) == "50.00%"
    assert head.metric("loss").shown(0.5) == "0.5000"
    assert head.metric("recall:b", ("a", "b")).name == "recall:b"
    with pytest.raises(ValueError, match=r"'c' is not a label of the data, which has a, b"):
        head.metric("recall:c", ("a", "b"))
    with pytest.raises(ValueError, match=r"macro_recall, loss, f1:LABEL.* got 'f1'"):
        head.metric("f1")


@pytest.mark.parametrize(
    ("lower", "value", "best", "better"),
    [
        (False, 0.5, 0.4, True),
        (False, 0.4, 0.4, False),
        (True, 0.5, 0.4, False),
        (True, 0.3, 0.4, True),
        (True, 0.3, math.nan, True),
        (False, math.nan, 0.4, False),
        (True, math.nan, 0.4, False),
    ],
)
def test_improvement_of_a_metric(lower, value, best, better):
    assert Metric("x", lower, str).improves(value, best) == better


def test_scores_of_classes_by_hand():
    # rows: gold
    confusion = np.array([[3, 1, 0, 0], [2, 4, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    found = ClassEvaluation(("a", "b", "c", "d"), 0.5, confusion, np.zeros(11, np.int64), [])
    assert found.scores.precision.tolist() == pytest.approx([3 / 6, 4 / 5, 0, 0])
    assert found.scores.recall.tolist() == pytest.approx([3 / 4, 4 / 6, 0, 0])
    assert found.scores.f1.tolist() == pytest.approx([6 / 10, 8 / 11, 0, 0])
    # d occurs neither in the gold labels nor in the predictions
    assert found.macro_f1 == pytest.approx((6 / 10 + 8 / 11) / 3)
    assert found.macro_recall == pytest.approx((3 / 4 + 4 / 6) / 3)
    assert found.metric("precision:b") == pytest.approx(4 / 5)
    about = found.as_dict()
    assert about["macro_f1"] == found.macro_f1
    assert about["classes"][0] == {
        "label": "a", "examples": 4, "predicted": 6, "precision": 0.5, "recall": 0.75, "f1": 0.6,
    }  # fmt: skip
    assert f"macro-F1 {100 * found.macro_f1:.2f} %" in found.summary()
    assert found.tables()[0].rows[1] == ("b", "6", "80.0", "66.7", "72.7")


def test_label_smoothing_applies_to_training_alone():
    head = head_of(HeadConfig("single", ("a", "b", "c"), 4, label_smoothing=0.3), 5)
    output, target = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    logs = output.log_softmax(-1)
    plain = -logs[torch.arange(6), target]
    torch.testing.assert_close(head.loss(output, target), 0.7 * plain - 0.3 * logs.mean(1))
    torch.testing.assert_close(head.eval().loss(output, target), plain)
