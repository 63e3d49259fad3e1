"""Validation of translation configurations, and the shipped configurations."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from floater.lab.settings import SettingsError, dump, load
from floater.lab.tasks.translation import TranslationSettings

ROOT = Path(__file__).parents[4]
CONFIGS = sorted((ROOT / "configs" / "translation").glob("*.yaml"))


def test_configurations_come_with_the_library() -> None:
    assert {path.stem for path in CONFIGS} >= {
        "multi30k",
        "wmt14_base_stage1",
        "wmt14_base_stage2",
        "wmt14_big",
    }


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_first_line_of_a_configuration_is_its_command(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    hash_, program, command, named, *overrides = shlex.split(first)
    assert (hash_, program, command, named) == ("#", "floater", "train", str(path.relative_to(ROOT)))
    assert load(TranslationSettings, path, overrides) == load(TranslationSettings, path)


def test_the_second_stage_has_half_the_rate_of_the_first_and_its_weights() -> None:
    first, second = (
        load(TranslationSettings, ROOT / "configs" / "translation" / f"wmt14_base_stage{stage}.yaml")
        for stage in (1, 2)
    )
    assert second.training.learning_rate == first.training.learning_rate / 2 == 3.5e-4
    assert second.training.warm_start == first.run
    assert (first.model.position, second.model.position) == ("sinusoidal", "floater")
    assert (first.training.num_train_epochs, second.training.num_train_epochs) == (30, 10)
    assert (second.training.save_steps, second.training.average_last) == (2000, 5)
    assert first.model.preset == second.model.preset


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_settings_survive_writing(path: Path, tmp_path: Path) -> None:
    settings = load(TranslationSettings, path)
    (tmp_path / "config.yaml").write_text(dump(settings), encoding="utf-8")
    assert load(TranslationSettings, tmp_path / "config.yaml") == settings


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.yaml"
    path.write_text(yaml.safe_dump({"run": "r", "data": {"builtin": 9}, "model": {"preset": "tiny"}}))
    return path


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "model.changes.num_attention_heads=3",
            "model: changes.hidden_size 128 is not a multiple of changes.num_attention_heads 3",
        ),
        ("model.changes.num_attention_heads=0", "num_attention_heads is 0; it must be positive"),
        ("model.changes={hidden_size: 33, num_attention_heads: 1}", "model: changes.hidden_size is 33"),
        (
            "model={position: rotary, changes: {hidden_size: 12}}",
            "model: changes.hidden_size / changes.num_attention_heads is 3; rotary positions need an even",
        ),
        ("model.max_length=0", "model: max_length is 0; it must be at least 1"),
        ("model.changes={attention: linear, attention_dropout: 0.5}", "changes.attention_dropout is 0.5"),
        ("model.changes.hiden_size=32", "did you mean 'model.changes.hidden_size'?"),
        ("model.changes.hidden_size=wide", "'model.changes.hidden_size' must be int | null, not 'wide'"),
        ("model.changes.dropout=1.5", "dropout is 1.5"),
        ("model.changes.activation_function=rleu", "'rleu'; there are: "),
        ("model.position=floatr", "unknown position model 'floatr'; did you mean 'floater'?"),
        ("model.position_options.dleta=1", "did you mean 'delta'?"),
        ("model.position_options.delta=wide", "delta is 'wide'; it must be a finite number"),
        ("model.position_options.blocks=[0, 2]", "there are blocks 0 to 1"),
        ("model.decoder_position=tree", "'tree', which acts in encoders only"),
        ("model.decoder_position=albi", "unknown position model 'albi'; did you mean 'alibi'?"),
        ("model.decoder_position_options.base=3", "are given, but no decoder_position"),
        ("model={decoder_position: rotary, decoder_position_options: {bsae: 3}}", "did you mean 'base'?"),
        ("model.decoder_position=pnat", "it must be 1: position model 'pnat' writes all tokens at once"),
        ("model.times={max_scale: 2}", "times has no mode; valid: 'stretch', 'shift', 'float', 'subset'"),
        ("model.times.mode=drift", "'drift'; it must be one of 'stretch', 'shift', 'float', 'subset'"),
        ("model={position: rotary, times: {mode: stretch}}", "'rotary' reads no times"),
        ("model={position: learned, times: {mode: float}}", "whole times only; valid: 'shift', 'subset'"),
        ("model.reading.group=4", "reading.group is 4; it must be w and G"),
        ("model.reading={group: [4, 2]}", "'floater' has no bias of them"),
        ("model.changes.attention_temperature=hot", "must be one of 'log', 'learned'"),
        ("model.preset=tny", "unknown preset 'tny'"),
        ("modl.preset=tiny", "did you mean 'model.preset'?"),
        ("data.vocabulary_size=258", "vocabulary_size is 258; it must be at least 259"),
        ("data.train_source=a.en", "exactly one of"),
        ("data.builtin=0", "exactly one of"),
        ("data={builtin: 0, train_source: a.en}", "give all of train_source, train_target"),
        ("training.learning_rate=fast", "'training.learning_rate' must be float, not 'fast'"),
        ("training.learning_rate=.nan", "learning_rate is nan; it must be a finite number, positive"),
        ("training.learning_rate=.inf", "learning_rate is inf; it must be a finite number, positive"),
        ("training.max_steps=0", "max_steps is 0; it must be positive"),
        ("training.seed=-1", "seed is -1; it must be at least 0"),
        ("training.adam_beta2=1.0", "adam_beta2 is 1.0; it must be at least 0 and below 1"),
        ("training.initial_learning_rate=1", "initial_learning_rate is 1.0, above the peak rate 0.0007"),
        ("training.average_last=6", "average_last is 6, but only 5 checkpoints are kept"),
        ("training={early_stopping_patience: 2, eval_strategy: 'no'}", "need validation"),
        ("training={stop_score: 30.0, eval_strategy: 'no'}", "need validation"),
        ("training={average_last: 0, save_steps: 4, eval_steps: 6}", "validation (each 6) does not fall on"),
        (
            "training={average_last: 0, save_steps: 4}",
            "validation (each epoch) does not fall on checkpoints (each 4)",
        ),
        ("training.flow.lr_multiplier=0", "lr_multiplier is 0.0; it must be positive"),
        ("decoding.beam=0", "beam is 0; it must be at least 1"),
        ("decoding.length_penalty=.nan", "length_penalty is nan"),
        (
            "decoding={beam: 1, length_penalty: 2.0}",
            "decoding.length_penalty is 2.0, which only a beam above 1 reads",
        ),
    ],
)
def test_a_bad_setting_is_named_in_one_line(base: Path, override: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(TranslationSettings, base, [override])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("update", "save", "valid"),
    [(1, "epoch", True), (1, 7, True), (2, "epoch", False), (3, 4, False), (3, 6, True)],
)
def test_checkpoints_must_fall_on_updates_of_the_flow(
    base: Path, update: int, save: int | str, valid: bool
) -> None:
    when = "save_strategy: epoch" if save == "epoch" else f"save_steps: {save}"
    overrides = [f"training={{{when}, flow: {{update_every: {update}}}}}"]
    if valid:
        load(TranslationSettings, base, overrides)
        return
    with pytest.raises(
        SettingsError, match=f"training.save_steps is {save}; with flow.update_every {update}"
    ):
        load(TranslationSettings, base, overrides)


def test_a_model_without_a_flow_saves_whenever(base: Path) -> None:
    overrides: list[Any] = ["model.position=sinusoidal", "training.flow.update_every=5"]
    assert load(TranslationSettings, base, overrides).training.saves == "epoch"


def test_a_decoder_has_a_position_model_of_its_own(base: Path) -> None:
    override = "model={position: rotary, decoder_position: [alibi, {name: sinusoidal, injection: cross}]}"
    settings = load(TranslationSettings, base, [override])
    config = settings.model.config(300)
    assert (config.position_name("self"), config.position_name("decoder")) == ("rotary", "alibi + sinusoidal")
    base.write_text(dump(settings), encoding="utf-8")
    assert load(TranslationSettings, base) == settings


def test_changes_are_made_to_the_preset(base: Path) -> None:
    model = load(TranslationSettings, base, ["model.changes={dropout: 0.3, decoder_layers: 1}"]).model
    config = model.config(vocab_size=300)
    assert (config.dropout, config.decoder_layers, config.num_hidden_layers) == (0.3, 1, 2)
    assert config.hidden_size == 128
