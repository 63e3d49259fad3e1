"""Trees, graphs and small encoders for the tests of structural position models."""

import torch

from floater import catalogue
from floater.transformer.stacks import Encoder
from small_models import small_config

SIZES = {"dim": 8, "heads": 2, "layers": 2, "max_length": 16}
ROWS = [name for name, model in catalogue().items() if hasattr(model, "needs")]

# the second word of the second tree has three children, the deepest node of the first has depth 3
TREES = [[1, -1, 1, 2, 3], [2, 2, -1, 2]]
LABELS = [[2, 0, 1, 0, 2], [1, 0, 0, 1]]
OPTIONS = {"tree": {"branching": 4, "depth": 2}} | {
    name: {"labels": 3} for name in ("structural", "graph_gru", "graphormer")
}


def encoder(name, seed=0, **options):
    """A float64 encoder in evaluation mode, its parameters large enough to matter."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": SIZES["dim"], "intermediate_size": 12, "training_length": SIZES["max_length"]}
    config = small_config(name, position_options=OPTIONS.get(name, {}) | options, **sizes)
    return Encoder(config).double().eval()


def qk(positions, seed=1):
    """Queries and keys (batch, heads, T, head_dim) for some positions."""
    torch.manual_seed(seed)
    batch, length = positions.structure.token_valid.shape
    heads = SIZES["heads"]
    return torch.randn(2, batch, heads, length, SIZES["dim"] // heads, dtype=torch.float64)
