"""Small models that the tests of the Transformer share."""

import contextlib

import torch

from floater.encodings.registry import _CATALOGUE
from floater.transformer import FloaterConfig
from floater.transformer.stacks import Encoder
from small_models import small_config

POSITIONS = {
    "none": ("none", {}),
    "sinusoidal": ("sinusoidal", {}),
    "sinusoidal, all blocks": ("sinusoidal", {"blocks": "all"}),
    "learned": ("learned", {"blocks": "all"}),
    "rnn": ("rnn", {"depth": 2}),
    "floater": ("floater", {}),
    "floater, added": ("floater", {"injection": "add"}),
    "rotary, clock": ("rotary", {"clock": {"std": 0.5, "kernel": 2}}),
    "floater_cde": ("floater_cde", {"std": 0.3}),
    "floater_relative, clock": ("floater_relative", {"clock": {"std": 0.5}}),
    "floater, unshared": ("floater", {"share": "none", "time_scale": "learned", "activation": "silu"}),
}
VOCABULARY = 37


def config(case="floater", **changes):
    position, options = POSITIONS.get(case, (case, {}))
    sizes = {"vocab_size": VOCABULARY, "decoder_layers": 3, "training_length": 32}
    arguments = sizes | {"position": position, "position_options": dict(options)} | changes
    return small_config(**arguments)


def like_bert(sizes, position, **changes):
    """Return our configuration of the sizes of a BERT."""
    names = "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"
    arguments = {name: sizes[name] for name in names}
    arguments |= {"decoder_layers": sizes["num_hidden_layers"], "activation_function": "gelu"}
    arguments |= {"training_length": sizes["max_position_embeddings"]}
    return FloaterConfig(**arguments | changes, position=position)


def stirred_encoder(name):
    """Return an encoder in double precision, whose position model has no parameter that is zero."""
    torch.manual_seed(0)
    encoder = Encoder(config(name)).double().eval()
    for parameter in encoder.position.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return encoder


def build_model(cls, case="floater", seed=0, **changes):
    """A model in evaluation mode whose every parameter matters: none is zero, starts are of order one."""
    torch.manual_seed(seed)
    model = cls(config(case, **changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.1)
            elif name.endswith("start") or ".tables." in name:
                torch.nn.init.normal_(parameter, std=0.5)
    return model


def tokens(*shape, seed=0):
    """Ids of words: none is padding (0), a start (1) or an end (2)."""
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


@contextlib.contextmanager
def registered(name, cls):
    """A position model in the catalogue for the time of a test."""
    _CATALOGUE[name] = cls
    try:
        yield name
    finally:
        del _CATALOGUE[name]
