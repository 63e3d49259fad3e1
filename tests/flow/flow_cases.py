"""Cases of the tests of the flow: a field with a start, gradients, an encoder and its exact vectors."""

import torch

from floater.flow import FlowEncoder, MLPField, init_small_, reference_solve, solve

DIM = 6


def field_and_start(dim=6, rows=3, seed=0, dtype=torch.float64, **kwargs):
    torch.manual_seed(seed)
    field = MLPField(dim, **kwargs).to(dtype)
    return field, torch.randn(rows, dim, dtype=dtype)


@torch.no_grad()
def scaled(field, factor):
    """Multiply all parameters of a field, and return it."""
    for parameter in field.parameters():
        parameter *= factor
    return field


def gradients(field, start, times, **kwargs):
    start = start.clone().requires_grad_()
    weight = torch.linspace(-1, 1, len(times), dtype=start.dtype).view(-1, 1, 1)
    loss = (weight * solve(field, start, times, **kwargs).sin()).sum()
    return torch.autograd.grad(loss, [start, *field.parameters()])


def encoder(seed=0, **kwargs):
    torch.manual_seed(seed)
    field = init_small_(MLPField(DIM), span=5.0)
    built = FlowEncoder(field, DIM, blocks=(0, 2), names=("q", "k", "v"), **kwargs)
    torch.nn.init.normal_(built.start, std=0.5)
    return built


def positions(*rows, dtype=torch.long):
    return torch.tensor(rows, dtype=dtype)


def exact(model, block, name, at):
    """The vectors at positions (N, T) from a float64 solve of this one row to each position alone."""
    row = model.start[model.blocks.index(block), model.names.index(name)][None]
    unit = model.delta * model.time_scale
    vectors = [reference_solve(model.field, row, x.double()[None] * unit)[0, 0] for x in at.flatten()]
    return torch.stack(vectors).view(*at.shape, -1).float()
