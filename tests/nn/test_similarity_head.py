"""Test the head that compares sentences by the cosine of their vectors."""

import itertools
import math

import numpy as np
import pytest
import torch

from gumbeltree import Encoding
from gumbeltree.config import SimilarityConfig
from gumbeltree.nn.heads.head import Part
from gumbeltree.nn.heads.similarity_evaluation import SimilarityEvaluation
from gumbeltree.parts import HEADS

HEAD = HEADS["similarity"](SimilarityConfig(scale=3.0), 5)
TARGETS = torch.tensor([[1, 7], [0, 7], [1, 7], [1, 4], [0, 2]])


def unit_vectors(count=5):
    generator = torch.Generator().manual_seed(5)
    vectors = torch.randn(2, count, 5, dtype=torch.float64, generator=generator)
    return vectors.requires_grad_()


def output_of(vectors):
    return HEAD(*(Encoding(x, None) for x in vectors))


def test_output_has_unit_vectors():
    vectors = unit_vectors()
    output = output_of(vectors)
    assert output.shape == (5, 2, 5)
    torch.testing.assert_close(output.norm(dim=-1), torch.ones(5, 2, dtype=torch.float64))
    cosines = torch.cosine_similarity(*vectors)
    answers = [answer.value for answer in HEAD.answers(output.detach().numpy())]
    assert answers == pytest.approx(cosines.tolist())


def test_a_zero_vector_has_the_similarity_zero():
    output = output_of(torch.zeros(2, 1, 5))
    assert HEAD.answers(output.numpy())[0].value == 0


def test_training_loss_by_its_definition():
    vectors = unit_vectors()
    HEAD.train()
    losses = HEAD.loss(output_of(vectors), TARGETS)
    first, second = (x / x.norm(dim=-1, keepdim=True) for x in vectors)
    expected = []
    for i, (kind, group) in enumerate(TARGETS.tolist()):
        # the other similar sentence of the same group is no wrong answer
        candidates = [
            j for j, other in enumerate(TARGETS.tolist()) if j == i or other != [1, group]
        ]
        scores = torch.stack([3 * first[i] @ second[j] for j in candidates])
        loss = scores.logsumexp(0) - scores[candidates.index(i)]
        expected.append(loss if kind else torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(losses, torch.stack(expected))
    found, wanted = (
        torch.autograd.grad(x.sum(), vectors, retain_graph=True)[0]
        for x in (losses, torch.stack(expected))
    )
    torch.testing.assert_close(found, wanted)
    assert losses[1] == losses[4] == 0
    assert losses[3] > 0


def test_evaluation_loss_does_not_depend_on_other_pairs():
    head = HEADS["similarity"](SimilarityConfig(), 5).eval()
    output = output_of(unit_vectors()).detach()
    losses = head.loss(output, TARGETS)
    for i in range(5):
        assert head.loss(output[i : i + 1], TARGETS[i : i + 1]) == losses[i]
    cosines = (output[:, 0] * output[:, 1]).sum(-1)
    assert losses[0] == pytest.approx(float(1 - cosines[0]))
    assert losses[1] == pytest.approx(max(0.0, float(cosines[1])))


@pytest.mark.parametrize("label", ["similar", "similar x", "same 3", "similar -1", ""])
def test_labels_need_a_kind_and_a_number(label):
    with pytest.raises(ValueError, match="'similar 17'"):
        HEAD.target(label)


def test_targets():
    assert HEAD.target("similar 17").tolist() == [1, 17]
    assert HEAD.target("different 0").tolist() == [0, 0]
    HEAD.check_targets(np.array([[1, 17]]))
    with pytest.raises(ValueError, match=r"kinds and groups, .* got int64 \[2\]"):
        HEAD.check_targets(np.array([1, 17]))


def evaluation(cosines, targets):
    return SimilarityEvaluation(0.5, np.array(cosines), np.array(targets))


def test_triplets_are_counted_as_by_comparing_all():
    generator = np.random.default_rng(3)
    targets = generator.integers(0, [2, 6], (40, 2))
    cosines = generator.uniform(-1, 1, 40)
    pairs = [
        cosines[i] > cosines[j]
        for i, j in itertools.product(range(40), repeat=2)
        if targets[i, 1] == targets[j, 1] and targets[i, 0] == 1 and targets[j, 0] == 0
    ]
    found = evaluation(cosines, targets)
    assert found.counts == (sum(pairs), len(pairs))
    assert found.value == sum(pairs) / len(pairs)
    assert f"{len(pairs)} triplets" in found.summary()
    assert found.as_dict()["right_triplets"] == sum(pairs)


def test_equal_cosines_are_wrong():
    assert evaluation([0.5, 0.5], [[0, 1], [1, 1]]).counts == (0, 1)
    assert evaluation([0.5, 0.5], [[1, 1], [0, 1]]).counts == (0, 1)


def test_pairs_without_triplets_have_no_accuracy():
    found = evaluation([0.5, 0.1], [[1, 1], [0, 2]])
    assert math.isnan(found.value)
    assert found.as_dict()["triplets"] is None
    assert found.summary() == "0 triplets, 2 pairs, loss 0.5000"


def test_data_without_triplets_or_similar_pairs_are_refused():
    targets = np.array([[1, 1], [0, 2]])
    with pytest.raises(ValueError, match="the 2 pairs of the development split contain no triplet"):
        HEAD.check_selection(targets, "triplets")
    HEAD.check_selection(targets, "loss")
    HEAD.check_selection(TARGETS.numpy(), "triplets")
    config = SimilarityConfig()
    assert type(HEAD).completed(config, (), targets) == config
    with pytest.raises(ValueError, match="no similar pair"):
        type(HEAD).completed(config, (), targets[1:])


def test_parts_of_a_split_add_up():
    output = output_of(unit_vectors()).detach().numpy()
    targets = TARGETS.numpy()
    longest = np.ones(5, dtype=np.int64)

    def part(rows, loss):
        rows = np.array(rows)
        return HEAD.evaluation(Part(output[rows], targets[rows], loss, rows, 5, longest[rows]))

    whole, parts = part(range(5), 0.4), part([0, 3], 0.1) + part([1, 2, 4], 0.6)
    assert parts.loss == pytest.approx(whole.loss)
    assert parts.counts == whole.counts == (whole.counts[0], 2)
    assert parts.answers() == whole.answers()
    assert part([0], 0.1).answers()[1:] == [""] * 4
    assert part([0], 0.1).count == 1
    with pytest.raises(ValueError, match="share example 0"):
        part([0], 0.1) + part([0, 1], 0.1)
