"""Small models, and sinusoids written out, that the tests of several folders share."""

import math

import torch

import floater


def small_config(position, **changes):
    """Return the configuration of a Transformer that is built in milliseconds, with some fields changed."""
    sizes = {
        "vocab_size": 11,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "training_length": 16,
        "dropout": 0.0,
    }
    return floater.FloaterConfig(**sizes | changes, position=position)


def randomised(name, *, parameter_std=0.7, **options):
    """Return a position model in double precision, none of whose parameters is zero or small."""
    torch.manual_seed(0)
    model = floater.build(name, **options).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=parameter_std)
    return model


def wave(i, dim=8):
    """Compute equation 6 of Liu et al. 2020 for one number i, component by component."""
    return [
        math.sin(i * 10000 ** (-j / dim)) if j % 2 == 0 else math.cos(i * 10000 ** (-(j - 1) / dim))
        for j in range(dim)
    ]
