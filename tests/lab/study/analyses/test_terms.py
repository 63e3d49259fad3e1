"""The four terms of the logits against the model's own attention, and against equation 4 of the survey."""

from typing import Any

import pytest
import torch

from floater import catalogue
from floater.errors import DataError
from floater.lab.study.analyses import Terms, draw, logit_terms
from floater.lab.study.analyses.subject import example_inputs, run_tokens
from floater.transformer import FloaterConfig, FloaterForCausalLM, FloaterModel

T, HEADS, DIM = 7, 2, 16
ENCODINGS = [
    *("none", "sinusoidal", "learned", "floater", "universal", "shortformer", "alibi", "t5", "shaw"),
    *("rotary", "deberta", "transformer_xl", "tupe_r", "bert_a", "complex", "da_transformer", "window"),
]

STRUCTURES = sorted(name for name, kind in catalogue().items() if hasattr(kind, "needs"))
FIELDS = [*STRUCTURES, "language_specific", "xl", "xl_heads", "ldpe", "lrpe", "noisy_length"]
"""Encodings that read what no text has."""


def built(position: str, kind: Any = FloaterModel, **more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": DIM, "intermediate_size": 8, "num_attention_heads": HEADS, "num_hidden_layers": 2}
    config = FloaterConfig(**sizes | {"vocab_size": 9, "training_length": 12} | more, position=position)
    model = kind(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def ids(rows: int = 3) -> torch.Tensor:
    return torch.randint(9, (rows, T), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [FloaterModel, FloaterForCausalLM])
@pytest.mark.parametrize("position", [*ENCODINGS, *FIELDS])
def test_the_terms_add_up_to_the_logits_of_the_attention(position: str, kind: Any) -> None:
    model = built(position, kind)
    model.set_attn_implementation("eager")
    terms = logit_terms(model, T, rows=3)
    inputs = example_inputs(model, ids()) if position in FIELDS else {"input_ids": ids()}
    attentions = model(**inputs, output_attentions=True).attentions
    assert list(terms) == ["block 1", "block 2"]
    for block, expected in zip(terms.values(), attentions, strict=True):
        logits = sum(block).nan_to_num(nan=-torch.inf)  # type: ignore[call-overload]
        weights = logits.softmax(-1).nan_to_num()  # a query may see no key
        assert torch.allclose(weights, expected, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("position", ["learned", *FIELDS])
def test_rows_of_a_probe_have_the_fields_that_an_encoding_reads(position: str) -> None:
    """Every row has the same trees, languages, orders and lengths, and its own tokens."""
    model = built(position)
    together, alone = run_tokens(model, ids()), run_tokens(model, ids()[1:2])
    assert len(together) == 3
    for states, row in zip(together, alone, strict=True):
        assert torch.allclose(states[1:2], row)
    assert not torch.allclose(together[-1][0], together[-1][1])


@pytest.mark.parametrize("recipe", ["transformer", "bert"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_added_vectors_give_the_products_of_equation_4(recipe: str, norm_first: bool) -> None:
    """The norms are linear maps once their deviations are known."""
    model = built("learned", recipe=recipe, norm_first=norm_first)
    stack = model.encoder
    attention, residual = stack.blocks[0].attention, stack.blocks[0].attention_residual
    units = model.embedding(ids())
    units = units * (DIM**0.5 if recipe == "transformer" else 1)
    positions = stack.position.table(0).weight[:T].expand_as(units)
    parts = [units, positions, torch.zeros_like(units)]  # the last one is of the biases
    for norm in (stack.embedding_norm, residual.norm if norm_first else torch.nn.Identity()):
        if isinstance(norm, torch.nn.LayerNorm):
            whole = units_whole(parts)
            deviation = (whole.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
            parts = [(part - part.mean(-1, keepdim=True)) / deviation * norm.weight for part in parts]
            parts[2] = parts[2] + norm.bias
    u, p = parts[0], parts[1] + parts[2]

    def heads(x: torch.Tensor, linear: torch.nn.Linear, bias: bool) -> torch.Tensor:
        y = x @ linear.weight.T + (linear.bias if bias and linear.bias is not None else 0)
        return y.view(*x.shape[:-1], HEADS, -1).transpose(1, 2)

    q = {"unit": heads(u, attention.query, False), "position": heads(p, attention.query, True)}
    k = {"unit": heads(u, attention.key, False), "position": heads(p, attention.key, True)}
    terms = logit_terms(model, T, rows=3)["block 1"]
    for name in Terms._fields:
        query, key = name.split("_")
        product = q[query] @ k[key].transpose(-1, -2) / (DIM / HEADS) ** 0.5
        assert torch.allclose(getattr(terms, name), product, atol=1e-6), name


def units_whole(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] + parts[1] + parts[2]


def test_a_bias_is_of_positions_and_shaws_has_the_unit_of_the_query() -> None:
    terms = logit_terms(built("t5"), T, rows=2)["block 1"]
    assert float(terms.unit_unit.std()) > 0.01
    for name in ("unit_position", "position_unit"):  # the biases of projections alone
        part = getattr(terms, name)
        by_unit = part.std(-1) if name == "unit_position" else part.std(-2)
        assert float(by_unit.max()) < 1e-9
    spread = logit_terms(built("shaw"), T, rows=2)["block 1"].spread
    assert float(spread[1].min()) > 0.01


def test_other_models_are_refused_in_one_line() -> None:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    bert = BertModel(BertConfig(vocab_size=9, **sizes))
    with pytest.raises(DataError, match="BertModel is not a model of this library"):
        logit_terms(bert, T)
    linear = built("sinusoidal", attention="linear")
    with pytest.raises(DataError, match="linear attention: it has no logits"):
        logit_terms(linear, T)


def test_the_figure_has_a_panel_for_each_term_and_the_sum() -> None:
    plot = draw(built("learned"), "terms")
    titles = [axes.get_title() for axes in plot.figure.axes[:5]]
    assert titles == ["unit by unit", "unit by position", "position by unit", "position by position", "sum"]
    assert plot.numbers["block 2"].shape == (4, HEADS, 12, 12)
