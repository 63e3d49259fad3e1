"""Configurations: the sizes of the papers, and what is refused."""

import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformer_cases import config

from floater import PositionError, catalogue
from floater.encodings import options
from floater.transformer import (
    PRESETS,
    FloaterConfig,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterForSequenceClassification,
    FloaterModel,
)
from floater.transformer.stacks import position_model


def published(d, f, encoder, decoder, vocabulary):
    """Parameters of the Transformer of Vaswani et al. 2017 with one embedding matrix and sinusoids.

    An attention has four d x d matrices with biases, a feed-forward 2 d f + f + d, a layer norm 2 d.
    """
    attention, feed_forward, norm = 4 * (d * d + d), 2 * d * f + f + d, 2 * d
    return (
        vocabulary * d
        + encoder * (attention + feed_forward + 2 * norm)
        + decoder * (2 * attention + feed_forward + 3 * norm)
    )


@pytest.mark.parametrize(
    ("preset", "millions"),
    # Table 3 of Vaswani et al. 2017 prints 65 and 213 (its vocabulary is "about 37,000")
    [("transformer-base", 63.1), ("transformer-big", 214.2)],
)
def test_the_papers_sizes(preset, millions):
    settings = FloaterConfig.preset(preset, vocab_size=37_000, position="sinusoidal")
    with torch.device("meta"):
        model = FloaterForConditionalGeneration(settings)
    sizes = (
        settings.hidden_size,
        settings.intermediate_size,
        settings.num_hidden_layers,
        settings.decoder_layers,
    )
    count = sum(p.numel() for p in model.parameters())
    assert count == published(*sizes, 37_000)
    assert count / 1e6 == pytest.approx(millions, abs=0.05)


def test_floater_adds_three_fields_and_54_starts_to_transformer_base():
    counts = []
    for position in ("sinusoidal", "floater"):
        with torch.device("meta"):
            model = FloaterForConditionalGeneration(
                FloaterConfig.preset("transformer-base", position=position)
            )
        counts.append(sum(p.numel() for p in model.parameters()))
    assert counts[1] - counts[0] == 3 * 526_336 + 6 * (3 + 4 + 2) * 512


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_makes_a_model(preset):
    with torch.device("meta"):
        FloaterForConditionalGeneration(FloaterConfig.preset(preset))


def test_changes_win_over_the_preset():
    assert FloaterConfig.preset("tiny", hidden_size=64, dropout=0.0).hidden_size == 64


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: FloaterConfig.preset("transformer-bas"), ValueError, "nearest: 'transformer-base'"),
        (
            lambda: config(num_attention_heads=3),
            ValueError,
            "hidden_size 16 is not a multiple of num_attention_heads 3",
        ),
        (
            lambda: config(activation_function="rleu"),
            ValueError,
            "activation_function is 'rleu'; there are: ",
        ),
        (lambda: FloaterModel(config("sinusoid")), PositionError, "did you mean 'sinusoidal'"),
        (
            lambda: FloaterModel(config("learned", position_options={"block": "all"})),
            PositionError,
            "unknown option 'block' of position model 'learned'; did you mean 'blocks'",
        ),
        (
            lambda: FloaterModel(config("sinusoidal", hidden_size=15, num_attention_heads=3)),
            PositionError,
            "dim is 15; sinusoidal positions need an even one",
        ),
        *(
            (lambda name=name: config(**{name: -1}), PositionError, f"^{name} is -1; it must be at least 1")
            for name in ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size", "baked")
        ),
        (lambda: FloaterModel(config("rotary", baked=5)), PositionError, "baked is 5, but 'rotary' has no"),
        (lambda: FloaterForMaskedLM(config(is_decoder=True)), ValueError, "needs is_decoder=False"),
        (
            lambda: FloaterForSequenceClassification(config(is_decoder=True)),
            ValueError,
            "needs is_decoder=False",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("field", [{"hidden_size": "16"}, {"dropout": "high"}, {"position": 3}])
def test_a_wrong_type_is_refused_by_the_name_of_its_field(field):
    with pytest.raises(StrictDataclassFieldValidationError, match=f"field '{next(iter(field))}'"):
        config(**field)


@pytest.mark.parametrize("position", ["none", "rnn", "learned"])
def test_odd_widths_work_where_there_is_no_sinusoid(position):
    model = FloaterModel(config(position, hidden_size=15, num_attention_heads=3)).eval()
    assert bool(model(torch.tensor([[3, 4]])).last_hidden_state.isfinite().all())


def test_names_that_are_no_fields_are_refused():
    with pytest.raises(ValueError, match="has no 'max_length'; did you mean 'training_length'"):
        FloaterConfig.preset("tiny", max_length=16)
    with pytest.raises(ValueError, match="no 'max_length'"):
        FloaterConfig(max_length=16)
    with pytest.raises(ValueError, match="no 'num_hiden_layers'; did you mean 'num_hidden_layers'"):
        FloaterConfig(num_hiden_layers=3)
    with pytest.raises(ValueError, match="no 'colour'"):
        FloaterConfig.preset("tiny", colour="red")
    assert FloaterConfig.preset("tiny", num_labels=5, problem_type="regression").num_labels == 5


def test_saved_configurations_name_every_option(tmp_path):
    """Whatever a default will be later, a saved model keeps the one that it was trained with."""
    config = FloaterConfig.preset("tiny", position="floater", position_options={"delta": 0.3})
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())["position_options"]
    assert written == {**options("floater"), "delta": 0.3}
    assert FloaterConfig.from_pretrained(tmp_path).position_options == written
    assert config.position_options == {"delta": 0.3}


@pytest.mark.parametrize("position", sorted(catalogue()))
def test_options_said_are_options_left_out(position):
    """Building from what was saved is building from what was meant."""
    config = FloaterConfig.preset("tiny", vocab_size=9, training_length=16, position=position)
    again = FloaterConfig.from_dict(config.to_diff_dict())

    def built(config):
        torch.manual_seed(0)
        try:
            return position_model(config, 2, "self").state_dict()
        except PositionError as error:
            return str(error)

    first, second = built(config), built(again)
    if isinstance(first, str) or isinstance(second, str):
        assert first == second
        return
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
