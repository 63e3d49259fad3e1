"""Train a model, or resume a stopped run."""

from __future__ import annotations

import argparse
import gc
from typing import Any

from floater.lab.cli.arguments import add_json, add_trust, count
from floater.lab.cli.config_file import add_config, is_trusted, read_config
from floater.lab.cli.output import explain, print_json, print_values
from floater.lab.cli.runs import start
from floater.lab.cli.streams import outliving_terminal

SUMMARY = """
most used settings:
  run                       directory of the run; one that is there is resumed
  task                      translation, language_modeling, ...
  data.*                    files and how they are read; see the task's settings
  model.preset              sizes: tiny, small, transformer-base, ...
  model.position            position encoding; floater models lists them
  model.position_options    its options, as in model.position_options.delta=0.1
  training.learning_rate    peak rate; also .warmup_steps, .lr_scheduler_type
  training.num_train_epochs or training.max_steps
  training.seed             seed of weights, dropout and the order of batches

examples:
  floater init translation/multi30k my.yaml     a configuration to begin with
  floater train my.yaml model.position=rotary run=runs/rotary
  floater train --help translation              every setting of the task
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(
        parser, example="model.preset=tiny", summary=SUMMARY, topic="TASK", topics=_tasks, settings=_settings
    )
    length = parser.add_mutually_exclusive_group()
    for unit in ("epochs", "steps"):
        help = f"train to N {unit} in total; continues a finished run"
        length.add_argument(f"--{unit}", metavar="N", type=count, help=help)
    parser.add_argument(
        "--accept-changed-data",
        action="store_true",
        help="resume on other data than the run began with; what changed is written to data.json",
    )
    add_trust(parser)
    add_json(parser)


def _tasks() -> list[str]:
    from floater.lab.tasks import registry

    return registry.names()


def _settings(task: str) -> type[Any]:
    from floater.lab.tasks import registry

    return registry.task(task).Settings


@outliving_terminal()
def run(arguments: argparse.Namespace) -> None:
    from torch import distributed

    from floater.lab.tasks.registry import from_config
    from floater.lab.training.files import read_record
    from floater.lab.training.run import RESULT

    start()
    tree = read_config(arguments.config, "train", "folder", "study")
    trusted = is_trusted(arguments)
    task, settings = from_config(tree, arguments.config, arguments.overrides, trusted=trusted)
    accepted, shorter = {"accept_changed_data": arguments.accept_changed_data}, None
    if arguments.epochs or arguments.steps:
        from floater.lab.training.lengthen import lengthen

        settings, shorter = lengthen(settings, epochs=arguments.epochs, steps=arguments.steps, **accepted)
    folder = task.train(settings, shorter=shorter, **accepted)
    if distributed.is_available() and distributed.is_initialized():
        first = distributed.get_rank() == 0
        # A model that outlives its process group destroys it while it holds the GIL, and waits forever if a
        # thread of the group waits for the GIL. The threads of a group left open can abort the exit.
        gc.collect()
        distributed.destroy_process_group()
        if not first:
            return
    result = {"run": str(folder), **read_record(folder / RESULT)}
    if arguments.json:
        print_json(result)
        return
    print_values(result)
    explain(result)
