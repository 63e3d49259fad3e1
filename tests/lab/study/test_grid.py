"""The trials of a study, and those that are refused before anything runs."""

from pathlib import Path
from typing import Any

import pytest

from floater.lab.settings import SettingsError, dump, load, make
from floater.lab.study.grid import grid
from floater.lab.study.settings import StudySettings
from floater.lab.study.short_to_long import TEST
from floater.lab.tasks.translation import TranslationSettings
from floater.lab.text.bpe import train_bpe
from floater.lab.training.contents import contents
from floater.lab.training.run_data import RunData
from floater.transformer import FloaterConfig, FloaterModel

from .small import settings


def test_models_blocks_and_seeds_multiply(tmp_path: Path) -> None:
    """A model without an option `blocks`, or that sets it, has one variant; the others one for each value."""
    models = {
        "none": {},
        "rnn2": {"position": "rnn", "position_options": {"depth": 2}},
        "first": {"position": "learned", "position_options": {"blocks": [0]}},
    }
    built = grid(settings(tmp_path, models=models, blocks=["input", "all"], seeds=[3, 5]), "here")
    assert [variant.name for variant in built.variants] == ["none", "rnn2-input", "rnn2-all", "first"]
    assert [trial.name for trial in built.trials] == [
        f"{variant.name}-{seed}" for seed in (3, 5) for variant in built.variants
    ]
    deep = built.trials[2].settings
    assert isinstance(deep, TranslationSettings)
    assert deep.model.position_options == {"depth": 2, "blocks": "all"}
    assert (deep.training.seed, deep.run) == (3, str(tmp_path / "trials" / "rnn2-all-3"))
    assert deep.data.train_source == str(tmp_path / "data" / "train.en")
    assert built.tests[TEST]["reference"] == str(tmp_path / "data" / "lengths.de")


def test_a_start_needs_a_task_that_starts_warm(tmp_path: Path) -> None:
    data = {"problem": "copy", "lengths": [2, 4], "train": 20, "valid": 4, "test": 4}
    tree = {
        "folder": str(tmp_path),
        "task": "generated",
        "settings": {"data": data, "training": {"max_steps": 2}},
        "models": {"rotary": {}, "timed": {"position": "rotary", "start": "rotary"}},
        "seeds": [1],
    }
    with pytest.raises(SettingsError, match="trial timed-1: start needs task 'translation'"):
        grid(make(StudySettings, tree, "here"), "here")


def test_a_model_may_change_any_setting_and_start_from_another(tmp_path: Path) -> None:
    models = {
        "sinusoidal": {},
        "floater": {
            "start": "sinusoidal-input",
            "settings": {"training": {"learning_rate": 5e-3, "max_steps": 9}},
        },
    }
    built = grid(settings(tmp_path, models=models, blocks=["input"], seeds=[4]), "here")
    plain, flow = (trial.settings for trial in built.trials)
    assert (plain.training.learning_rate, flow.training.learning_rate, flow.training.max_steps) == (
        1e-2,
        5e-3,
        9,
    )
    assert flow.training.warm_start == plain.run
    assert built.trials[1].after == built.trials[0].name
    models["sinusoidal"] = {"settings": {"training": {"keep_best": True, "eval_steps": 2}}}
    built = grid(settings(tmp_path, models=models, blocks=["input"], seeds=[4]), "here")
    assert built.trials[1].settings.training.warm_start == f"{plain.run}/best"
    models["sinusoidal"] = {}
    models["floater"]["seeds"] = [4]
    built = grid(settings(tmp_path, models=models, blocks=["input"], seeds=[3, 4]), "here")
    assert [trial.after for trial in built.trials] == [None, "sinusoidal-input-4", None]


def test_a_label_changes_a_setting_that_the_model_sets_too(tmp_path: Path) -> None:
    asked = settings(
        tmp_path,
        models={"learned": {"max_length": 512}},
        axes={"table": {"short": {"model": {"max_length": 256}}, "own": {}}},
        seeds=[1],
    )
    lengths = {trial.name: trial.settings.model.max_length for trial in grid(asked, "here").trials}
    assert lengths == {"learned-short-1": 256, "learned-own-1": 512}


def test_a_label_replaces_random_times_as_a_whole(tmp_path: Path) -> None:
    common = settings(tmp_path).settings
    common["model"] |= {"times": {"mode": "stretch", "max_scale": 4.0, "shift": False}}
    axes = {"times": {"none": {"model": {"times": None}}, "other": {"model": {"times": {"mode": "float"}}}}}
    asked = settings(tmp_path, settings=common, models={"sinusoidal": {}}, axes=axes, seeds=[1])
    times = [trial.settings.model.times for trial in grid(asked, "here").trials]
    assert times == [None, {"mode": "float"}]


def test_trials_that_began_with_other_code_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code = tmp_path / "my_positions.py"
    code.write_text("one = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = settings(tmp_path / "study", imports=["my_positions"], seeds=[1])
    for trial in grid(asked, "here").trials:
        trial.run.mkdir(parents=True)
        RunData(trial.run, trial.settings).write()
        (trial.run / "config.yaml").write_text(dump(trial.settings))
    grid(asked, "here")
    assert "other code" not in caplog.text
    code.write_text("two = 1\n")
    grid(asked, "here")
    assert f"2 trials, such as none-1, began with other code (imports: {code} has changed" in caplog.text


def test_a_model_may_have_seeds_of_its_own(tmp_path: Path) -> None:
    """Many variants are screened with one seed, some are settled with several; the first seeds run first."""
    models = {"none": {}, "rnn": {"seeds": [7]}, "learned": {"seeds": [2, 3, 1]}, "t5": {"seeds": [1]}}
    built = grid(settings(tmp_path, models=models, seeds=[1, 2]), "here")
    names = ["none-1", "rnn-7", "learned-2", "t5-1", "none-2", "learned-3", "learned-1"]
    assert [trial.name for trial in built.trials] == names
    assert [trial.settings.training.seed for trial in built.trials] == [1, 7, 2, 1, 2, 3, 1]


def test_each_trial_is_a_run_that_floater_train_takes(tmp_path: Path) -> None:
    built = grid(settings(tmp_path), "here")
    built.write(threads=1)
    for trial in built.trials:
        assert load(TranslationSettings, trial.config) == trial.settings
        assert trial.config.read_text().startswith(f"# floater train {trial.config}\n")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"models": {"none": {}, "siusoidal": {}}}, "trial siusoidal-1: unknown position model 'siusoidal'"),
        (
            {"models": {"none": {}, "t5": {"position_options": {"bukets": 3}}}},
            "trial t5-1: model: unknown option",
        ),
        ({"models": {"none": {"max_lenght": 3}}}, "trial none-1: unknown key 'model.max_lenght'"),
        ({"models": {"none": {}, "tree": {}}}, "trial tree-1: .*reads a tree"),
        (
            {"models": {"learned": {"max_length": 100}}},
            "trial learned-1: test lengths: 'learned' has 100 positions",
        ),
        ({"models": {"none": {"start": "learned"}}}, "trial none-1: start 'learned' is not a variant"),
        (
            {"models": {"none": {"seeds": [1]}, "rnn": {"start": "none"}}},
            "trial rnn-2: start 'none' is not a variant above this one with seed 2",
        ),
        ({"models": {"none": {"seeds": 3}}}, "model none: seeds is 3; it must be a list of numbers, each"),
        ({"models": {"none": {"seeds": []}}}, r"model none: seeds is \[\]; it must be a list"),
        ({"models": {"none": {"seeds": [0, 0]}}}, r"model none: seeds is \[0, 0\]; it must be a list"),
        ({"models": {"none": {"seeds": ["one"]}}}, "trial none-one: 'training.seed' must be int"),
        ({"models": {"a": {"position": "none"}, "a-1": {"position": "none"}}, "seeds": [1, "1-1"]}, "seeds"),
        (
            {"models": {"rnn-all": {"position": "none"}, "rnn": {}}, "blocks": ["all"]},
            "two trials of this name",
        ),
        ({"models": {"floater": {}}, "blocks": ["first"]}, "trial floater-first-1: model: blocks is 'first'"),
        ({"comparisons": [["none", "x"]]}, "comparisons has 'x', which is not a variant; there are: none, "),
        ({"baseline": "sinusoid"}, "baseline 'sinusoid' is not a variant; there are: none, sinusoidal"),
        ({"metric": "BLEU"}, "metric is 'BLEU'; did you mean 'bleu'?"),
        (
            {"metric": "length_ratio"},
            "metric is 'length_ratio'; there are: bleu, chrf, tokenised_bleu, loss$",
        ),
        ({"metric": "accuracy"}, "metric is 'accuracy'; there are: bleu, chrf, tokenised_bleu, loss$"),
        ({"metric": "chrf", "short_to_long": {}}, "metric needs tests"),
        ({"checkpoints": {"mine": "/no/such/model"}}, "checkpoint mine: .*no such directory"),
        (
            {"task": "causal_lm", "bins": [5], "short_to_long": {}},
            "'causal_lm' has no scores example by example; leave out tests and bins",
        ),
        ({"figures": ["vector"]}, "figures has 'vector'"),
        ({"task": "translate", "short_to_long": {}}, "unknown task 'translate'"),
        (
            {"tests": {"t": {"source": "no-such", "reference": "x"}}},
            "test t: source: there is no file no-such",
        ),
        (
            {"models": {"none": {"position_options": [1]}}},
            r"none: position_options: must be a mapping, got \[1",
        ),
        ({"models": {"none": {"settings": [1]}}}, r"none: settings: must be a mapping, got \[1\]"),
        ({"models": {"none": "x"}}, "'models.none' must be dict"),
        ({"models": {"none": {"settings": {"model": None}}}}, "settings.model is None; it must be a mapping"),
        (
            {"models": {"none": {"settings": {"model": {"changes": None}}}}},
            "settings.model.changes is None; it must be a mapping",
        ),
        ({"models": {"none": {"settings": {"run": "x"}}}}, "settings.run is not to be set"),
        (
            {"models": {"none": {"settings": {"training": {"seed": 7}}}}},
            "settings.training.seed is not to be",
        ),
        ({"models": {"none": {"settings": {"training": [1]}}}}, r"settings.training is \[1\]; it must be a"),
        (
            {"models": {"t5": {"settings": {"model": {"position_options": {"buckets": 4}}}}}},
            "settings.model.position_options is not to be set",
        ),
        ({"settings": {"data": [1]}}, r"settings.data: must be a mapping, got \[1\]"),
        ({"settings": {"data": {"source": "xx"}}}, "built-in corpus: language must be one of de, en, fr"),
        ({"short_to_long": {"builtin": 40, "builtin_mean": 900}}, "built-in corpus: mean_tokens must lie"),
        ({"seeds": [2**32]}, "trial none-4294967296: training: seed is 4294967296"),
        ({"excluded": {"none": "no"}}, "'none' is among models and among excluded"),
        (
            {"budget": {"gpus": 2}},
            "gpus is 2; a process has one GPU at most: give budget.processes=2 for a trial on several",
        ),
        (
            {
                "task": "language_modeling",
                "settings": {"objective": "masked", "data": {"train": "no-such", "valid": "no-such"}},
                "short_to_long": {},
            },
            "trial none-1: data.train: there is no file no-such",
        ),
        (
            {
                "task": "generated",
                "settings": {"data": {"problem": "copy", "lengths": [1, 4]}},
                "short_to_long": {},
                "tests": {"lengths": {"bins": [9, 5]}},
            },
            r"trial none-1: test lengths: bins \[9, 5\] must be increasing whole numbers of at least 1",
        ),
        (
            {
                "task": "generated",
                "settings": {"data": {"problem": "copy", "lengths": [1, 4]}},
                "short_to_long": {},
                "tests": {"lengths": {}},
                "bins": [5, 500],
            },
            "the greatest that is tested, 32",
        ),
        (
            {"tests": {"t": {"source": "x", "referense": "x"}}},
            "test t: unknown key 'referense'; did you mean 'reference'",
        ),
        ({"tests": {"t": {"source": "x"}}}, "test t: source: there is no file x"),
        (
            {"tests": {"t": {"source": ["x"], "reference": "x"}}},
            r"test t: 'source' must be str | Path, not \['x'\]",
        ),
        (
            {"task": "causal_lm", "tests": {"t": {"source": "x"}}, "short_to_long": {}},
            "'causal_lm' has no scores example by example",
        ),
    ],
)
def test_an_impossible_trial_is_named_before_anything_runs(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named) as refused:
        grid(settings(tmp_path, **changes), "here")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "trials").exists()


def test_what_a_training_reads_are_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not a directory that is called as the language."""
    monkeypatch.chdir(tmp_path)
    Path("en").mkdir()
    Path("voc").mkdir()
    Path("voc/tokenizer.json").touch()
    common = settings(tmp_path).settings
    common["data"] = {"vocabulary": "voc"}
    trial = grid(settings(tmp_path / "study", settings=common), "here").trials[0]
    read = contents(trial.settings.files_read())
    sides = {f"data.{part}_{side}" for part in ("train", "valid") for side in ("source", "target")}
    assert read.keys() == {*sides, "data.vocabulary"}
    Path("voc/checkpoint").touch()  # of a run that goes on
    assert contents(trial.settings.files_read()) == read


def test_a_checkpoint_may_not_hide_a_row(tmp_path: Path) -> None:
    config = FloaterConfig.preset("tiny", vocab_size=9)
    FloaterModel(config).save_pretrained(tmp_path / "mine")
    asked = settings(tmp_path / "study", checkpoints={"none": str(tmp_path / "mine")})
    with pytest.raises(SettingsError, match="checkpoint none has the name of a variant"):
        grid(asked, "here")


def test_a_test_set_that_cannot_be_scored_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for name, text in (("two", "a b\nc\n"), ("three", "d\ne\nf\n"), ("long", "a b c d e f g h i\nj\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")

    def refused(source: str, reference: str, max_length: int = 1024) -> str:
        test = {"source": str(tmp_path / source), "reference": str(tmp_path / reference)}
        models = {"none": {}, "learned": {"max_length": max_length}}
        asked = settings(tmp_path / "study", models=models, tests={"t": test})
        with pytest.raises(SettingsError) as error:
            grid(asked, "here")
        return str(error.value)

    assert "trial none-1: test t: " in (said := refused("two", "three"))
    assert said.endswith("not aligned: 2 and 3 lines")
    assert "trial learned-1: test t: 'learned' has 9 positions, but the longest line of " in (
        said := refused("long", "two", max_length=9)
    )
    assert said.endswith("has 9 words and an end; raise model.max_length")

    train_bpe(["a b"], 261).save_pretrained(tmp_path / "vocabulary")
    (tmp_path / "letters").write_text("abcdefgh ij\nk\n", encoding="utf-8")  # two words, eleven tokens
    asked = settings(
        tmp_path / "study",
        models={"learned": {"max_length": 9}},
        settings=settings(tmp_path).settings | {"data": {"vocabulary": str(tmp_path / "vocabulary")}},
        tests={"t": {"source": str(tmp_path / "letters"), "reference": str(tmp_path / "two")}},
    )
    with pytest.raises(SettingsError, match=r"has 9 positions, but the longest line of .* has 1\d tokens"):
        grid(asked, "here")

    same = {key: str(tmp_path / "two") for key in ("source", "reference")}
    with pytest.raises(SettingsError, match=r"trial none-1: test t: token '\(' is not a regular expression"):
        grid(settings(tmp_path / "study", tests={"t": same | {"token": "("}}), "here")

    words = [f"{i}\tw\t_\tX\t_\t_\t{i - 1}\tr\t_\t_\n" for i in range(1, 7)]
    (tmp_path / "trees").write_text("".join(words), encoding="utf-8")
    data = {"train": str(tmp_path / "trees"), "valid": str(tmp_path / "trees")}
    asked = settings(
        tmp_path / "study",
        task="tagging",
        settings={"data": data, "model": {"preset": "tiny"}},
        models={"none": {}, "learned": {"max_length": 5}},
        tests={"t": {"source": str(tmp_path / "trees")}},
        short_to_long={},
    )
    with pytest.raises(
        SettingsError, match=r"trial learned-1: test t: 'learned' has 5 .* has 6 words; raise"
    ):
        grid(asked, "here")


@pytest.mark.parametrize(
    ("test", "named"),
    [
        ({"source": "blank"}, "trial none-1: test t: empty corpus: no text in .*blank"),
        ({"window": 32}, "trial learned-1: test t: 'learned' has 16 positions, but the window has 32"),
        ({"window": 4}, "trial none-1: test t: window is 4; it must be at least 8"),
        ({"window": "a"}, r"test t: 'window' must be int \| null, not 'a'"),
        ({"stride": 4}, "trial none-1: test t: stride is 4; a masked model has none"),
    ],
)
def test_a_text_that_a_language_model_cannot_be_scored_on_is_refused(
    tmp_path: Path, test: dict[str, Any], named: str
) -> None:
    (tmp_path / "text").write_text("a b c\n" * 9, encoding="utf-8")
    (tmp_path / "blank").write_text("\n\n", encoding="utf-8")
    text = str(tmp_path / "text")
    if "source" in test:
        test = {"source": str(tmp_path / test["source"])}
    asked = settings(
        tmp_path / "study",
        task="language_modeling",
        settings={
            "objective": "masked",
            "data": {"train": text, "valid": text, "block": 16},
            "model": {"preset": "tiny"},
        },
        models={"none": {}, "learned": {"max_length": 16}},
        short_to_long={},
        tests={"t": {"source": text} | test},
    )
    with pytest.raises(SettingsError, match=named):
        grid(asked, "here")


def test_a_causal_model_that_sees_the_future_is_refused_without_data(tmp_path: Path, ahead: str) -> None:
    data = {"train": "no-such-file", "valid": "no-such-file", "pack": False}
    common = {"objective": "causal", "data": data, "model": {"preset": "tiny"}}
    models = {"none": {}, ahead: {}}
    asked = settings(tmp_path, task="language_modeling", settings=common, models=models, short_to_long={})
    with pytest.raises(SettingsError, match=r"trial ahead-1: .* lets tokens attend to later ones"):
        grid(asked, "here")


def test_a_trial_directory_with_other_settings_is_refused(tmp_path: Path) -> None:
    built = grid(settings(tmp_path), "here")
    built.write(threads=1)
    built.trials[1].run.mkdir()
    text = built.trials[1].config.read_text(encoding="utf-8").replace("rate: 0.01", "rate: 0.02")
    (built.trials[1].run / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(
        SettingsError, match=r"trial sinusoidal-1: .*training.learning_rate is 0.02 there and 0.01 here"
    ):
        grid(settings(tmp_path), "here")


def test_a_task_that_draws_its_tests_is_told_the_bins(tmp_path: Path) -> None:
    asked = settings(
        tmp_path,
        task="generated",
        settings={"data": {"problem": "copy", "lengths": [1, 4]}},
        short_to_long={},
        tests={"lengths": {}, "own": {"bins": [5]}},
        bins=[5, 9, 17],
    )
    assert grid(asked, "here").tests == {"lengths": {"bins": [5, 9, 17]}, "own": {"bins": [5]}}
