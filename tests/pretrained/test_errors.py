"""Error messages of `plug`: each says what would work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    CamembertConfig,
    CamembertModel,
    CLIPConfig,
    CLIPModel,
    DebertaConfig,
    DebertaModel,
    DeiTConfig,
    DeiTModel,
    FalconConfig,
    FalconForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

import floater
from floater.encodings import PositionError
from floater.pretrained import FAMILIES, PlugError

from . import extended, zoo
from .tiny import tiny


def test_plugging_twice() -> None:
    model = zoo.build("bert")
    floater.plug(model)
    with pytest.raises(PlugError, match="plugged already"):
        floater.plug(model)
    floater.bake(model, 4)
    with pytest.raises(PlugError, match="plugged already"):
        floater.plug(model)
    with pytest.raises(PlugError, match="baked already, for 4 positions"):
        floater.bake(model, 8)


def test_plugging_a_part_and_its_whole() -> None:
    """Files have the flow of the whole model alone."""
    model = zoo.build("llama")
    floater.plug(model.model)
    with pytest.raises(PlugError, match="'model' of this LlamaForCausalLM is plugged already"):
        floater.plug(model)
    floater.unplug(model.model)
    floater.plug(model)
    with pytest.raises(PlugError, match="runs with the flow of a LlamaForCausalLM; unplug that first"):
        floater.plug(model.model)


def test_a_model_of_images_gets_no_advice_for_texts() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    with pytest.raises(PlugError, match=r"'deit' .* images and speech it takes .*, vit, whisper$"):
        floater.plug(DeiTModel(DeiTConfig(**sizes)))


def test_a_model_is_changed_before_it_is_wrapped() -> None:
    """The gradients of new weights would not be averaged."""
    for change in (floater.plug, lambda model: floater.extend(model, 128)):
        with pytest.raises(ValueError, match="the model is a DataParallel; change the model first"):
            change(torch.nn.DataParallel(zoo.build("llama")))


def test_what_is_not_plugged() -> None:
    for use in (floater.unplug, lambda model: floater.bake(model, 3)):
        with pytest.raises(PlugError, match="this BertForSequenceClassification is not plugged"):
            use(zoo.build("bert"))


def test_more_positions_than_were_baked() -> None:
    model = zoo.build("bert")
    floater.plug(model)
    floater.bake(model, 6)
    zoo.output(model, input_ids=zoo.text(1, 6))
    with pytest.raises(PlugError, match="baked for the positions 0 to 5; 6 was asked for"):
        zoo.output(model, input_ids=zoo.text(1, 7))
    with pytest.raises(PlugError, match="0 to 5; 9 was asked for"):
        zoo.output(model, input_ids=zoo.text(1, 2), position_ids=torch.tensor([[8, 9]]))
    zoo.output(model, input_ids=zoo.text(1, 6))  # it goes on working
    with pytest.raises(ValueError, match="at least 1 position"):
        floater.bake(plugged_bert(), 0)


def plugged_bert() -> Any:
    model = zoo.build("bert")
    floater.plug(model)
    return model


@pytest.mark.parametrize("function", [floater.plug, floater.unplug, floater.bake])
def test_a_name_is_no_model(function: Any) -> None:
    with pytest.raises(PlugError, match="the model is a str; it must be a model of transformers"):
        function("bert-base-uncased", *([8] if function is floater.bake else []))


def test_nothing_to_plug() -> None:
    with pytest.raises(PlugError, match="Linear is no Hugging Face model"):
        floater.plug(nn.Linear(2, 2))
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 16}
    deberta = DebertaModel(DebertaConfig(**sizes, vocab_size=40))
    with pytest.raises(PlugError, match=r"the model types 'deberta' in floater.*projections=[^;]*$"):
        floater.plug(deberta)
    with pytest.raises(PlugError, match=r"looked for modules of OPT.* that hold key, query, value"):
        floater.plug(opt(), projections={"query": "query", "key": "key", "value": "value"})
    for inputs in (["keys"], "query"):
        with pytest.raises(PlugError, match=r"projections is .*; it must be a list of some of query, key"):
            floater.plug(zoo.build("bert"), projections=inputs)


def test_advice_leads_to_the_part_that_reads_text() -> None:
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    images = {**size, "image_size": 32, "patch_size": 16}
    model = CLIPModel(CLIPConfig(text_config={**size, "vocab_size": 8}, vision_config=images))
    table = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
    for options in ({"projections": table}, {"clock": {}}):
        with pytest.raises(PlugError, match=r"; plug the part that reads text, 'text_model'$"):
            floater.plug(model, **options)
    assert "unchanged: vision_model" in str(floater.plug(model))
    floater.unplug(model)
    floater.plug(model.text_model, projections=table)


def test_a_sequence_of_modules_is_no_model() -> None:
    """It would call the flow as its last layer."""
    model = torch.nn.Sequential(zoo.build("bert"), torch.nn.Identity())
    with pytest.raises(PlugError, match=r"Sequential runs its parts in turn, .*: '0'"):
        floater.plug(model)
    assert len(model) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": [2]}, "there are blocks 0 to 1"),
        ({"start": "sinusoidal"}, "start is 'sinusoidal'; it must be one of 'zero', 'small'"),
        ({"injection": "qkv"}, "unknown option 'injection' of plug; there are: delta, time_scale, start, "),
        ({"delt": 0.1}, "unknown option 'delt' of plug; did you mean 'delta'"),
        ({"share": "all"}, "share is 'all'"),
        ({"max_length": 0}, "max_length is 0"),
        ({"max_length": "long"}, "max_length is 'long'"),
        ({"delta": -1.0}, "delta is -1.0; it must be a positive number"),
        ({"delta": "small"}, "delta is 'small'"),
        ({"time_scale": 0}, "time_scale is 0"),
        ({"hidden": 0}, "hidden is 0; it must be a whole number of at least 1"),
        ({"refresh_every": 1.5}, "refresh_every is 1.5"),
        ({"activation": "sine"}, "unknown activation"),
        ({"field": "nonsense"}, "field is 'nonsense'; it must be one of 'mlp', 'bounded'"),
        ({"field": "bounded", "activation": "relu"}, "goes with activation='tanh'"),
        ({"uncovered": "drop"}, "uncovered is 'drop'; it must be one of 'keep', 'cut', 'round'"),
        ({"uncovered": "cut"}, "uncovered='cut' changes the clocks of field='bounded', not 'mlp'"),
        ({"delta": "learned"}, "delta is 'learned'; it must be a positive number"),
        ({"refresh_every": None}, "refresh_every is None"),
        ({"hidden": True}, "hidden is True"),
        ({"max_length": True}, "max_length is True"),
        (
            {"blocks": ["first"]},
            r"blocks is \['first'\]; it must be 'input', 'all' or a list of block indices",
        ),
        ({"projections": 1}, "projections is 1; it must be a list of some of query, key, value"),
        ({"projections": [[1]]}, r"projections is \[\[1\]\]; it must be a list"),
        ({"time_scale": []}, r"time_scale is \[\]; it must be a positive number or 'learned'"),
        ({"step": "small"}, "step is 'small'; it must be a positive number or None"),
        ({"step": 0.1}, "step=0.1 does not apply to the adaptive method"),
        ({"solver": "dopri"}, "unknown solver method 'dopri'; valid: 'dopri8', 'dopri5'"),
        ({"gradient": "exact"}, "unknown gradient 'exact'; valid: 'discrete', 'adjoint'"),
        ({"projections": {"query": 5}}, "projections names 5 for 'query'; it must be the name of a module"),
        ({"freeze_model": "yes"}, "freeze_model is 'yes'; it must be True or False"),
    ],
)
def test_options_that_are_not_valid(options: dict[str, Any], message: str) -> None:
    model = zoo.build("bert")
    with pytest.raises((PositionError, PlugError), match=message):
        floater.plug(model, **options)
    assert not hasattr(model, "floater")
    floater.plug(model)  # nothing was left behind


def opt() -> Any:
    torch.manual_seed(0)
    return OPTForCausalLM(
        OPTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, ffn_dim=20, vocab_size=40,
                  word_embed_proj_dim=16, max_position_embeddings=32)
    ).eval()  # fmt: skip


@pytest.mark.parametrize("grouped", [False, True])
def test_a_table_does_not_plug_what_is_interleaved(grouped: bool) -> None:
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "vocab_size": 40}
    falcon = FalconConfig(**sizes, num_hidden_layers=1, num_kv_heads=2, new_decoder_architecture=grouped)
    bloom = BloomConfig(**sizes, n_layer=1)
    table = dict.fromkeys(("query", "key", "value"), "query_key_value")
    for model in (BloomForCausalLM(bloom), FalconForCausalLM(falcon)):
        with pytest.raises(PlugError, match=r"holds query, key, value of each head in turn"):
            floater.plug(model, projections=table)
    deberta = DebertaModel(DebertaConfig(**sizes, num_hidden_layers=1))
    with pytest.raises(PlugError, match=r"holds query, key, value of each head in turn"):
        floater.plug(deberta, projections=dict.fromkeys(table, "in_proj"))


def test_a_table_knows_where_positions_begin() -> None:
    """Models like RoBERTa count from the id after that of padding."""
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "vocab_size": 40, "num_hidden_layers": 1}
    model = CamembertModel(CamembertConfig(**sizes, intermediate_size=16, pad_token_id=1)).eval()
    floater.plug(model, projections={name: name for name in ("query", "key", "value")})
    zoo.noisy(model)
    ids = zoo.text(1, 6)
    expected = zoo.output(model, input_ids=ids, position_ids=torch.arange(2, 8)[None])
    assert torch.equal(expected, zoo.output(model, input_ids=ids))


@pytest.mark.parametrize("name", ["roberta", "mpnet", "albert", "deberta-v2", "vit", "gpt2"])
def test_a_table_keeps_what_is_known_of_the_family(name: str) -> None:
    listed, tabled, options = zoo.build(name), zoo.build(name), zoo.inputs(name)
    if name == "gpt2":
        del options["attention_mask"]
    names: dict[str, str] = {}
    for fused in FAMILIES[listed.config.model_type].attention:
        names |= dict.fromkeys(fused.parts, fused.module)
    floater.plug(listed)
    floater.plug(tabled, projections=names)
    for model in (listed, tabled):
        zoo.noisy(model)
    assert torch.equal(zoo.output(tabled, **options), zoo.output(listed, **options))


@pytest.mark.parametrize("changes", [{}, {"clock": {}}])
def test_a_part_that_stays_as_it_is_is_named(changes: dict[str, Any]) -> None:
    model = extended.llava()
    vision = model.model.vision_tower
    assert str(floater.plug(model, **changes)).endswith("; unchanged: model.vision_tower (CLIPVisionModel)")
    assert not any(part._forward_hooks for part in vision.modules())
    assert "unchanged" not in str(floater.plug(zoo.build("t5")))


def test_a_table_of_names_plugs_another_model() -> None:
    model, ids = opt(), zoo.text()
    before = zoo.output(model, input_ids=ids)
    report = floater.plug(model, projections={"query": "q_proj", "value": "v_proj"})
    assert str(report).startswith("a field of width 16 for 2 query, 2 value")
    assert torch.equal(zoo.output(model, input_ids=ids), before)
    zoo.noisy(model)
    vectors = model.floater("tokens", torch.arange(7)[None])["16"]
    seen: list[torch.Tensor] = []
    plain = opt()
    for path, module in plain.named_modules():
        if path.endswith(("q_proj", "v_proj")):
            block, name = int(path.split(".")[3]), "query" if "q_proj" in path else "value"
            added = vectors.at(block, name).detach()
            module.register_forward_hook(lambda m, args, out, added=added: seen.append(added) or out + added)
    torch.testing.assert_close(
        zoo.output(model, input_ids=ids), zoo.output(plain, input_ids=ids), atol=1e-6, rtol=1e-6
    )
    assert len(seen) == 4


def test_tokens_outside_of_the_body() -> None:
    model = plugged_bert()
    with pytest.raises(PlugError, match="outside of the forward pass of bert"):
        model.bert.encoder(torch.zeros(1, 3, 16))
    with pytest.raises(PlugError, match="does not say which tokens are padding"):
        zoo.output(model, input_ids=zoo.text(), attention_mask=torch.ones(3, 1, 7, 7))
    # an error leaves nothing behind
    zoo.output(model, input_ids=zoo.text())
    with pytest.raises(PlugError, match="outside"):
        model.bert.encoder(torch.zeros(1, 3, 16))


def test_data_parallel_is_refused() -> None:
    model = plugged_bert()
    model.bert._is_replica = True  # as nn.DataParallel marks its copies
    with pytest.raises(PlugError, match="DistributedDataParallel"):
        zoo.output(model, input_ids=zoo.text())


def test_a_model_without_attention_is_said_to_have_none() -> None:
    config = MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1)
    with pytest.raises(PlugError, match=r"MambaForCausalLM has no attention: its recurrence"):
        floater.plug(MambaForCausalLM(config))


def test_names_that_are_taken() -> None:
    model = zoo.build("bert")
    model.floater = nn.Identity()
    with pytest.raises(PlugError, match="not from this library"):
        floater.plug(model)


@pytest.mark.parametrize("name", ["positions", "times"])
def test_positions_of_this_library_are_not_read_by_a_changed_model(name: str) -> None:
    flow, clock, extended = (zoo.build("llama") for _ in range(3))
    floater.plug(flow)
    floater.plug(clock, clock={})
    floater.extend(extended, 128, "clex")
    for model, kind in ((flow, "LlamaModel"), (clock, "LlamaForCausalLM"), (extended, "LlamaModel")):
        with pytest.raises(ValueError, match=f"{kind} does not take {name}; pass position_ids"):
            model(zoo.text(), **{name: torch.arange(7)})


@pytest.mark.parametrize("name", ["fsmt", "led", "longformer"])
def test_projections_of_rows_of_tokens_are_refused(name: str) -> None:
    """A batch of as many texts as tokens would get the vectors of its texts in place of its tokens."""
    table = {"query": "q_proj" if name == "fsmt" else "query"}
    with pytest.raises(PlugError, match=r"projects \(length, batch, width\), not \(batch, length, width\)"):
        floater.plug(tiny(name), projections=table)


def test_a_projection_that_returns_no_tensor_is_refused() -> None:
    model = tiny("ibert")
    floater.plug(model, projections={"query": "query"})
    with pytest.raises(PlugError, match=r"self.query returns a tuple; a projection returns one tensor"):
        model(zoo.text())
