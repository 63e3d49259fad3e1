"""A model is extended as a whole or not at all: what is reported runs, loads again, and changed something."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

import floater
from floater.pretrained.extending import ExtendError
from floater.pretrained.extending.dry_run import DryRun
from floater.pretrained.extending.shapes import Shapes

from . import zoo
from .extended import build

_SMALL: dict[str, Any] = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2,
                          "num_attention_heads": 4, "intermediate_size": 20, "pad_token_id": 1}  # fmt: skip
_PAIR: dict[str, Any] = {"vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
                         "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 20,
                         "decoder_ffn_dim": 20}  # fmt: skip
_HALF = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": True}
_LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}

MODELS: dict[str, Callable[[], Any]] = {
    # another name of the length in the configuration, and two lengths
    "led": lambda: hf.LEDForConditionalGeneration(
        hf.LEDConfig(
            **_PAIR,
            max_encoder_position_embeddings=32,
            max_decoder_position_embeddings=24,
            attention_window=8,
        )
    ),
    # parts with configurations of their own
    "encoder-decoder of two models": lambda: hf.EncoderDecoderModel(
        encoder=hf.BertModel(hf.BertConfig(**_SMALL, max_position_embeddings=32)),
        decoder=hf.BertLMHeadModel(
            hf.BertConfig(**_SMALL, max_position_embeddings=24, is_decoder=True, add_cross_attention=True)
        ),
    ),
    # a table of distances as long as that of positions
    "deberta": lambda: hf.DebertaModel(hf.DebertaConfig(**_SMALL, **_HALF, max_position_embeddings=32)),
    "deberta-v2": lambda: hf.DebertaV2Model(
        hf.DebertaV2Config(**_SMALL, **_HALF, max_position_embeddings=32, position_buckets=8)
    ),
    # a mask of the old length in each layer
    "gpt_neo": lambda: hf.GPTNeoForCausalLM(
        hf.GPTNeoConfig(
            vocab_size=40,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            max_position_embeddings=32,
            attention_types=[[["global", "local"], 1]],
            window_size=8,
        )
    ),
    # padding in the model, to a multiple of the window
    "longformer": lambda: hf.LongformerModel(
        hf.LongformerConfig(**_SMALL, max_position_embeddings=34, attention_window=8)
    ),
    # a configuration whose width of a head is not set, and experts chosen by values
    "mixtral": lambda: hf.MixtralForCausalLM(
        hf.MixtralConfig(**_SMALL, num_key_value_heads=2, num_local_experts=2, max_position_embeddings=32)
    ),
    "falcon": lambda: _falcon(alibi=False),
    "falcon with ALiBi": lambda: _falcon(alibi=True),
    # frequencies that are weights
    "esm": lambda: hf.EsmForMaskedLM(
        hf.EsmConfig(**_SMALL, mask_token_id=4, position_embedding_type="rotary", max_position_embeddings=32)
    ),
    # experts whose numbers of tokens depend on values
    "jetmoe": lambda: hf.JetMoeForCausalLM(
        hf.JetMoeConfig(
            vocab_size=40,
            hidden_size=32,
            num_hidden_layers=2,
            num_key_value_heads=2,
            kv_channels=8,
            intermediate_size=20,
            max_position_embeddings=32,
            num_local_experts=4,
            num_experts_per_tok=2,
        )
    ),
    # a rotation in each attention module
    "moshi": lambda: hf.MoshiModel(
        hf.MoshiConfig(**{**_SMALL, "ffn_dim": 20, "head_dim": 8}, max_position_embeddings=32)
    ),
    # a mask of ones up to the diagonal, as numbers
    "openai-gpt": lambda: hf.OpenAIGPTModel(
        hf.OpenAIGPTConfig(vocab_size=40, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    ),
    # bases of layers, one of them without positions
    "granite_swa": lambda: hf.GraniteSWAModel(
        hf.GraniteSWAConfig(
            **_SMALL,
            **_LAYERS,
            num_key_value_heads=2,
            max_position_embeddings=32,
            layer_rope_theta=[100.0, 1000.0],
        )
    ),
    "olmo3": lambda: hf.Olmo3ForCausalLM(
        hf.Olmo3Config(**_SMALL, **_LAYERS, num_key_value_heads=2, max_position_embeddings=32)
    ),
}

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "windows alone": (
        lambda: hf.Olmo3ForCausalLM(
            hf.Olmo3Config(**_SMALL, num_key_value_heads=2, max_position_embeddings=32, sliding_window=16,
                           layer_types=["sliding_attention"] * 2)
        ),
        "in layers with a window, which have no new distances",
    ),
    "windows of all layers": (
        lambda: hf.MistralForCausalLM(
            hf.MistralConfig(**_SMALL, num_key_value_heads=2, max_position_embeddings=32, sliding_window=16)
        ),
        "MistralModel rotates in layers with a window alone, where longer texts have no new distances",
    ),
    "chunks of the layers that rotate": (
        lambda: hf.Llama4ForCausalLM(
            hf.Llama4TextConfig(**_SMALL, num_key_value_heads=2, max_position_embeddings=32, moe_layers=[],
                                head_dim=8, no_rope_layers=[1, 0], attention_chunk_size=16)
        ),
        "Llama4TextModel rotates in layers with a window alone",
    ),
    "windows of the layers that rotate": (lambda: _cohere2(), "Cohere2Model rotates in layers with a window"),
    "no text": (
        lambda: hf.SEWDModel(hf.SEWDConfig(**_SMALL, max_position_embeddings=32)),
        "SEWDModel reads no text: .*; extend the part of the model that reads texts",
    ),
    "rates of blocks from linspace": (
        lambda: hf.ConvNextModel(hf.ConvNextConfig(hidden_sizes=[8, 8], depths=[1, 1], num_stages=2)),
        "ConvNextModel has no positions that can be extended: .*takes no tokens",
    ),
    "layers of two kinds": (
        lambda: hf.DeepseekV4Model(
            hf.DeepseekV4Config(
                **{name: value for name, value in _SMALL.items() if name != "intermediate_size"},
                max_position_embeddings=32,
            )
        ),
        "rotates layers by their kinds, main, compress",
    ),
    "second table": (
        lambda: hf.VisualBertModel(
            hf.VisualBertConfig(**_SMALL, max_position_embeddings=32, visual_embedding_dim=16)
        ),
        r"'embeddings.visual_position_embeddings.weight' is \(32, 32\), and \(64, 32\)",
    ),
    "decoder of images": (
        lambda: hf.ViTMAEForPreTraining(
            hf.ViTMAEConfig(**_SMALL, image_size=8, patch_size=2, decoder_hidden_size=16,
                            decoder_num_attention_heads=4, decoder_num_hidden_layers=1)
        ),
        "'decoder.decoder_pos_embed' is",
    ),
}  # fmt: skip


def _cohere2() -> Any:
    return hf.Cohere2ForCausalLM(
        hf.Cohere2Config(**_SMALL, **_LAYERS, num_key_value_heads=2, max_position_embeddings=32)
    )


def _falcon(*, alibi: bool) -> Any:
    size = {name: value for name, value in _SMALL.items() if name != "intermediate_size"}
    return hf.FalconForCausalLM(hf.FalconConfig(**size, alibi=alibi, max_position_embeddings=32))


def _cached(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    model = make().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@torch.no_grad()
def _read(model: Any, length: int) -> torch.Tensor:
    ids = zoo.text(1, length)
    other = {"decoder_input_ids": ids[:, :16]} if model.config.is_encoder_decoder else {}
    output: torch.Tensor = model(input_ids=ids, use_cache=False, return_dict=True, **other)[0]
    return output


def state(model: nn.Module) -> list[Any]:
    """What a model consists of, except for the values of its tensors, which are compared by their outputs."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    parts = {
        name: (type(part), sorted(part.__dict__), *map(len, (part._forward_hooks, part._forward_pre_hooks)))
        for name, part in model.named_modules()
    }
    configs = [
        part.config.to_dict() | {"attention": part.config._attn_implementation}
        for part in model.modules()
        if isinstance(part, hf.PreTrainedModel)
    ]
    generation = getattr(model, "generation_config", None)
    return [{name: id(tensor) for name, tensor in tensors.items()}, parts, configs, str(generation)]


@pytest.mark.parametrize("name", MODELS)
def test_what_is_reported_runs_and_loads_again(tmp_path: Path, name: str) -> None:
    model = _cached(MODELS[name])
    short = _read(model, 24)
    report = floater.extend(model, 64)
    assert torch.equal(_read(model, 24), short) == report.unchanged
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    for length in (24, 64):
        torch.testing.assert_close(_read(loaded, length), _read(model, length))


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_is_refused_and_unchanged(name: str) -> None:
    make, message = REFUSED[name]
    model = _cached(make)
    before = state(model)
    with pytest.raises(ExtendError, match=message):
        floater.extend(model, 64)
    assert state(model) == before


def test_a_flow_over_frequencies_of_layers_with_bases_of_their_own_is_refused() -> None:
    model = _cached(MODELS["granite_swa"])
    before = state(model)
    with pytest.raises(ExtendError, match="does not take 'clex': its layers have bases of their own"):
        floater.extend(model, 64, "clex")
    assert state(model) == before


def test_layers_that_see_a_longer_text_without_a_rotation_take_a_temperature() -> None:
    model = _cached(_cohere2)
    short, long = _read(model, 32), _read(model, 64)
    floater.extend(model, 64, "log_n")
    assert torch.equal(_read(model, 32), short)
    assert not torch.allclose(_read(model, 64)[:, 40:], long[:, 40:])


def test_a_flow_over_frequencies_that_are_not_read_is_refused() -> None:
    """PhiMoE computes its frequencies from the configuration in each pass; scalings of that act."""
    model = _cached(
        lambda: hf.PhimoeForCausalLM(
            hf.PhimoeConfig(**_SMALL, num_key_value_heads=2, num_local_experts=2, max_position_embeddings=32)
        )
    )
    before = state(model)
    with pytest.raises(ExtendError, match="PhimoeModel computes its frequencies in each pass"):
        floater.extend(model, 64, "clex")
    assert state(model) == before
    output = _read(model, 24)
    floater.extend(model, 64, "ntk")
    assert not torch.allclose(_read(model, 24), output)


@pytest.mark.parametrize(
    ("name", "method"),
    [("bert", "flow"), ("bert", "interpolation"), ("vit", None), ("llama", "yarn"), ("llama", "dynamic"),
     ("llama", "clex"), ("llama", "self_extend"), ("phi3", "longrope"), ("t5", "flow"), ("bloom", "flow")],
)  # fmt: skip
def test_an_error_at_the_last_moment_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, method: str | None
) -> None:
    model = zoo.build(name) if name in ("bert", "vit") else build(name)
    plugs = name != "bloom"
    if plugs:
        floater.plug(model, start="small")
    before, inputs = state(model), zoo.inputs(name) if name in ("bert", "vit") else None
    ids = zoo.text(1, 12)
    options = inputs or ({"input_ids": ids, "decoder_input_ids": ids} if name == "t5" else {"input_ids": ids})
    output = model.eval()(**options)[0]

    def fail(*_: Any) -> None:
        raise KeyError("late")

    monkeypatch.setattr(sys.modules["floater.pretrained.extending.extend"], "check_extended", fail)
    with pytest.raises(ExtendError, match="cannot be extended: KeyError: 'late'"):
        floater.extend(model, 1024 if name != "vit" else 16, method)
    assert state(model) == before
    assert torch.equal(model(**options)[0], output)
    monkeypatch.undo()
    if plugs:
        floater.unplug(model)  # its hooks are still the ones to remove
    assert not any(part._forward_hooks for part in model.modules())
    floater.extend(model, 1024 if name != "vit" else 16, method)


def test_a_trial_checks_indices_at_the_cost_of_shapes() -> None:
    """A model of billions of parameters on a long text, without memory for weights or activations."""
    with torch.device("meta"):
        model = hf.LlamaForCausalLM(hf.LlamaConfig(num_hidden_layers=2))
    dry_run = DryRun(model)
    dry_run.mark({"model.rotary_emb.inv_freq": "rotation", "model.layers.1.mlp.up_proj.weight": "last"})
    assert dry_run.run("", 131072, image=False) == {"rotation", "last"}
    short = DryRun(hf.GPT2Model(hf.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=16)))
    short.run("", 16, image=False)
    with pytest.raises(IndexError, match="index 16 is out of range for 16 entries"):
        short.run("", 17, image=False)


def test_a_trial_knows_what_reaches_the_output() -> None:
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 40}
    for alibi in (False, True):
        dry_run = DryRun(hf.FalconModel(hf.FalconConfig(**size, alibi=alibi)))
        dry_run.mark({"rotary_emb.inv_freq": "rotation", "h.0.mlp.dense_h_to_4h.weight": "block"})
        assert dry_run.run("", 4, image=False) == {"block", *([] if alibi else ["rotation"])}


def test_a_repeated_operation_has_the_shape_strides_and_type_of_the_first() -> None:
    """Results are looked up by the arguments: numbers of equal value and other type are other arguments."""

    def results() -> list[torch.Tensor]:
        x, n = torch.ones(3, 4).half(), torch.ones(4, dtype=torch.long)
        products = [x * 2, n * 1, n * 1.0, n * True, n / 1, x.t() + x.t(), x + n.double(), x + n.double()[0]]
        shorter = torch.cat([x, x[:1]]), torch.cat([x, x[:2]]), x.sum(1), x.sum(1, keepdim=True)
        return [*products, *shorter, *torch.sort(x, 1), *torch.std_mean(x.float(), 1)]

    expected = results()
    with Shapes():
        first, second = results(), results()
    for plain, *repeated in zip(expected, first, second, strict=True):
        for each in repeated:
            assert (each.shape, each.stride(), each.dtype) == (plain.shape, plain.stride(), plain.dtype)
    assert len({each.untyped_storage()._cdata for each in (*first, *second)}) == 2 * len(first)
