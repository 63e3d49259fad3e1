"""Write an extended or plugged checkpoint for programs that do not import floater."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from floater.errors import DataError, first_line
from floater.lab.cli.runs import start
from floater.lab.cli.streams import outliving_terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="directory of a model that was extended, or plugged and baked",
    )
    parser.add_argument("--to", metavar="FOLDER", help="new directory for model and tokenizer", required=True)
    parser.add_argument(
        "--reader",
        metavar="NAME",
        default="transformers",
        help="transformers (default), vllm, sglang or llama.cpp (its converter)",
    )
    parser.add_argument(
        "--code",
        action="store_true",
        help="write the code of the model, which Transformers runs with trust_remote_code",
    )


@outliving_terminal()
def run(arguments: argparse.Namespace) -> None:
    import floater
    from floater.lab.tasks.finetuning.checkpoint import load_pretrained, locate
    from floater.lab.tasks.finetuning.companions import Companions
    from floater.lab.training.files import save_whole

    start()
    path, folder = arguments.checkpoint, Path(arguments.to)
    if folder.exists():
        raise DataError(f"{folder} exists already; choose a new directory")
    located = locate(path)
    model, summaries = load_pretrained(located), list[Any]()

    def save(target: Path) -> None:
        try:
            summaries.append(floater.export(model, target, reader=arguments.reader, code=arguments.code))
        except (RuntimeError, ValueError) as error:  # RuntimeError: not enough memory
            raise DataError(f"{path}: {first_line(error)}") from error

    folder.parent.mkdir(parents=True, exist_ok=True)
    save_whole(folder, SimpleNamespace(save_pretrained=save), Companions(located, None, None))
    print(*summaries)
