"""The arguments of the command `floater`."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from floater import __version__
from floater.errors import nearest
from floater.lab.cli import commands
from floater.lab.cli.settings_help import StudyHelp, TrainHelp
from floater.lab.paths import expand_home

FORMATS = ("text", "markdown", "csv", "json")
KINDS = (
    "vectors",
    "permuted_vectors",
    "similarity",
    "smoothness",
    "attention",
    "flow",
    "probe",
    "reordering",
)
"""Kinds of `floater.lab.study.analyses`, which can be imported only with the extra "lab"."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line; settings may stand before and after options.

    Example:
        >>> parse(["study", "my.yaml", "--report", "seeds=[1]"]).overrides
        ['seeds=[1]']
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    whole, names = parser()
    if not given:
        whole.print_help()
        whole.exit(2)
    if given[0] == "help" and given[1:] not in ([], ["help"]):  # floater help COMMAND [TOPIC]
        given = [given[1], "--help", *given[2:]]
    if given[0].startswith("-"):
        if not any(option.startswith(given[0]) for option in whole._option_string_actions):
            whole.error(f"floater takes no '{given[0]}'{_hint(whole, given[0])}")
    elif given[0] not in names:
        whole.error(f"unknown command '{given[0]}'; {nearest(given[0], names)}")
    found, more = whole.parse_known_args(given)
    wrong = [argument for argument in more if argument.startswith("-") or "overrides" not in found]
    if wrong:
        hint = _hint(names[given[0]], wrong[0])
        if "overrides" in found and "did you mean" not in hint and re.search(r"[.=]", wrong[0]):
            name, _, value = wrong[0].lstrip("-").partition("=")
            hint = f"; settings have no dashes: {name}={value or 'VALUE'}"
        whole.error(f"floater {given[0]} takes no '{wrong[0]}'{hint}")
    if more:
        found.overrides = [*found.overrides, *more]
    try:
        return argparse.Namespace(**expand_home(vars(found)))
    except ValueError as error:
        names[given[0]].error(str(error))


def parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Make the parser of the command line, and return it with the parsers of the commands by name.

    The attribute `command` of parsed arguments is the function to call with them.
    """
    whole = _Parser(
        prog="floater",
        description="Position information for Transformers.",
        epilog="floater help COMMAND describes one command.",
    )
    whole.add_argument("--version", action="version", version=f"floater {__version__}")
    places = whole.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    def command(
        name: str, run: Callable[[Any], int | None], help: str, **kwargs: Any
    ) -> argparse.ArgumentParser:
        first = help.split(":")[0].rstrip(".")
        sub: argparse.ArgumentParser = places.add_parser(name, help=first, description=help, **kwargs)
        sub.set_defaults(command=run)
        return sub

    train = command("train", commands.train, "Train a model, or resume a stopped run.", add_help=False)
    _add_settings(train, "model.preset=tiny", TrainHelp, "TASK", ", or every setting of a task")
    length = train.add_mutually_exclusive_group()
    _add(length, "--epochs", "N", "train to N epochs in total; continues a finished run", type=_count)
    _add(length, "--steps", "N", "train to N steps in total; continues a finished run", type=_count)
    train.add_argument(
        "--accept-changed-data",
        action="store_true",
        help="resume on other data than the run began with; what changed is written to data.json",
    )
    _add_trust(train)
    _add_json(train)

    translate = command("translate", commands.translate, "Translate lines of text with a finished run.")
    _add(translate, "run", "RUN", "run directory, or a saved model")
    _add(translate, "--source", "FILE", "source lines (default: standard input)")
    _add(translate, "--output", "FILE", "translations (default: standard output)")
    _add(translate, "--beam", "N", "beam size (default: the run's)", type=_count)
    _add(
        translate,
        "--length-penalty",
        "X",
        "scores are divided by the length to this power (default: the run's)",
        type=_number,
    )
    _add(
        translate,
        "--batch-tokens",
        "N",
        "largest product of source tokens and beam size in a batch (default: the run's)",
        type=_count,
    )
    _add(translate, "--device", "NAME", "cpu, cuda, cuda:1, mps, ... (default: a GPU if there is one)")
    _add_trust(translate)
    _add_reading(translate)

    evaluate = command(
        "evaluate",
        commands.evaluate,
        "Score a finished run on a test set: BLEU, chrF and tokenised BLEU of a translation run, perplexity "
        "of a language model, accuracy of a tagger or a classifier of documents, likelihood of events, exact "
        "match by length on a generated task, the official metrics of GLUE, SQuAD and RACE.",
    )
    _add(evaluate, "run", "RUN", "run directory, or a saved translation model")
    _add(
        evaluate,
        "--source",
        "FILE",
        "text to translate or to predict, CoNLL-U, events, or documents; not for generated tasks",
    )
    _add(evaluate, "--output", "FILE", "write the translations, tags or labels here")
    _add_trust(evaluate)
    _add_json(evaluate)
    _add_reading(evaluate)
    translation = evaluate.add_argument_group("translation")
    _add(translation, "--reference", "FILE", "reference translation, line by line")
    _add(translation, "--language", "CODE", "language of the reference (default: the run's target)")
    _add(
        translation,
        "--bins",
        "N,N,...",
        "also score by source length in words, as in 80,100,120,140; on a generated task by its "
        "lengths, for a causal language model by the number of preceding tokens",
        type=_edges,
    )
    language_modeling = evaluate.add_argument_group("language modelling and events")
    _add(
        language_modeling,
        "--window",
        "N",
        "tokens, or predicted events, that the model sees at once (default: the run's)",
        type=_whole,
    )
    _add(
        language_modeling,
        "--stride",
        "N",
        "tokens that the window moves by (default: the run's; with --window, half the window, or all but "
        "one of its tokens if it is longer than the training rows)",
        type=_whole,
    )
    _add(
        language_modeling,
        "--memory",
        "N",
        "tokens of segment memory (default: the run's)",
        type=_whole,
    )

    split = evaluate.add_argument_group("events and documents")
    split.add_argument(
        "--part",
        choices=("train", "valid", "test"),
        help="part of the source to score, split as in the run (default: all of it)",
    )

    images = evaluate.add_argument_group("image classification")
    _add(images, "--size", "N", "side of the images in pixels (default: the run's)", type=_count)
    images.add_argument(
        "--coordinates",
        choices=("scaled", "counted"),
        help="at another size: scaled to the training grid, or counted (default: scaled)",
    )
    squad = evaluate.add_argument_group("SQuAD")
    _add(
        squad,
        "--threshold",
        "X",
        "score difference above which no answer is predicted (default: the run's)",
        type=_number,
    )

    predict = command(
        "predict",
        commands.predict,
        "Write the predictions of a finished glue, squad or race run for data without labels.",
    )
    _add(predict, "run", "RUN", "run directory")
    _add(predict, "--source", "FILE", "data in the layout of the run's task", required=True)
    _add(predict, "--output", "FILE", "predictions (default: standard output)")
    _add_trust(predict)

    extend = command("extend", commands.extend, "Extend a Hugging Face checkpoint to longer inputs.")
    _add(extend, "checkpoint", "CHECKPOINT", "directory, or a name on the Hugging Face hub")
    _add(extend, "length", "LENGTH", "new length in tokens, or side of images in pixels", type=_count)
    _add(extend, "--method", "NAME", "method of floater.extend (default: depends on the kind of positions)")
    _add(
        extend, "--option", "NAME=VALUE", "option of the method; may be repeated", action="append", default=[]
    )
    _add(extend, "--to", "FOLDER", "new directory for model and tokenizer", required=True)

    glue = command("glue", commands.glue, "Print Table 3 of the FLOATER paper from finished glue runs.")
    _add(glue, "runs", "RUN", "run directories of several tasks and seeds", nargs="+")
    _add_json(glue)

    models = command("models", commands.models, "List the position encodings, or describe one.")
    _add(models, "name", "NAME", "describe this one: equation, options, limits", nargs="?")
    models.add_argument(
        "--format", choices=FORMATS, default="text", help="format of the list (default: text)"
    )
    _add(models, "--dim", "N", "width for the number of parameters (default: 512)", type=_whole, default=512)
    _add(models, "--heads", "N", "attention heads for it (default: 8)", type=_whole, default=8)
    _add(models, "--layers", "N", "blocks for it (default: 6)", type=_whole, default=6)

    plot = command("plot", commands.plot, "Analyse the positions of a trained model: numbers and a figure.")
    _add(plot, "run", "RUN", "run directory, saved model, or a Hugging Face checkpoint")
    _add(plot, "kind", "KIND", ", ".join(KINDS[:-1]) + f" or {KINDS[-1]}", type=_kind)
    _add(plot, "--where", "PLACE", "place in the model, as in 'block 1 query'")
    _add(plot, "--length", "N", "number of positions to show", type=_count)
    _add(plot, "--trained", "N", "positions trained on (default: the model's training length)", type=_count)
    _add(plot, "--text", "FILE", "lines that the model reads (probe, reordering)")
    _add(
        plot,
        "--output",
        "FILE",
        "figure, .png, .svg or .pdf (default: in the run's directory, plots/KIND.png)",
    )
    _add(plot, "--numbers", "FILE", "also write the numbers to a NumPy archive, .npz")
    _add_trust(plot)
    _add_json(plot)

    study = command(
        "study",
        commands.study,
        "Train a grid of position encodings x blocks x seeds, or resume it, and write its report.",
        add_help=False,
    )
    _add_settings(study, "seeds=[1] or budget.cores=4", StudyHelp, "settings", ", or every setting")
    study.add_argument("--report", action="store_true", help="train nothing: only report finished trials")
    _add_trust(study)
    _add_json(study)

    data = command("data", commands.data, "Download and prepare a data set of the papers, or list them.")
    _add(data, "name", "NAME", "data set (default: list them)", nargs="?")
    _add(data, "--to", "FOLDER", "parent of the new directory NAME (default: data)", default="data")
    _add(data, "--processes", "N", "processes for tokenisation (default: 1)", type=_count, default=1)

    demo = command(
        "demo",
        commands.demo,
        "Train three position encodings on the built-in corpus and compare them by length.",
    )
    _add(
        demo,
        "--run",
        "DIR",
        "directory for runs, tables and report (default: runs/demo)",
        default="runs/demo",
    )
    _add_json(demo)

    configs = command("configs", commands.configs, "List the configurations that come with the library.")
    _add(configs, "part", "TEXT", "show only names that contain this text", nargs="?", default="")
    _add_json(configs)

    init = command("init", commands.init, "Copy one of these configurations to a file of your own.")
    _add(init, "name", "NAME", "name in the list of floater configs, or its last part")
    _add(init, "file", "FILE", "new file (default: NAME.yaml in the working directory)", nargs="?")

    completion = command("completion", commands.completion, "Print the completion script of a shell.")
    completion.add_argument(
        "shell", choices=("bash", "zsh", "tcsh"), help='as in: eval "$(floater completion bash)"'
    )
    completion.set_defaults(parser=whole)

    asked = command("help", lambda _: whole.print_help(), "Describe one command.", add_help=False)
    _add(asked, "topic", "COMMAND", "the command", nargs="?")
    return whole, places.choices


class _Formatter(argparse.HelpFormatter):
    """Help formatter with a wider column for commands, whose indentation argparse does not count."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += 2


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=_Formatter, **kwargs)

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("floater").strip()
        message = re.sub(r"^argument [A-Z]+: ", "", message)
        hint = "" if ";" in message else f"; see floater help {command}".rstrip()
        self.exit(2, f"floater: {message}{hint}\n")


def _hint(parser: argparse.ArgumentParser, option: str) -> str:
    """Return a hint for an unknown option: the nearest one, or the command that lists them."""
    near = difflib.get_close_matches(option.split("=")[0], parser._option_string_actions, n=1, cutoff=0.7)
    command = parser.prog.replace("floater", "floater help", 1)
    return f"; did you mean {near[0]}?" if near else f"; see {command}"


def _add(to: argparse._ActionsContainer, name: str, metavar: str, help: str, **more: Any) -> None:
    to.add_argument(name, metavar=metavar, help=help, **more)


def _add_trust(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trust-code",
        action="store_true",
        help="import modules that a run names: runs their code",
    )


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print the result as JSON")


def _add_reading(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--reading",
        metavar="KEY=VALUE,...",
        help="how to read texts longer than in training: length=N (tokens declared), interpolate=true, "
        "group=W:G (distances above W in groups of G), temperature=true (default: the model's)",
    )


def _add_settings(
    command: argparse.ArgumentParser, example: str, shown: type[argparse.Action], topic: str, more: str
) -> None:
    """Add the configuration file of a command, the settings that differ from it, and help on settings."""
    command.add_argument("config", metavar="CONFIG", help="YAML file; floater init writes one")
    command.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help=f"settings that differ, as in {example}",
    )
    command.add_argument("-h", "--help", action=shown, nargs="?", metavar=topic, help=f"show this{more}")


def _edges(text: str) -> tuple[int, ...]:
    edges = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if list(edges) != sorted(set(edges)) or edges[0] < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of growing numbers, as 80,100,120 is")
    return edges


def _kind(text: str) -> str:
    if text not in KINDS:
        raise argparse.ArgumentTypeError(f"unknown kind of plot '{text}'; {nearest(text, KINDS)}")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number of at least 1")
    return int(text)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number") from None


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"'{text}' is no finite number")
    return number
