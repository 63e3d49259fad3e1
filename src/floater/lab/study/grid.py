"""The grid of a study: position models x blocks x seeds, each trial the settings of an ordinary run."""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from floater.encodings import PositionError, options
from floater.encodings.composed.parts import resolved
from floater.errors import DataError, nearest
from floater.lab.settings import SettingsError, dump, make
from floater.lab.study import short_to_long
from floater.lab.study.analyses import KINDS, load_subject
from floater.lab.study.settings import StudySettings, repeated
from floater.lab.study.trial import is_measured
from floater.lab.study.tuning import Tried, is_open, tried, with_seeds
from floater.lab.study.variants import PLAN, TRIALS, Trial, Variant
from floater.lab.tasks import Task, registry
from floater.lab.tasks.measurement import METRICS
from floater.lab.training.files import write_json, write_whole
from floater.lab.training.named_files import file_of
from floater.lab.training.run import BEST, MODEL, SETTINGS, find_run
from floater.lab.training.run_data import RunData

logger = logging.getLogger(__name__)
_HUB = "hf:"
_WHOLE = {"position_options", "times", "reading"}
_FILES = {"source", "reference"}
_DATA = {
    "train",
    "valid",
    "folder",
    "vocabulary",
    *(f"{part}_{side}" for part in ("train", "valid") for side in ("source", "target")),
}


@dataclass(frozen=True)
class Grid:
    """The trials of a study and the test sets that all of them are scored on.

    Args:
        folder: the study's folder.
        variants: the variants, in the order of the configuration.
        trials: the trials in the order of running, seed by seed, so that a study that is stopped early has
            compared all variants.
        tests: test sets by name, each with its arguments for the task's `measure`.
        keep_checkpoints: whether a finished trial keeps its checkpoints.
        keep_models: whether a finished trial keeps the weights of its model.
        task: task of the trials.
        tried: the labels of the tuned axis that were tried, by the variant's name without them.
        later: the trials that follow once labels are chosen, with the first label in place of the chosen one.
    """

    folder: Path
    variants: list[Variant]
    trials: list[Trial]
    tests: dict[str, dict[str, Any]]
    keep_checkpoints: bool = True
    keep_models: bool = True
    task: Task | None = None
    tried: Mapping[str, Mapping[str, Tried]] = field(default_factory=dict)
    later: Sequence[Trial] = ()

    def write(self, threads: int, processes: int = 1) -> None:
        """Write the configuration of every trial, and the arguments of its process."""
        (self.folder / TRIALS).mkdir(parents=True, exist_ok=True)
        for trial in self.trials:
            write_whole(trial.config, f"# floater train {trial.config}\n" + dump(trial.settings))
        kept = {"keep_checkpoints": self.keep_checkpoints, "keep_models": self.keep_models}
        write_json(
            self.folder / PLAN, {"tests": self.tests, "threads": threads, "processes": processes, **kept}
        )


def grid(settings: StudySettings, origin: str, *, train: bool = True) -> Grid:
    """Return the trials of a study after checking each; write only the data of `short_to_long`.

    Those of a tuned axis have all labels and all seeds; see `tuned`. The test sets of a trial that has begun
    are not checked, as its vocabulary may show that it cannot be scored on one: then the trial fails alone.

    Args:
        settings: the study's settings.
        origin: source of the settings, for error messages.
        train: whether trials will run; otherwise trials with a model are used, without reading their data,
            and whether the others could run is not checked.

    Raises:
        SettingsError: if a trial is impossible, or the task cannot score a test set; it names the trial.
        DataError: if the data cannot be split, a test set cannot be read, or a trial's directory holds
            something else.
    """
    folder, common = Path(settings.folder), settings.settings
    registry.import_modules(settings.imports, origin, trusted=True)
    task = registry.task(settings.task, origin)
    for kind in settings.figures:
        if kind not in KINDS:
            raise SettingsError(f"{origin}: figures has {kind!r}; there are: {', '.join(KINDS)}")
    if settings.metric is not None:
        judged = [name for name, metric in METRICS.items() if metric.greater is not None]
        if settings.metric not in (metrics := task.metrics or judged):
            raise SettingsError(
                f"{origin}: metric is {settings.metric!r}; {nearest(settings.metric, metrics)}"
            )
        if not (settings.tests or settings.short_to_long.enabled):
            raise SettingsError(f"{origin}: metric needs tests; a validation has the metric of its task")
    for name, source in settings.checkpoints.items():
        try:
            load_subject(source)
        except DataError as error:
            raise SettingsError(f"{origin}: checkpoint {name}: {error}") from None
    variants = list(_variants(settings, task, origin))
    names = list(dict.fromkeys(variant.key for variant in variants))
    models = [variant.name for variant in _models(settings, _has_positions(task), origin)]
    if settings.models and settings.baseline is not None and settings.baseline not in {*names, *models}:
        there = ", ".join(dict.fromkeys([*models, *names]))
        raise SettingsError(f"{origin}: baseline {settings.baseline!r} is not a variant; there are: {there}")
    for name in (name for pair in settings.comparisons for name in pair):
        if name not in names:
            raise SettingsError(
                f"{origin}: comparisons has {name!r}, which is not a variant; there are: {', '.join(names)}"
            )
    if both := sorted(settings.checkpoints.keys() & {variant.name for variant in variants}):
        raise SettingsError(f"{origin}: checkpoint {both[0]} has the name of a variant; choose another")
    tests = _tests(settings, task, origin)
    if settings.short_to_long.enabled:
        data = _mapping(common.get("data"), f"{origin}: settings.data")
        languages = data.get("source", "en"), data.get("target", "de")
        split, tests[short_to_long.TEST] = short_to_long.write(
            settings.short_to_long,
            folder / "data",
            *languages,
            used=(folder / TRIALS).is_dir(),
            train=train,
        )
        common = merged(common, {"data": split})
    trials = _trials(task, settings, common, variants, origin)
    if settings.tuning.axis is not None:
        _check_choice(task, trials, settings.tuning.by, origin)
    finished = set() if train else {trial.name for trial in trials if (trial.run / MODEL).is_dir()}
    _check(task, trials, tests, origin, train)
    whole = _grid(settings, variants, trials, tests, task)
    read = whole if train else tuned(whole, settings.tuning.by)
    _check_data(task, [trial for trial in read.trials if trial.name not in finished], origin, train)
    return whole


def tuned(whole: Grid, by: str, *, retry: bool = False) -> Grid:
    """Return the trials that are run now: those of all labels of the tuned axis, or of the best ones.

    Args:
        whole: a grid with all labels and all seeds.
        by: "score" or "loss", what decides.
        retry: whether labels whose trials failed are tried again.
    """
    first = [each for each in whole.trials if each.variant.tuned and each.seed == each.variant.seeds[0]]
    if not first or whole.task is None:
        return whole
    labels = tried(first, by, whole.task, retry)
    variants = {variant.name: variant for variant in with_seeds(whole.variants, labels)}
    trials = [
        replace(trial, variant=variant)
        for trial in whole.trials
        if (variant := variants.get(trial.variant.name)) and trial.seed in variant.seeds
    ]
    seeds = {variant.name: variant.seeds[1:] for variant in with_seeds(whole.variants, None)}
    waiting = {key for key, each in labels.items() if is_open(each)}
    later = [
        each for each in whole.trials if each.variant.key in waiting and each.seed in seeds[each.variant.name]
    ]
    return replace(whole, variants=[*variants.values()], trials=trials, tried=labels, later=later)


def planned(settings: StudySettings, origin: str) -> Grid:
    """Return the grid of a study without its data, whose trials are valid but not checked against files.

    Args:
        settings: the study's settings.
        origin: source of the settings, for error messages.

    Raises:
        SettingsError: if a trial's settings are not valid; it names the trial.
    """
    task, common = registry.task(settings.task, origin), settings.settings
    if settings.short_to_long.enabled:
        files = {f"{part}_{side}": part for part in ("train", "valid") for side in ("source", "target")}
        common = merged(common, {"data": files})
    variants = [*with_seeds(_variants(settings, task, origin), None)]
    trials = _trials(task, settings, common, variants, origin)
    return _grid(settings, variants, trials, settings.tests, task)


def _grid(
    settings: StudySettings, variants: list[Variant], trials: list[Trial], tests: Any, task: Task
) -> Grid:
    kept = settings.keep_checkpoints, settings.keep_models
    return Grid(Path(settings.folder), variants, trials, tests, *kept, task)


def _trials(
    task: Task, settings: StudySettings, common: Mapping[str, Any], variants: Sequence[Variant], origin: str
) -> list[Trial]:
    """Return the trials of variants, seed by seed."""
    folder, before = Path(settings.folder), dict[str, Any]()
    trials = []
    for turn in range(max((len(variant.seeds) for variant in variants), default=0)):
        for variant in variants:
            for seed in variant.seeds[turn : turn + 1]:
                start = before.get(f"{variant.start}-{seed}")
                trial_settings = _trial(task, settings, common, variant, seed, start, origin)
                trial = Trial(variant, seed, trial_settings, folder)
                before[trial.name] = trial_settings
                trials.append(trial)
    return trials


def _variants(settings: StudySettings, task: Task, origin: str) -> Iterator[Variant]:
    """Yield the variants of the table, on all labels of the axes."""
    for variant in _models(settings, _has_positions(task), origin):
        for labels in itertools.product(*settings.compared_axes.values()):
            name, start = (part and "-".join((part, *labels)) for part in (variant.name, variant.start))
            whole = replace(variant, name=str(name), start=start, labels=labels)
            if settings.tuning.axis is None:
                yield whole
            else:
                for label in settings.axes[settings.tuning.axis]:
                    yield replace(whole, name=f"{name}-{label}", tuned=label)


def _models(settings: StudySettings, positions: bool, origin: str) -> Iterator[Variant]:
    """Yield a variant for each model and each value of the study's `blocks`.

    A model that lacks the option `blocks`, or sets it itself, has one variant.
    """
    for model, changes in settings.models.items():
        entry = _mapping(changes, f"{origin}: model {model}")
        if not positions and (other := sorted(entry.keys() - {"settings", "seeds"})):
            raise SettingsError(
                f"{origin}: model {model}: {other[0]} is not to be set: the task {settings.task!r} trains a "
                "checkpoint, whose positions are its own; give settings, as {plug: {options: {}}}"
            )
        named = entry.get("position", model)
        start, named = entry.get("start"), named if isinstance(named, list | Mapping) else str(named)
        position_options = _mapping(
            entry.get("position_options"), f"{origin}: model {model}: position_options"
        )
        try:
            position, position_options = resolved(named, position_options)
        except ValueError as error:
            raise SettingsError(f"{origin}: model {model}: {error}") from None
        _mapping(entry.get("settings"), f"{origin}: model {model}: settings")
        seeds = entry.get("seeds", settings.seeds)
        if not isinstance(seeds, list) or not seeds or repeated(seeds) is not None:
            raise SettingsError(
                f"{origin}: model {model}: seeds is {seeds!r}; it must be a list of numbers, each once"
            )
        if not positions:
            yield Variant(model, model, "", {}, seeds)
            continue
        try:
            supported = options(position)
        except PositionError as error:
            raise SettingsError(f"{origin}: trial {model}-{seeds[0]}: {error}") from None
        if settings.blocks and "blocks" in supported and "blocks" not in position_options:
            for blocks in settings.blocks:
                yield Variant(
                    f"{model}-{blocks}", model, position, {**position_options, "blocks": blocks}, seeds, start
                )
        else:
            yield Variant(model, model, position, position_options, seeds, start)


def _trial(
    task: Task,
    settings: StudySettings,
    common: Mapping[str, Any],
    variant: Variant,
    seed: int,
    start: Any,
    origin: str,
) -> Any:
    """Return the settings of a trial; `start` are those of the trial that it starts from, or None."""
    entry = dict(settings.models[variant.model] or {})
    model_settings = entry.pop("settings", None) or {}
    for key in ("start", "seeds", "position", "position_options"):
        entry.pop(key, None)
    where = f"{origin}: trial {variant.name}-{seed}"
    runs = Path(settings.folder) / TRIALS
    trial: dict[str, Any] = {
        "run": str(runs / f"{variant.name}-{seed}"),
        "task": settings.task,
        "imports": settings.imports,
        "training": {"seed": seed},
    }
    if variant.position:
        trial["model"] = {"position": variant.position, "position_options": dict(variant.options)}
    if variant.start is not None:
        if settings.task != "translation":
            raise SettingsError(f"{where}: start needs task 'translation', and the task is '{settings.task}'")
        best = BEST if start is not None and start.training.keep_best else ""
        trial["training"]["warm_start"] = str(runs / f"{variant.start}-{seed}" / best)
    labels = dict(zip(settings.compared_axes, variant.labels, strict=True))
    changes = [axis[labels.get(name, str(variant.tuned))] for name, axis in settings.axes.items()]
    try:
        whole = functools.reduce(
            merged, [common, model_settings, {"model": entry} if entry else {}, *changes, trial]
        )
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None
    for tree in (common, model_settings, *changes):
        derived = [key for key in ("run", "task", "imports") if key in tree]
        derived += ["training.seed"] if "seed" in (tree.get("training") or {}) else []
        chosen = {"position", "position_options"} & (tree.get("model") or {}).keys()
        derived += [f"model.{key}" for key in sorted(chosen)]
        if derived:
            raise SettingsError(f"{where}: settings.{derived[0]} is not to be set; it follows from the study")
    return make(task.Settings, whole, where)


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value or {}, Mapping):
        raise SettingsError(f"{where}: must be a mapping, got {value!r}")
    return dict(value or {})


def _has_positions(task: Task) -> bool:
    """Return whether the runs of a task have a position model to choose."""
    return "position" in {each.name for each in fields(get_type_hints(task.Settings)["model"])}


def _tests(settings: StudySettings, task: Task, origin: str) -> dict[str, dict[str, Any]]:
    """Return the test sets, with bins for a task that generates its own; refuse those no trial can use."""
    measure, tests = task.measure, dict(settings.tests)
    if (settings.tests or settings.bins) and measure is None:
        raise SettingsError(
            f"{origin}: the task {settings.task!r} has no scores example by example; leave out tests and "
            "bins, and the variants are compared on what validates them"
        )
    for name, arguments in tests.items():
        options = _options(measure)  # type: ignore[arg-type]
        if "bins" in (each.name for each in fields(options)) and settings.edges:
            tests[name] = arguments = {"bins": settings.edges} | arguments
        make(options, arguments, f"{origin}: test {name}")
        for key in filter(_FILES.__contains__, arguments):
            _check_files(arguments[key], f"{origin}: test {name}: {key}")
    return tests


def _options(measure: Callable[..., Any]) -> type[Any]:
    """Make a settings class of the arguments of a task's `measure` besides the run."""
    _, *parameters = inspect.signature(measure).parameters.values()
    kinds = get_type_hints(measure)
    defaults = {each.name: (each.default,) for each in parameters if each.default is not each.empty}
    return make_dataclass("Test", [(e.name, kinds[e.name], *defaults.get(e.name, ())) for e in parameters])


def _check_files(paths: Any, where: str) -> None:
    for path in paths if isinstance(paths, list) else [paths]:
        if isinstance(path, str) and not path.startswith(_HUB) and not file_of(path).exists():
            raise SettingsError(f"{where}: there is no file {path}")


def _check_choice(task: Task, trials: list[Trial], by: str, origin: str) -> None:
    """Refuse a choice of labels by a validation that does not take place, or by a loss that it lacks."""
    if by == "loss" and task.validation_loss is None:
        raise SettingsError(
            f"{origin}: tuning.by is 'loss', but a validation of task {task.name!r} has none; leave it out"
        )
    for trial in trials:
        if not task.validates(trial.settings):
            raise SettingsError(
                f"{origin}: trial {trial.name}: tuning chooses by validation, but training.eval_strategy is "
                "'no'"
            )


def _check(
    task: Task, trials: list[Trial], tests: Mapping[str, Mapping[str, Any]], origin: str, train: bool
) -> None:
    """Refuse invalid settings before a trial runs; if none will, only the names are checked."""
    before = set[str]()
    names, order = (
        {trial.name for trial in trials},
        list(dict.fromkeys(trial.variant.name for trial in trials)),
    )
    variants: dict[str, Variant] = {}
    for trial in trials:
        where = f"{origin}: trial {trial.name}"
        first = train and trial.variant.name not in variants
        if (
            trial.name in before
            or variants.setdefault(trial.variant.name, trial.variant) is not trial.variant
        ):
            raise SettingsError(f"{where}: there are two trials of this name; rename a model")
        above = order[: order.index(trial.variant.name)]
        if trial.after is not None and not (trial.variant.start in above and trial.after in names):
            raise SettingsError(
                f"{where}: start {trial.variant.start!r} is not a variant above this one with seed "
                f"{trial.seed}"
            )
        try:
            find_run(trial.settings)
            if first:
                task.check(trial.settings)
        except (DataError, SettingsError, PositionError) as error:
            raise SettingsError(f"{where}: {error}") from None
        has_begun = (trial.run / SETTINGS).is_file()
        for test, arguments in tests.items() if first else ():
            if not is_measured(trial.run, test, arguments):
                try:
                    task.check_test(trial.settings, **arguments)
                except (DataError, PositionError) as error:
                    if isinstance(error, DataError) or not has_begun:  # else it alone fails
                        raise SettingsError(f"{where}: test {test}: {error}") from None
        before.add(trial.name)


def _check_data(task: Task, trials: list[Trial], origin: str, train: bool) -> None:
    """Refuse trials whose files or checkpoints are missing, or have changed since they began."""
    complete, older, code = set[str](), list[str](), dict[str, None]()
    for trial in trials:
        where = f"{origin}: trial {trial.name}"
        for key in sorted(vars(trial.settings.data).keys() & _DATA):
            _check_files(getattr(trial.settings.data, key), f"{where}: data.{key}")
        needs = repr((trial.settings.data, trial.settings.model, getattr(trial.settings, "plug", None)))
        if train and trial.after is None and needs not in complete and not (trial.run / MODEL).is_dir():
            complete.add(needs)
            try:
                task.check_needs(trial.settings)
            except (DataError, PositionError) as error:
                raise SettingsError(f"{where}: {error}") from None
        if trial.run.is_dir():
            data = RunData(trial.run, trial.settings)
            if data.changes:
                raise SettingsError(
                    f"{where}: since its training began, {data.changes[0]}; delete {trial.run}, or choose "
                    "another folder"
                )
            older += [trial.name] * bool(data.code_changes)
            code |= dict.fromkeys(data.code_changes)
    if older:
        logger.warning(
            "%d trials, such as %s, began with other code (%s); delete those that the change concerns",
            *(len(older), older[0], "; ".join(code)),
        )


def merged(base: Mapping[str, Any], changes: Mapping[str, Any], name: str = "settings") -> dict[str, Any]:
    """Return nested mappings, changed; rules such as `position_options` and `times` are replaced as a whole.

    Args:
        base: the mappings.
        changes: what replaces values in them, or is added to them.
        name: name of the mappings, for messages.

    Example:
        >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
        {'a': {'b': 3, 'c': 2}}
        >>> merged({"times": {"mode": "stretch"}}, {"times": None})
        {'times': None}

    Raises:
        SettingsError: if a mapping would replace another value, or another value a mapping.
    """
    both = dict(base)
    for key, value in changes.items():
        before = both.get(key)
        inside = isinstance(before, Mapping) and key not in _WHOLE
        if inside and not isinstance(value, Mapping):
            raise SettingsError(f"{name}.{key} is {value!r}; it must be a mapping")
        if isinstance(value, Mapping) and not isinstance(before or {}, Mapping):
            raise SettingsError(f"{name}.{key} is {before!r}; it must be a mapping")
        both[key] = merged(both[key], value, f"{name}.{key}") if inside else value
    return both
