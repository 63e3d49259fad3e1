"""The command `floater`."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from floater.encodings import Frame, PositionError, catalogue
from floater.flow import FlowError, SpanTooLong
from floater.listing import FORMATS, entry, table

EXTRA = "this command needs more packages: pip install 'floater[train]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; by default those of the process.

    Returns:
        The exit code: 0, 1 when the work failed, 2 for what a person can mend, 130 when interrupted.

    Example:
        >>> main(["translate", "no-such-run"])
        2
    """
    with warnings.catch_warnings():
        warnings.showwarning = _one_line
        code = 0
        try:
            parsed = _parser().parse_args(arguments)
            code = parsed.command(parsed) or 0
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has gone: nothing is left to say, at the exit of Python neither
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except ImportError as error:
            return _fail(f"{error}; {EXTRA}")
        except OSError as error:
            named = error.filename is not None
            return _fail(f"{error.filename}: {error.strerror}" if named else str(error))
        except KeyboardInterrupt:
            _fail("stopped; a training that is started again goes on from its last checkpoint")
            return 130
        except FlowError as error:
            code = _fail(str(error))
            return code if isinstance(error, SpanTooLong) else 1
        except ValueError as error:
            if not isinstance(error, _mendable()):
                raise
            return _fail(str(error))
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="floater", description="Position information for Transformers.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[Any], int | None], help: str, **kwargs: Any
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help, **kwargs)
        sub.set_defaults(command=run)
        return sub

    train = command("train", _train, "Train a model, or go on with a stopped run.", add_help=False)
    train.add_argument("config", metavar="CONFIG", help="YAML file")
    train.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="settings that differ, as in model.preset=tiny",
    )
    train.add_argument("-h", "--help", action=_SettingsHelp, nargs=0, help="show every setting")

    translate = command("translate", _translate, "Translate lines of text with a finished run.")
    translate.add_argument("run", metavar="RUN", help="run directory, or a saved model")
    translate.add_argument("--source", metavar="FILE", help="source lines (default: standard input)")
    translate.add_argument("--output", metavar="FILE", help="translations (default: standard output)")

    evaluate = command(
        "evaluate",
        _evaluate,
        "Score a finished run on a test set: BLEU, chrF and tokenised BLEU of a translation run, perplexity "
        "of a language model, accuracy of a tagger or of labels of documents, likelihood of events, exact "
        "match by length on a generated task, the official metrics of GLUE, SQuAD and RACE.",
    )
    evaluate.add_argument("run", metavar="RUN", help="run directory, or a saved translation model")
    evaluate.add_argument(
        "--source",
        metavar="FILE",
        help="text to translate or to predict, CoNLL-U, events, or documents; not for generated tasks",
    )
    evaluate.add_argument("--output", metavar="FILE", help="write the translations, tags or labels here")
    translation = evaluate.add_argument_group("translation")
    translation.add_argument("--reference", metavar="FILE", help="its translation, line by line")
    translation.add_argument(
        "--language", metavar="CODE", help="of the reference (default: the run's target)"
    )
    translation.add_argument(
        "--bins",
        metavar="N,N,...",
        type=_edges,
        help="score by source length in words, too, as in 80,100,120,140; on a generated task by its lengths",
    )
    language_modeling = evaluate.add_argument_group("language modelling and events")
    language_modeling.add_argument(
        "--window",
        metavar="N",
        type=int,
        help="tokens, or predicted events, that the model sees at once (default: the run's)",
    )
    language_modeling.add_argument(
        "--stride", metavar="N", type=int, help="tokens that the window moves by (default: half of it)"
    )
    language_modeling.add_argument(
        "--memory", metavar="N", type=int, help="tokens that the blocks remember (default: the run's)"
    )

    split = evaluate.add_argument_group("events and documents")
    split.add_argument(
        "--part",
        choices=("train", "valid", "test"),
        help="of the source, as the run splits its own data (default: all of it)",
    )

    squad = evaluate.add_argument_group("SQuAD")
    squad.add_argument("--threshold", metavar="X", type=float, help="for no answer (default: the run's)")

    predict = command(
        "predict", _predict, "Write what a finished glue, squad or race run says of data without labels."
    )
    predict.add_argument("run", metavar="RUN", help="run directory")
    predict.add_argument("--source", metavar="FILE", required=True, help="in the layout of the run's task")
    predict.add_argument("--output", metavar="FILE", help="predictions (default: standard output)")

    glue = command("glue", _glue, "Print Table 3 of the FLOATER paper from finished glue runs.")
    glue.add_argument("runs", metavar="RUN", nargs="+", help="run directories, of several tasks and seeds")

    models = command("models", _models, "List the position models, or tell of one.")
    models.add_argument("name", metavar="NAME", nargs="?", help="tell of this one: equation, options, limits")
    models.add_argument("--format", choices=FORMATS, default="text", help="of the list (default: text)")
    models.add_argument("--dim", type=int, default=512, help="width at which to count parameters")
    models.add_argument("--heads", type=int, default=8, help="attention heads there")
    models.add_argument("--layers", type=int, default=6, help="blocks there")

    plot = command("plot", _plot, "Show what a trained model knows of positions: numbers and a picture.")
    plot.add_argument("run", metavar="RUN", help="run directory, saved model, or a Hugging Face checkpoint")
    plot.add_argument(
        "kind",
        metavar="KIND",
        help="vectors, similarity, smoothness, attention, flow, probe or reordering",
    )
    plot.add_argument("--where", metavar="PLACE", help="place in the model, as in 'block 1 query'")
    plot.add_argument("--length", metavar="N", type=_count, help="positions that are shown")
    plot.add_argument(
        "--trained",
        metavar="N",
        type=_count,
        help="positions trained on (default: the model's training length)",
    )
    plot.add_argument("--text", metavar="FILE", help="lines that the model reads (probe, reordering)")
    plot.add_argument(
        "--output",
        metavar="FILE",
        help="picture, .png, .svg or .pdf (default: in the run's directory, plots/KIND.png)",
    )
    plot.add_argument("--numbers", metavar="FILE", help="write the numbers, too: a NumPy archive, .npz")

    study = command(
        "study",
        _study,
        "Train a grid of position models x blocks x seeds, or go on with it, and write its report.",
        add_help=False,
    )
    study.add_argument("config", metavar="CONFIG", help="YAML file")
    study.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="settings that differ, as in seeds=[1] or budget.cores=4",
    )
    study.add_argument("--report", action="store_true", help="train nothing: only report what is there")
    study.add_argument("-h", "--help", action=_StudyHelp, nargs=0, help="show every setting")

    demo = command(
        "demo", _demo, "Train three position models on the built-in corpus and compare them by length."
    )
    demo.add_argument("--run", metavar="DIR", default="runs/demo", help="where runs, tables and report go")
    return parser


class _SettingsHelp(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        from floater.settings import describe
        from floater.tasks.registry import TASKS, find

        print(parser.format_help())
        for name in TASKS:
            print(f"settings of task: {name}\n\n{describe(find(name, name).Settings)}\n")
        parser.exit()


class _StudyHelp(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        from floater.settings import describe
        from floater.study.settings import StudySettings

        print(parser.format_help())
        print(f"settings of a study\n\n{describe(StudySettings)}")
        parser.exit()


def _train(arguments: argparse.Namespace) -> None:
    from floater.settings import load
    from floater.tasks.registry import of_config

    _quiet_transformers()
    task = of_config(arguments.config, arguments.overrides)
    task.train(load(task.Settings, arguments.config, arguments.overrides))


def _translate(arguments: argparse.Namespace) -> None:
    from floater.tasks.registry import name_of_run
    from floater.tasks.text import DataError, decode_lines, read_lines
    from floater.tasks.translation import load_run, translate
    from floater.tasks.translation.run import run_decoding

    _quiet_transformers()
    if (task := name_of_run(arguments.run)) != "translation":
        raise DataError(f"{arguments.run} is a run of task {task!r}; only one of 'translation' translates")
    _writable(arguments.output)
    model, tokenizer = load_run(arguments.run)
    if arguments.source:
        lines = read_lines(arguments.source)
    else:
        lines = decode_lines(sys.stdin.buffer, "standard input")
    _write(translate(model, tokenizer, lines, run_decoding(arguments.run)), arguments.output)


def _evaluate(arguments: argparse.Namespace) -> None:
    from floater.tasks.registry import find, name_of_run
    from floater.tasks.text import DataError

    _quiet_transformers()
    _writable(arguments.output)
    name = name_of_run(arguments.run)
    task = find(name, arguments.run)
    known = (
        *("source", "reference", "output", "language", "bins"),
        *("window", "stride", "memory", "part", "threshold"),
    )
    given = {option: value for option in known if (value := getattr(arguments, option)) is not None}
    options = {"source": True} | task.OPTIONS
    for option in known:
        if option in given and option not in options:
            raise DataError(f"{arguments.run} is a run of task '{name}', which takes no --{option}")
        if option not in given and options.get(option):
            raise DataError(f"{arguments.run} is a run of task '{name}', which needs --{option}")
    output = given.pop("output", None)
    said, lines = task.evaluate(arguments.run, given.pop("source", None), **given)
    if output and lines is not None:
        _write(lines, output)
    print(said)


def _predict(arguments: argparse.Namespace) -> None:
    from floater.tasks.registry import find, name_of_run
    from floater.tasks.text import DataError

    _quiet_transformers()
    _writable(arguments.output)
    name = name_of_run(arguments.run)
    predict = getattr(find(name, arguments.run), "predict", None)
    if predict is None:
        other = "translate" if name == "translation" else "evaluate"
        raise DataError(f"{arguments.run} is a run of task '{name}', for which there is `floater {other}`")
    _write(predict(arguments.run, arguments.source), arguments.output)


def _glue(arguments: argparse.Namespace) -> None:
    from floater.tasks.glue import table

    print(table(arguments.runs))


def _models(arguments: argparse.Namespace) -> None:
    frame = Frame(dim=arguments.dim, heads=arguments.heads, layers=arguments.layers, max_length=512)
    names = [arguments.name] if arguments.name else list(catalogue())
    if arguments.name and arguments.format == "text":
        shown = entry(arguments.name, frame)
    else:
        shown = table(names, frame, arguments.format)
    if arguments.format == "text" and not arguments.name:
        print(
            f"Parameters at width {frame.dim}, {frame.heads} heads, {frame.layers} blocks and training length"
        )
        print(f"{frame.max_length}; `floater models NAME` tells of one model.\n")
    print(shown)


def _plot(arguments: argparse.Namespace) -> None:
    import numpy as np

    from floater.study import analyses
    from floater.study.analyses.kinds import default_path
    from floater.tasks.text import DataError, read_lines

    _quiet_transformers()
    output = Path(arguments.output) if arguments.output else default_path(arguments.run, arguments.kind)
    if output.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise DataError(f"{output}: pictures are .png, .svg or .pdf")
    _writable(arguments.output)
    _writable(arguments.numbers)
    drawn = analyses.draw(
        arguments.run,
        arguments.kind,
        analyses.Options(
            where=arguments.where,
            length=arguments.length,
            trained=arguments.trained,
            text=read_lines(arguments.text) if arguments.text else None,
        ),
    )
    output.parent.mkdir(exist_ok=True)
    analyses.save(drawn.figure, output, title=drawn.title, description=drawn.said)
    print(drawn.said)
    print(f"written: {output}")
    if arguments.numbers:
        with open(arguments.numbers, "wb") as file:
            np.savez(file, allow_pickle=False, **{name: part.numpy() for name, part in drawn.numbers.items()})
        print(f"written: {arguments.numbers}")


def _study(arguments: argparse.Namespace) -> int:
    from floater.study.run import from_config

    _quiet_transformers()
    results = from_config(arguments.config, arguments.overrides, train=not arguments.report)
    return int(any(outcome.status == "failed" for outcome in results.outcomes))


def _demo(arguments: argparse.Namespace) -> None:
    from floater.study.demo import demo

    _quiet_transformers()
    folder = Path(arguments.run)
    demo(folder)
    print((folder / "table.md").read_text(encoding="utf-8"))


def _edges(text: str) -> tuple[int, ...]:
    edges = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if list(edges) != sorted(set(edges)) or edges[0] < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of growing numbers, as 80,100,120 is")
    return edges


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of at least 1")
    return int(text)


def _writable(path: str | None) -> None:
    """Refuse an output file that could not be written, before the work is done."""
    if path and not Path(path).parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(Path(path).parent))
    if path and Path(path).is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


def _write(lines: Sequence[str], path: str | None) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if path:
        Path(path).write_text(text, encoding="utf-8")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())


def _mendable() -> tuple[type[ValueError], ...]:
    """What the data, the settings and the position models refuse with a message for a person."""
    from floater.settings import SettingsError
    from floater.tasks.text import DataError

    return (DataError, PositionError, SettingsError)


def _quiet_transformers() -> None:
    """No bars for reading and writing a model's files, which take a moment."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _fail(message: str) -> int:
    print(f"floater: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _one_line(message: Warning | str, *args: Any, **kwargs: Any) -> None:
    print(f"floater: warning: {message}", file=sys.stderr)
