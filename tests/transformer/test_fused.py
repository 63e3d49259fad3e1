"""Workarounds for PyTorch's attention kernels on GPUs; tests/devices/test_cuda.py runs the kernels."""

import pytest
import torch
from torch.nn import functional as F

from floater import Positions, build
from floater.transformer import FloaterConfig, fused, kernels
from floater.transformer.attention import Attention, SharedInputs
from floater.transformer.fused import fused_attention
from floater.transformer.uncast import Uncast


@pytest.mark.parametrize(
    ("columns", "dtype", "copied"),
    [
        (32, torch.float32, False),
        (34, torch.float32, True),
        (36, torch.float32, False),
        (36, torch.bfloat16, True),
        (40, torch.bfloat16, False),
    ],
)
def test_rows_that_are_not_aligned_are_copied(columns, dtype, copied):
    keys = torch.randn(2, 3, 5, columns).to(dtype)[..., :32]
    aligned = fused._aligned(keys)
    assert (aligned is not keys) == copied
    assert torch.equal(aligned, keys)
    assert all(step * keys.element_size() % 16 == 0 for step in aligned.stride()[:-1])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("slots", [63, 64, 128, 192, 200])
def test_the_kernel_of_cudnn_is_left_out_where_its_gradients_may_be_nan(monkeypatch, slots, masked):
    seen = []

    def recorded(*args, **kwargs):
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return computed(*args, **kwargs)

    computed = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", recorded)
    monkeypatch.setattr(fused, "may_use_cudnn", lambda q: True)
    x = torch.randn(1, 1, slots, 8)
    fused_attention(x, x, x, torch.ones(slots, slots, dtype=torch.bool) if masked else None)
    assert seen == [not (masked and slots in (64, 192))]
    assert torch.backends.cuda.cudnn_sdp_enabled()  # as before


@pytest.mark.parametrize("name", ["disan", "window"])
def test_a_query_without_a_key_has_no_output_and_no_gradient(monkeypatch, name):
    """As in cuDNN's kernel, which averages all values where a mask leaves nothing."""
    computed = F.scaled_dot_product_attention

    def averaging(q, k, v, attn_mask=None, **options):
        return computed(q, k, v, attn_mask | ~attn_mask.any(-1, keepdim=True), **options)

    def outputs():
        torch.manual_seed(0)
        attention = Attention(FloaterConfig(hidden_size=16, num_attention_heads=2), 0, causal=False)
        model = build(name, dim=16, heads=2, layers=1, max_length=8)
        x = torch.randn(2, 5, 16, requires_grad=True)
        valid = torch.tensor([[True] * 5, [False] * 5])
        state = Uncast(model.prepare(Positions.arange(5)))
        out, _ = attention(x, SharedInputs(model, state, valid))
        return out, *torch.autograd.grad(out.sin().sum(), [x, *attention.parameters()])

    expected = outputs()
    monkeypatch.setattr(F, "scaled_dot_product_attention", averaging)
    different = outputs()[0]
    assert not torch.allclose(different, expected[0])
    monkeypatch.setattr(kernels, "may_use_cudnn", lambda q: True)
    for ours, wanted in zip(outputs(), expected, strict=True):
        torch.testing.assert_close(ours, wanted)
