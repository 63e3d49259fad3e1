"""The attention of every architecture with position biases, written out; put in place of the model's own.

softmax(q k^T scale + bias + mask) v with q = W_q x + b_q + b_q(t), and so on: Liu et al. 2020, equation 12,
in the terms of each architecture's paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

Biases = Callable[[str, int, str], Tensor]
"""The vectors of (site, block, name): (batch or 1, T, width)."""


def split(x: Tensor, heads: int) -> Tensor:
    """(batch, T, heads d) -> (batch, heads, T, d), head after head."""
    return torch.stack(x.chunk(heads, -1), 1)


def join(x: Tensor) -> Tensor:
    return torch.cat(x.unbind(1), -1)


def mix(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *added: Tensor | None, cap: float | None = None
) -> Tensor:
    """Every head's weighted mean of the values; grouped heads share keys and values in runs."""
    groups = q.shape[1] // k.shape[1]
    k, v = (torch.stack([x[:, i // groups] for i in range(q.shape[1])], 1) for x in (k, v))
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    for more in added:
        if more is not None:
            scores = scores + more
    return join(torch.einsum("bhts,bhsd->bhtd", scores.softmax(-1), v))


def linear(module: nn.Module, x: Tensor, bias: Tensor) -> Tensor:
    """W x + b + b(t); a Conv1D keeps W transposed."""
    weight: Any = module.weight.T if hasattr(module, "nf") else module.weight
    constant: Any = 0 if module.bias is None else module.bias
    return torch.einsum("btd,ed->bte", x, weight) + constant + bias


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embeddings (Su et al. 2021) on the first components, halves paired."""
    n = cos.shape[-1]
    a, b = x[..., : n // 2], x[..., n // 2 : n]
    turned = x[..., :n] * cos[:, None] + torch.cat((-b, a), -1) * sin[:, None]
    return torch.cat((turned, x[..., n:]), -1)


def bert(m: Any, b: Any, x: Tensor, source: Tensor, mask: Any, **options: Any) -> Any:
    q, k, v = linear(m.query, x, b.q), linear(m.key, source, b.k), linear(m.value, source, b.v)
    n = m.num_attention_heads
    return mix(split(q, n), split(k, n), split(v, n), m.attention_head_size**-0.5, mask), None


def albert(m: Any, b: Any, x: Tensor, source: Tensor, mask: Any, **options: Any) -> Any:
    return m.LayerNorm(x + m.dense(bert(m, b, x, source, mask)[0])), None


def distilbert(m: Any, b: Any, x: Tensor, source: Tensor, mask: Any, **options: Any) -> Any:
    q, k, v = (split(linear(w, x, c), m.n_heads) for w, c in zip((m.q_lin, m.k_lin, m.v_lin), b, strict=True))
    return m.out_lin(mix(q, k, v, (m.dim / m.n_heads) ** -0.5, mask)), None


def mpnet(m: Any, b: Any, x: Tensor, source: Tensor, mask: Any, **options: Any) -> Any:
    n = m.num_attention_heads
    q, k, v = (split(linear(w, x, c), n) for w, c in zip((m.q, m.k, m.v), b, strict=True))
    return (m.o(mix(q, k, v, m.attention_head_size**-0.5, options["position_bias"], mask)),)


def deberta(m: Any, b: Any, x: Tensor, source: Tensor, mask: Any, **options: Any) -> Any:
    """Disentangled attention (He et al. 2021, equation 4): positions reach the table of distances nowhere."""
    n, table = m.num_attention_heads, options["rel_embeddings"][None]
    q, k, v = (
        split(linear(w, x, c), n) for w, c in zip((m.query_proj, m.key_proj, m.value_proj), b, strict=True)
    )
    nothing = torch.zeros(())
    q_table, k_table = (split(linear(w, table, nothing), n)[0] for w in (m.query_proj, m.key_proj))
    distance, span = options["relative_pos"][0], m.position_buckets
    to_key = (distance + span).clamp(0, 2 * span - 1)
    extra = torch.zeros(len(x), n, x.shape[1], x.shape[1])
    for i in range(x.shape[1]):
        for j in range(x.shape[1]):
            extra[:, :, i, j] = (q[:, :, i] * k_table[:, to_key[i, j]]).sum(-1)
            extra[:, :, i, j] += (k[:, :, j] * q_table[:, to_key[i, j]]).sum(-1)
    scale = (3 * q.shape[-1]) ** -0.5
    hidden = torch.where(mask.bool(), 0.0, torch.finfo(x.dtype).min)
    return mix(q, k, v, scale, extra * scale, hidden), None


def projected(m: Any, b: Any, x: Tensor, source: Tensor, mask: Any, **options: Any) -> Any:
    """BART, Whisper, ViT, SigLIP and others, and with rotary embeddings Llama, Qwen, Gemma and others."""
    heads = getattr(m, "num_heads", None) or getattr(m, "num_attention_heads", None)
    grouped = getattr(m, "num_key_value_groups", 1)
    heads = heads or m.config.num_attention_heads
    q = split(linear(m.q_proj, x, b.q), heads)
    k, v = (split(linear(w, source, c), heads // grouped) for w, c in ((m.k_proj, b.k), (m.v_proj, b.v)))
    if hasattr(m, "q_norm"):
        q, k = m.q_norm(q), m.k_norm(k)
    rotary = options.get("position_embeddings")
    if rotary is not None and getattr(m, "use_rope", True):
        q, k = (rotate(z, *rotary) for z in (q, k))
    gemma = "query_pre_attn_scalar" in m.config.to_dict()
    scale = (m.config.query_pre_attn_scalar if gemma else m.head_dim) ** -0.5
    out = mix(q, k, v, scale, mask, cap=getattr(m.config, "attn_logit_softcapping", None))
    return (m.o_proj if hasattr(m, "o_proj") else m.out_proj)(out), None


def llama4(m: Any, b: Any, x: Tensor, source: Tensor, mask: Any, **options: Any) -> Any:
    """Complex rotary embeddings and unit keys in some blocks, a temperature without either in others."""
    c = m.config
    q = split(linear(m.q_proj, x, b.q), c.num_attention_heads)
    k = split(linear(m.k_proj, x, b.k), c.num_key_value_heads)
    v = split(linear(m.v_proj, x, b.v), c.num_key_value_heads)
    if m.use_rope:
        turn = options["position_embeddings"][:, None]
        q, k = (
            torch.view_as_real(torch.complex(z[..., 0::2], z[..., 1::2]) * turn).flatten(-2) for z in (q, k)
        )
        q, k = (z / (z.square().mean(-1, keepdim=True) + c.rms_norm_eps).sqrt() for z in (q, k))
    else:
        steps = torch.arange(x.shape[1]) + 1.0
        q = q * (1 + c.attn_scale * torch.log(1 + torch.floor(steps / c.floor_scale)))[:, None]
    return m.o_proj(mix(q, k, v, m.head_dim**-0.5, mask)), None


def phi3(m: Any, b: Any, x: Tensor, source: Tensor, mask: Any, **options: Any) -> Any:
    n, shared = m.config.num_attention_heads, m.config.num_key_value_heads
    fused = linear(m.qkv_proj, x, torch.zeros(()))
    parts = fused.split([n * m.head_dim, shared * m.head_dim, shared * m.head_dim], -1)
    q, k, v = (split(z + c, h) for z, c, h in zip(parts, b, (n, shared, shared), strict=True))
    q, k = (rotate(z, *options["position_embeddings"]) for z in (q, k))
    return m.o_proj(mix(q, k, v, m.head_dim**-0.5, mask)), None


def modernbert(m: Any, b: Any, x: Tensor, source: Tensor, mask: Any, **options: Any) -> Any:
    n = m.config.num_attention_heads
    q, k, v = linear(m.Wqkv, x, torch.zeros(())).chunk(3, -1)
    q, k, v = (split(z + c, n) for z, c in zip((q, k, v), b, strict=True))
    q, k = (rotate(z, *options["position_embeddings"]) for z in (q, k))
    return m.Wo(mix(q, k, v, m.head_dim**-0.5, mask)), None


def t5(m: Any, b: Any, x: Tensor, source: Tensor, mask: Any, **options: Any) -> Any:
    q, k, v = linear(m.q, x, b.q), linear(m.k, source, b.k), linear(m.v, source, b.v)
    bias = options.get("position_bias")
    if bias is None and m.has_relative_attention_bias:
        bias = m.compute_bias(x.shape[1], source.shape[1])
    q, k, v = (split(z, m.n_heads) for z in (q, k, v))
    return m.o(mix(q, k, v, 1.0, bias, mask)), bias, None


def gpt2(m: Any, b: Any, x: Tensor, source: Tensor, mask: Any, **options: Any) -> Any:
    q, k, v = linear(m.c_attn, x, torch.zeros(())).chunk(3, -1)
    q, k, v = (split(z + c, m.num_heads) for z, c in zip((q, k, v), b, strict=True))
    return m.c_proj(mix(q, k, v, m.head_dim**-0.5, mask)), None


def neox(m: Any, b: Any, x: Tensor, source: Tensor, mask: Any, **options: Any) -> Any:
    """The fused projection gives q, k and v of the first head, then those of the second, ..."""
    n = m.config.num_attention_heads
    fused = split(linear(m.query_key_value, x, torch.zeros(())), n)
    q, k, v = (z + split(c, n) for z, c in zip(fused.chunk(3, -1), b, strict=True))
    q, k = (rotate(z, *options["position_embeddings"]) for z in (q, k))
    return m.dense(mix(q, k, v, m.head_size**-0.5, mask)), None


EQUATIONS: dict[str, Callable[..., Any]] = {
    "BertSelfAttention": bert,
    "BertCrossAttention": bert,
    "RobertaSelfAttention": bert,
    "XLMRobertaSelfAttention": bert,
    "ElectraSelfAttention": bert,
    "AlbertAttention": albert,
    "DistilBertSelfAttention": distilbert,
    "MPNetSelfAttention": mpnet,
    "DisentangledSelfAttention": deberta,
    "ViTAttention": projected,
    "LlamaAttention": projected,
    "MistralAttention": projected,
    "Dinov2Attention": projected,
    "Dinov2WithRegistersAttention": projected,
    "SiglipAttention": projected,
    "SmolLM3Attention": projected,
    "GemmaAttention": projected,
    "Gemma2Attention": projected,
    "Gemma3Attention": projected,
    "Llama4TextAttention": llama4,
    "Phi3Attention": phi3,
    "ModernBertAttention": modernbert,
    "Qwen2Attention": projected,
    "Qwen3Attention": projected,
    "BartAttention": projected,
    "MarianAttention": projected,
    "WhisperAttention": projected,
    "T5Attention": t5,
    "GPT2Attention": gpt2,
    "GPTNeoXAttention": neox,
}


class Three:
    """Vectors of the three projections in one use of an attention module."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.q, self.k, self.v = q, k, v

    def __iter__(self) -> Any:
        return iter((self.q, self.k, self.v))


class Written:
    """Stands for the forward of one attention module."""

    def __init__(
        self, module: nn.Module, site: str, blocks: Iterable[int], cross: bool, biases: Biases
    ) -> None:
        self.module, self.site, self.cross, self.biases = module, site, cross, biases
        self.blocks = list(blocks)
        self.calls = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        x, *args = [options.pop("hidden_states"), *args] if "hidden_states" in options else args  # type: ignore[assignment]
        block = self.blocks[self.calls]
        self.calls += 1
        for name in ("encoder_hidden_states", "key_value_states"):
            source = options.get(name)
            if source is not None:
                break
        tensors = [a for a in args if isinstance(a, Tensor)]
        if self.cross and source is None:
            source = tensors.pop(0)  # the first that is passed by its place
        mask = options.pop("attention_mask", options.pop("mask", None))
        if mask is None and tensors:
            mask = tensors.pop(0)
        if tensors:
            options["position_bias"] = tensors.pop(0)
        site = "cross" if self.cross else self.site
        three = Three(
            self.biases(self.site, block, "cross_query" if self.cross else "query"),
            self.biases(site, block, "key"),
            self.biases(site, block, "value"),
        )
        written = EQUATIONS[type(self.module).__name__]
        return written(self.module, three, x, source if self.cross else x, mask, **options)
