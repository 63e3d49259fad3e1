"""Commands that need no run: help, names, configurations, completion."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import floater
from floater.lab.cli import main
from floater.lab.cli.parser import make_parser
from floater.lab.cli.shipped import shipped
from floater.lab.cli.task_options import parameters_of
from floater.lab.settings import load, read
from floater.lab.study import analyses
from floater.lab.study.settings import StudySettings
from floater.lab.tasks import registry

COMMANDS = list(make_parser()[1])


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit status, the output and the errors of a command that ends the process."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return (stop.value.code, *capsys.readouterr())


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the output of a command that ends the process with success."""
    status, out, messages = ended(capsys, *arguments)
    assert (status, messages) == (0, "")
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line with which wrong arguments are refused."""
    status, out, message = ended(capsys, *arguments)
    assert (status, out, message.count("\n")) == (2, "", 1)
    assert message.startswith("floater: ")
    return message.removeprefix("floater: ").strip()


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "--version") == f"floater {floater.__version__}\n"


def test_asking_needs_no_other_package() -> None:
    """Help, version and configurations answer at once: nothing heavy is imported."""
    code = (
        "import sys\nfrom floater.lab.cli import main\nmain(['configs'])\n"
        "try:\n    main(['train', '--help'])\nexcept SystemExit:\n    pass\n"
        "print({'torch', 'transformers', 'numpy', 'yaml', 'docstring_parser'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_help_on_help_is_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    everything = said(capsys, "--help")
    assert main(["help", "help"]) == 0
    assert capsys.readouterr().out == everything


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "help"])
def test_help_fits_on_a_screen(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = said(capsys, "help", command).splitlines()
    assert lines[0].startswith(f"usage: floater {command}")
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80


def test_options_of_one_task_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(said(capsys, "help", "evaluate").split())
    for option, name in (("--stride", "stride"), ("--memory", "memory")):
        tasks = [each for each in registry.BUILTIN if name in parameters_of(registry.task(each).evaluate)]
        assert tasks == ["language_modeling"]
        assert f"{option} N task language_modeling only: tokens" in text
    assert "(default: all of it; without --source, the validation texts of a classification)" in text


@pytest.mark.parametrize("columns", [70, 110])
def test_settings_are_listed_at_the_width_of_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = said(capsys, "train", "--help", "translation")
    assert re.search(
        r"^training.learning_rate +float +0.0007\n +learning rate at the end of the warm-up",
        text,
        re.MULTILINE,
    )
    assert re.search(r"^run +str +required\n", text, re.MULTILINE)
    assert "model.changes.dropout" in text
    assert columns - 10 < max(len(line) for line in text.splitlines() if line.startswith("    ")) <= columns
    assert re.search("^budget.cores +int", said(capsys, "study", "--help", "settings"), re.MULTILINE)


def test_unknown_names_are_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "evalute", "run") == "unknown command 'evalute'; did you mean 'evaluate'?"
    assert refused(capsys, "xyz").startswith("unknown command 'xyz'; there are: train, translate, evaluate")
    assert refused(capsys, "help", "xyz").startswith("unknown command 'xyz'; there are: train")
    wrong = refused(capsys, "evaluate", "run", "--refrence", "x")
    assert wrong == "floater evaluate takes no '--refrence'; did you mean --reference?"
    wrong = refused(capsys, "train", "my.yaml", "--training.max_steps=3")
    assert wrong.endswith("no '--training.max_steps=3'; settings have no dashes: training.max_steps=3")
    wrong = refused(capsys, "study", "my.yaml", "--budget.cores", "3")
    assert wrong.endswith("no '--budget.cores'; settings have no dashes: budget.cores=VALUE")
    assert refused(capsys, "models", "--xyz") == "floater models takes no '--xyz'; see floater help models"
    assert refused(capsys, "train", "--help", "translate") == (
        "no help on 'translate'; did you mean 'translation'?"
    )
    kind = refused(capsys, "plot", "run", "vectros")
    assert kind == "unknown kind of plot 'vectros'; did you mean 'vectors'?"
    assert refused(capsys, "translate") == (
        "the following arguments are required: RUN; see floater help translate"
    )
    assert "'x' is not a whole number" in refused(capsys, "translate", "run", "--beam", "x")
    assert refused(capsys, "--verison") == "floater takes no '--verison'; did you mean --version?"
    assert refused(capsys, "demo", "--steps", "3").endswith("takes no '--steps'; see floater help demo")
    assert "'many' is not a whole number" in refused(capsys, "models", "--dim", "many")
    assert "'21' is not a year" in refused(capsys, "models", "--year", "21")
    for number in ("nan", "inf", "high"):
        assert f"'{number}' is not a finite number" in refused(
            capsys, "evaluate", "run", "--threshold", number
        )


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["study", ""], "config"),
        (["translate", "", "--source", "x"], "run"),
        (["translate", "run", "--source="], "source"),
        (["evaluate", "run", "--source", "x", "--reference", ""], "reference"),
        (["extend", "model", "128", "--to", ""], "to"),
    ],
)
def test_an_empty_argument_is_no_file(
    capsys: pytest.CaptureFixture[str], arguments: list[str], name: str
) -> None:
    """As of "$NAME" in a shell where it is not set; a path of no characters is the working directory."""
    expected = f"{name} is empty; a variable of the shell may not be set"
    assert refused(capsys, *arguments) == expected


def test_the_help_lists_every_kind_of_plot(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(said(capsys, "help", "plot").split())
    *kinds, last = analyses.KINDS
    assert f"KIND {', '.join(kinds)} or {last}" in text


def test_json_has_null_for_numbers_that_are_not_finite(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = {"perplexity": math.inf, "correlations": [math.nan, 0.5], "bins": ({"loss": -math.inf},)}
    monkeypatch.setattr("floater.lab.study.glue_table.read_runs", lambda _: [SimpleNamespace(record=actual)])
    assert main(["glue", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == [
        {"perplexity": None, "correlations": [None, 0.5], "bins": [{"loss": None}]}
    ]


def test_every_configuration_is_listed_with_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    there = Path(__file__).parents[2] / "configs"
    assert set(shipped()) == {str(path.relative_to(there).with_suffix("")) for path in there.rglob("*.yaml")}
    assert all(len(text) > 3 for text in shipped().values())
    assert main(["configs", "glue", "--json"]) == 0
    assert "glue/roberta_mrpc" in json.loads(capsys.readouterr().out)
    assert main(["configs", "nothing-like-it"]) == 2


def test_a_configuration_is_written_into_a_file_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "generated/copy"]) == 0
    asked = capsys.readouterr()
    assert asked.out == "copy.yaml\n"
    assert "floater train copy.yaml" in asked.err
    _, settings = registry.from_config(read("copy.yaml"), "copy.yaml")
    assert settings.data.problem == "copy"
    assert Path("copy.yaml").read_text().startswith("# floater train copy.yaml\n")
    assert main(["init", "survey_figure10", "mine.yaml"]) == 0
    assert load(StudySettings, "mine.yaml").checkpoints
    capsys.readouterr()
    for arguments, answer in (
        (["copy"], "copy.yaml exists; name another file: floater init copy FILE"),
        (["minilm"], "there are several configurations 'minilm'; choose masked_lm/minilm or squad/minilm"),
        (["multi31k_s2l"], "there is no configuration 'multi31k_s2l'; did you mean study/multi30k_s2l?"),
        (["copy", "none/mine.yaml"], "none: no such directory"),
    ):
        assert main(["init", *arguments]) == 2
        assert capsys.readouterr().err == f"floater: {answer}\n"


def test_completion_knows_commands_options_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Bash itself completes the last word of a line."""
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for line, names in (
        ("tra", {"train", "translate"}),
        ("translate runs/mine --len", {"--length-penalty"}),
        (
            "init generated/re",
            {"generated/recall", "generated/reorder", "generated/repeat", "generated/reverse"},
        ),
        ("models alibi rotary_m", {"rotary_mixed"}),
        ("plot --encoding alibi rotary_m", {"rotary_mixed"}),
        ("plot runs/mine simil", {"similarity"}),
        ("help compl", {"completion"}),
    ):
        words = f"COMP_WORDS=(floater {line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_floater"
        ask = f'{script}\n{words}\nprintf "%s\\n" "${{COMPREPLY[@]}}"\n'
        done = subprocess.run(["bash"], input=ask, text=True, capture_output=True, check=True)
        assert {*done.stdout.split()} == names, (line, done.stderr)
