import pytest
import torch
from torch.nn import functional as F

from floater.transformer import FloaterConfig, FloaterForConditionalGeneration

STEPS, WORDS = 60, 12


def curve(solver, seed):
    """Losses of a Transformer that learns to reverse short texts, whose flow moves from its start on."""
    torch.manual_seed(seed)
    config = FloaterConfig(
        vocab_size=WORDS + 3,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_hidden_layers=2,
        decoder_layers=2,
        dropout=0.0,
        position="floater",
        position_options={"solver": solver},
        training_length=24,
    )
    model = FloaterForConditionalGeneration(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(STEPS):
        source = torch.randint(3, WORDS + 3, (16, 24), generator=generator)
        target = source.flip(1)
        before = F.pad(target[:, :-1], (1, 0), value=1)
        logits = model(input_ids=source, decoder_input_ids=before, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return torch.tensor(losses)


@pytest.mark.slow
def test_training_with_collocation_and_with_dopri5_differ_less_than_seeds_do():
    collocation, dopri5, other = curve("collocation", 0), curve("dopri5", 0), curve("collocation", 1)
    assert collocation[-1] < collocation[0] - 0.2  # it learns
    between_seeds = float((collocation - other).abs().mean())
    assert float((collocation - dopri5).abs().max()) == pytest.approx(0, abs=0.05 * between_seeds)
