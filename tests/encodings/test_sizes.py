"""The largest tensors of encodings: none has more numbers than the task needs."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from floater import Positions, build, catalogue
from floater.encodings import AttentionContext
from floater.encodings.attention import AttentionCall, project_qkv
from floater.testing.inputs import with_fields

HEADS, WIDTH, KEYS = 2, 8, 400
SIZES = {"dim": HEADS * WIDTH, "heads": HEADS, "layers": 1, "max_length": KEYS, "causal": True}
DECODES = [
    name
    for name, model in catalogue().items()
    # a step of "path" solves the triangular system of all keys, of which the cache has the vectors alone
    if "cache" not in model.card.exceptions and not hasattr(model, "needs") and name != "path"
]


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that operations make, in other storages than the existing ones."""

    def __init__(self, *existing):
        super().__init__()
        self.existing, self.bytes = {x.untyped_storage().data_ptr() for x in existing}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        storages = [x.untyped_storage() for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        sizes = [each.nbytes() for each in storages if each.data_ptr() not in self.existing]
        self.bytes = max([self.bytes, *sizes])
        return out


@torch.no_grad()
@pytest.mark.parametrize("name", DECODES)
@pytest.mark.parametrize("padded", [False, True])
def test_a_step_of_decoding_makes_nothing_of_all_pairs_of_keys(name, padded):
    model = build(name, **SIZES, vocabulary=11).eval()
    mask = torch.ones(2, KEYS, dtype=torch.long)
    mask[0, :3] = int(not padded)
    whole, step = (
        with_fields(Positions.from_mask(mask, queries=queries), torch.arange(2)) for queries in (None, 1)
    )
    x = torch.randn(2, KEYS, SIZES["dim"])
    linear = {part: torch.nn.Linear(SIZES["dim"], SIZES["dim"]) for part in ("query", "key", "value")}
    state = model.prepared(whole)
    _, k, v = project_qkv(model, AttentionContext(state, 0, model.embed(x, state), linear))
    state = model.prepared(step)
    context = AttentionContext(state, 0, model.embed(x[:, -1:], state), linear)
    with Largest(*model.parameters(), *model.buffers()) as seen:
        q, _, _ = project_qkv(model, context)
        call = AttentionCall(model, context, q, k, v, causal=True)
        call.attend(call.logits())
    assert seen.bytes <= 8 * max(k.nbytes, v.nbytes)


@torch.no_grad()
def test_fope_makes_sines_alone():
    """Not a product of each wave and each coefficient, sixteen times the numbers of queries here."""
    model = build("fope", dim=256, heads=2, layers=1, max_length=4096)
    assert model.sine.shape[-2:] == (46, 32)
    x = torch.randn(1, 50, 2, 128)
    state = model.prepare(Positions.arange(50))
    with Largest(*model.buffers()) as seen:
        model.qkv(x, x, x, AttentionContext(state, 0))
    assert seen.bytes <= 2 * x.nbytes
