import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floater.lab.training import smoothed_cross_entropy, smoothed_loss
from floater.lab.training.loss import with_auxiliary_loss


@settings(max_examples=40)
@given(st.floats(0, 1), st.integers(2, 7), st.integers(0, 1000))
def test_is_the_cross_entropy_to_the_smoothed_distribution(smoothing: float, classes: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 4, classes, generator=random, dtype=torch.float64)
    labels = torch.randint(classes, (3, 4), generator=random)
    labels[0, 1:] = -100
    total = 0.0
    for row, label in zip(logits.flatten(0, 1), labels.flatten(), strict=True):
        if label >= 0:
            target = torch.full((classes,), smoothing / classes, dtype=torch.float64)
            target[label] += 1 - smoothing
            total -= float(target @ (row.exp() / row.exp().sum()).log())
    assert smoothed_cross_entropy(logits, labels, smoothing).item() == pytest.approx(total / 9, rel=1e-12)
    assert smoothed_cross_entropy(logits, labels, smoothing, 5).item() == pytest.approx(total / 5, rel=1e-12)


def test_ignored_labels_have_no_gradient() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.tensor([[1, -100, 2], [-100, 4, -100]])
    smoothed_cross_entropy(logits, labels, 0.1).backward()
    assert torch.equal(logits.grad.abs().sum(-1) > 0, labels >= 0)


def test_sums_half_precision_in_single() -> None:
    logits = torch.zeros(1, 3000, 2, dtype=torch.bfloat16)
    loss = smoothed_cross_entropy(logits, torch.zeros(1, 3000, dtype=torch.long), 0.0)
    assert loss.item() == pytest.approx(0.6931472, rel=1e-5)  # 3000 sums in float32; bfloat16 has 8 bits


def test_parts_add_up_to_the_whole() -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, 5, generator=random, dtype=torch.float64)
    labels = torch.tensor([[1, 2, 3], [4, -100, -100], [0, 0, -100], [1, -100, -100]])
    loss = smoothed_loss(0.1)
    whole = loss({"logits": logits}, labels)
    parts = [loss({"logits": logits[i : i + 2]}, labels[i : i + 2], num_items_in_batch=7) for i in (0, 2)]
    assert torch.allclose(sum(parts), whole, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("labels", "smoothing", "message"),
    [
        ([[1]], 1.5, "smoothing is 1.5"),
        ([[1, 2]], 0.1, r"labels have shape \(1, 2\); logits of \(1, 1, 3\) need \(1, 1\)"),
        ([[-100]], 0.1, "every label is -100"),
    ],
)
def test_refuses(labels: list[list[int]], smoothing: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        smoothed_cross_entropy(torch.zeros(1, 1, 3), torch.tensor(labels), smoothing)


@pytest.mark.parametrize("items", [0, torch.tensor(0)])
def test_a_batch_without_a_label_costs_nothing(items: torch.Tensor | int) -> None:
    logits = torch.randn(1, 2, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    outputs = {"logits": logits, "auxiliary_loss": logits.sum()}
    loss = with_auxiliary_loss(smoothed_loss(0.1))(outputs, torch.full((1, 2), -100), items)
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()
