"""The commands of `floater`, a module each.

The docstring of a module is the command's help, whose first words are its line in the list of commands. Its
`add_arguments` declares the arguments, and its `run` is called with them. It returns the exit code, or None
for success. Results go to standard output, messages to standard error.

A module imports what is slow (torch, Transformers, YAML) within `run`, so that help answers at once.
"""

from floater.lab.cli.commands import (
    cite,
    completion,
    configs,
    data,
    demo,
    evaluate,
    export,
    extend,
    glue,
    help,
    init,
    models,
    plot,
    predict,
    study,
    train,
    translate,
)

COMMANDS = (
    *(train, translate, evaluate, predict, extend, export, glue, models, plot, study, cite),
    *(data, demo, configs, init, completion, help),
)
"""The modules of the commands, in the order of the help."""
