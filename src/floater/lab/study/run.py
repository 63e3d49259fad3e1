"""A study from its configuration to its report."""

from __future__ import annotations

import logging
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from floater.errors import DataError
from floater.lab.settings import SettingsError, dump, make, read
from floater.lab.study import figures, glue_curves, glue_table
from floater.lab.study.grid import Grid, grid, tuned
from floater.lab.study.launch import choose_launcher, run_trials
from floater.lab.study.local_launcher import Launcher
from floater.lab.study.report import FIGURES, write_report
from floater.lab.study.results import Results, gather
from floater.lab.study.settings import StudySettings
from floater.lab.study.trial import is_trained
from floater.lab.training.files import write_whole
from floater.lab.training.lock import locked
from floater.lab.training.run import SETTINGS as RUN_SETTINGS

SETTINGS, GLUE = "study.yaml", "glue.md"
logger = logging.getLogger(__name__)


def _write_settings(file: Path, settings: StudySettings) -> None:
    """Write the settings of a study, unless the file has them: with comments, if a person wrote it."""
    with suppress(SettingsError):
        if file.is_file() and make(StudySettings, read(file), str(file)) == settings:
            return
    write_whole(file, f"# floater study {file}\n" + dump(settings))


def _run(trials: Grid, launcher: Launcher, settings: StudySettings, *, first: bool) -> None:
    trials.write(settings.budget.threads, settings.budget.processes)
    run_trials(trials, launcher, first=first)


def _warn_of_unscored(results: Results) -> None:
    """Log how many trials are trained but have no scores of the tests as these are now."""
    if count := sum(o.status == "open" and is_trained(o.trial.run) for o in results.outcomes):
        how_many = f"{count} of {len(results.outcomes)} trials"
        logger.warning(
            "%s are trained, but not scored on the tests as these are now; without --report they are",
            how_many,
        )


def study(settings: StudySettings, origin: str = "study", *, train: bool = True) -> Results:
    """Run the unfinished trials of a study, and write its tables and its report.

    A study that was killed and started again ends with the tables of an uninterrupted one: finished trials
    are kept, others resume from their last checkpoint. No trial runs before all are checked.

    Args:
        settings: the study's settings.
        origin: source of the settings, for messages and for the command that the report names.
        train: whether to run trials; otherwise the report has the results so far, even while trials run.

    Returns:
        The results. A study of GLUE also writes the table of its tasks, glue.md, if its runs fit in one, and
        curves over the steps of a pre-training: see `glue_table` and `glue_curves`.

    Raises:
        SettingsError: if a trial is impossible; it names the trial.
        DataError: if the data or the folder are not valid, or another process runs the study.
    """
    folder = Path(settings.folder)
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; a study needs a directory")
    if (folder / RUN_SETTINGS).is_file():
        raise DataError(f"{folder} holds a run (its {RUN_SETTINGS}); a study needs a directory of its own")
    if settings.models and not train and not (folder / SETTINGS).is_file():
        raise DataError(f"{folder} holds no study (no {SETTINGS}) to report; run it without --report first")
    with locked(folder) if train else nullcontext():
        folder.mkdir(parents=True, exist_ok=True)
        every = grid(settings, origin, train=train)
        trials = tuned(every, settings.tuning.by, retry=train)
        if train:
            launcher = None
            if trials.trials:
                launcher = choose_launcher(settings.launcher, settings.budget, folder, settings.slurm)
            _write_settings(folder / SETTINGS, settings)
            if launcher is not None:
                _run(trials, launcher, settings, first=True)
                before = {trial.name for trial in trials.trials}
                trials = tuned(every, settings.tuning.by)  # the labels are chosen now
                new = [trial for trial in trials.trials if trial.name not in before]
                if new:
                    _run(replace(trials, trials=new), launcher, settings, first=False)
        results = gather(settings, trials)
        if not train:
            _warn_of_unscored(results)
        write_report(results, origin)
        done = [str(trial.run) for trial in trials.trials if is_trained(trial.run)]
        if settings.task == "glue" and done:
            try:
                write_whole(folder / GLUE, glue_table.table(done) + "\n")
                (folder / FIGURES).mkdir(exist_ok=True)
                with figures.themed():
                    for name, figure in glue_curves.draw(glue_table.read_runs(done)):
                        figures.save(figure, folder / FIGURES / name)
            except DataError as error:  # variants that differ in more than the table's rows and cells
                (folder / GLUE).unlink(missing_ok=True)
                logger.warning("no %s: %s", folder / GLUE, error)
    return results
