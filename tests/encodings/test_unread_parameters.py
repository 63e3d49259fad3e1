"""Entries of tables for later keys, which no causal stack reads, are not counted."""

import pytest
import torch

from floater import Positions, build, catalogue
from floater.encodings.model import count_parameters
from floater.transformer import FloaterConfig, FloaterForCausalLM
from floater.transformer.stacks import Encoder
from small_models import small_config

UNREAD = [
    name
    for name, model in catalogue().items()
    if "rows" in model.card.exceptions and not hasattr(model, "needs")
]


def test_the_table_of_the_survey_is_counted_as_it_trains():
    sizes = {"dim": 64, "heads": 4, "layers": 2, "max_length": 16}
    counts = {name: count_parameters(build(name, **sizes, causal=True)) for name in ("huang2", "huang3")}
    assert counts == {"huang2": 128, "huang3": 512}
    assert count_parameters(build("huang2", **sizes)) == 248


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_counted_in_a_causal_stack_is_what_gets_a_gradient(name):
    torch.manual_seed(0)
    config = small_config(position=name, training_length=40)
    encoder = Encoder(config, causal=True).double().eval()
    for parameter in encoder.position.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    out = encoder(torch.randn(2, 40, config.hidden_size, dtype=torch.float64), Positions.arange(40))
    (out * torch.randn_like(out)).sum().backward()
    gradients = torch.cat([parameter.grad.flatten() for parameter in encoder.position.parameters()])
    # the first token sees one key, whose bias cancels in the softmax
    first = config.num_hidden_layers * config.hidden_size
    read = int((gradients.abs() > 1e-14 * gradients.abs().max()).sum())
    assert count_parameters(encoder) - first <= read <= count_parameters(encoder)
    full = Encoder(config)
    assert count_parameters(full) == sum(each.numel() for each in full.position.parameters())


def test_a_shared_table_is_counted_once():
    model = FloaterForCausalLM(FloaterConfig.preset("tiny", vocab_size=9, position=["alibi", "huang2"]))
    alone = FloaterForCausalLM(FloaterConfig.preset("tiny", vocab_size=9, position="huang2"))
    assert count_parameters(model) == count_parameters(alone)
