"""Settings of a study's configuration file."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from floater.errors import nearest
from floater.lab.paths import expand_fields
from floater.lab.tasks.corpora import cldr
from floater.lab.training.settings import check_numbers, check_read, first_changed

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
PAPER_BINS = [low for low, _ in cldr.BINS]


@dataclass(frozen=True)
class ShortToLong:
    """Train on sentences shorter than a cut, test on longer ones (Liu et al. 2020, section 4.3).

    The pairs come from text files, from a Hugging Face data set or from the built-in corpus; without any of
    these there is no cut. Pairs of one source sentence are on one side of the cut and of the validation.

    Attributes:
        source: files of source sentences, plain or .gz: the short ones train, the long ones test.
        target: files of the translations of `source`.
        test_source: files whose long sentences test and whose short ones are excluded.
        test_target: files of the translations of `test_source`.
        skip: number of first lines of a file to skip, by its name, such as a canary line.
        dataset: name of a Hugging Face data set with a "translation" column, instead of files.
        dataset_config: configuration of that data set, as in "de-en".
        builtin: training pairs of the built-in corpus, instead of files.
        builtin_test: number of its test pairs in each bin of length, and of its validation pairs.
        builtin_mean: mean source length of its short pairs, in tokens.
        cut: sentences of fewer words and punctuation marks train (of scripts without spaces, characters).
        valid: share of the short pairs that is held out for validation, and tested as the first bin.
        seed: seed of the choice of validation pairs, or of the built-in corpus.
        token: regular expression of the units of a length; null for words and punctuation marks, of scripts
            without spaces characters. The built-in corpus has an expression of its own.
        unique: exclude pairs whose source occurred before.
    """

    source: list[str] = field(default_factory=list)
    target: list[str] = field(default_factory=list)
    test_source: list[str] = field(default_factory=list)
    test_target: list[str] = field(default_factory=list)
    skip: dict[str, int] = field(default_factory=dict)
    dataset: str | None = None
    dataset_config: str | None = None
    builtin: int = 0
    builtin_test: int = 80
    builtin_mean: float = 15.0
    cut: int = PAPER_BINS[0]
    valid: float = 0.1
    seed: int = 0
    token: str | None = None
    unique: bool = True

    def __post_init__(self) -> None:
        check_numbers(self, positive=("builtin_mean",), builtin=0, builtin_test=1, cut=2, seed=0)
        if not 0 < self.valid < 1:
            raise ValueError(f"valid is {self.valid}; it must be between 0 and 1")
        if sum([bool(self.source), self.dataset is not None, self.builtin > 0]) > 1:
            raise ValueError("give only one of: source, dataset, builtin")
        for side, other in (("source", "target"), ("test_source", "test_target")):
            if len(getattr(self, side)) != len(getattr(self, other)):
                raise ValueError(f"{side} and {other} must have as many files")
        # cldr.TOKEN is that of the built-in corpus, and was the default of any source
        token = ("token",) * (self.token != cldr.TOKEN)
        for needed, present, names in (
            ("source or dataset", self.source or self.dataset, ("test_source", "test_target", "skip")),
            ("dataset", self.dataset, ("dataset_config",)),
            ("builtin", self.builtin, ("builtin_test", "builtin_mean")),
            ("source, dataset or builtin", self.enabled, ("cut", "valid", "seed", *token, "unique")),
        ):
            if not present and (idle := first_changed(self, names)):
                raise ValueError(f"{idle} needs {needed}")
        if self.builtin and (idle := first_changed(self, ("cut", *token, "valid", "unique"))):
            raise ValueError(
                f"the built-in corpus is cut at {PAPER_BINS[0]} tokens of its own, with a validation of its "
                f"own: leave out {idle}"
            )
        for name, lines in self.skip.items():
            if lines < 0:
                raise ValueError(f"skip of {name} is {lines}; it must be at least 0")
        try:
            re.compile(self.token or "")
        except re.error as error:
            raise ValueError(f"token {self.token!r} is not a regular expression: {error}") from None
        if unknown := self.skip.keys() - {*self.source, *self.target, *self.test_source, *self.test_target}:
            raise ValueError(f"skip names {min(unknown)}, which is none of the files")

    @property
    def enabled(self) -> bool:
        """Return whether the settings name a source of pairs, so that the study cuts its data."""
        return bool(self.source or self.dataset or self.builtin)


@dataclass(frozen=True)
class Budget:
    """Resources that the trials may use together.

    Attributes:
        cores: processor cores; null for all of the machine.
        threads: cores of a process of a trial. Results may depend on it, in the last digits.
        processes: processes that train a trial together, on one machine, each on a GPU of its own if there
            are GPUs. torchrun starts them; `max_tokens` and other sizes of a batch are those of each.
        memory: GiB of main memory; null for four fifths of the machine.
        trial_memory: GiB that a trial may use, without mapped files; one that exceeds it is stopped and
            counts as failed.
        gpus: share of a GPU that a trial gets: 0.5 puts two trials on each. Ignored without a GPU.
    """

    cores: int | None = None
    threads: int = 1
    processes: int = 1
    memory: float | None = None
    trial_memory: float = 3.0
    gpus: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, positive=("memory", "trial_memory", "gpus"), cores=1, threads=1, processes=1)
        if self.gpus > 1:
            raise ValueError(
                f"gpus is {self.gpus:g}; a process has one GPU at most: give budget.processes="
                f"{math.ceil(self.gpus)} for a trial on several"
            )
        if self.processes > 1 and self.gpus != 1:
            raise ValueError(f"gpus is {self.gpus:g}; each of {self.processes} processes needs a whole one")
        if self.cores is not None and self.trial_cores > self.cores:
            several = f" x {self.processes} processes" if self.processes > 1 else ""
            raise ValueError(f"threads is {self.threads}{several}, more than the {self.cores} cores")
        if self.memory is not None and self.trial_memory > self.memory:
            raise ValueError(f"trial_memory is {self.trial_memory}, more than the memory, {self.memory}")

    @property
    def trial_cores(self) -> int:
        """Return the number of cores of a trial."""
        return self.threads * self.processes


@dataclass(frozen=True)
class Tuning:
    """An axis of which each variant has the label that is best for it.

    All labels are tried with the first seed. The one with the best validation is trained with the other
    seeds, and it alone is compared; no test set decides. A label whose trial fails is excluded.

    Attributes:
        axis: name of the axis, such as one of learning rates; null for none.
        by: "score", the metric of the task's validation, or "loss", both of the final model. Of equal scores
            the one with the lower loss is better, if the task has a loss, then the first.
    """

    axis: str | None = None
    by: Literal["score", "loss"] = "score"

    def __post_init__(self) -> None:
        if self.by != "score" and self.axis is None:
            raise ValueError(f"by is {self.by!r}, which needs axis")


@dataclass(frozen=True)
class StudySettings:
    """A study: position models x blocks x seeds on one task, compared on the same test sets.

    Attributes:
        folder: directory of the study: its trials, each an ordinary run, its tables and its report.
        title: heading of the report.
        question: the question of the study, in a sentence or two.
        scaled_from: the experiment that this study scales down, as a table of a paper; null for a full size.
            The report and the tables then state that it is not a reproduction.
        note: first note to readers of the report, such as that some results were withdrawn; names between
            backticks are set as code.
        task: a task of `floater train`.
        settings: settings that all trials share, as for `floater train`.
        models: the position models by a short name. Each sets `position` (by default the name itself) and
            other settings of `model`, such as position_options or max_length; `settings`, changes of the
            common ones; `seeds`, instead of those of the study; `start`, in translation, the name of a
            variant above, whose finished trial of the same seed is the warm start: its best checkpoint with
            training.keep_best, else its model.
        excluded: position models that are not run, each with the reason, for the report.
        blocks: values of the option `blocks` of position encodings that have it, one variant each: "input",
            "all". Empty leaves their default. A model that sets the option itself has one variant.
        axes: further axes by a name of yours, each with labels and the settings that a label changes, as in
            {rate: {"2e-5": {training: {learning_rate: 2.0e-5}}}}. Every model is run on all combinations of
            labels, one variant each. A label changes what the model sets; `position_options`, `times` and
            `reading` it replaces as a whole, by null too.
        tuning: an axis of which each variant is trained with the label that is best for it, such as its
            learning rate. Its label ends the variant's name.
        seeds: seeds of the training, one trial each. The trials run seed by seed.
        baseline: name of the variant that others are compared with; null for the first. With axes, name a
            model, and each variant is compared with that model's at its own labels, as on the same task.
        comparisons: further pairs of variants to compare, as in [[rotary, learned]], the first with the
            second. They are the report's answer; without any, the comparisons with the baseline are.
        tests: test sets by name, each with the arguments of the task's scoring: files, such as source and
            reference, and options. A test set named "lengths" is shown by its bins only, without a name.
        metric: the metric of the test sets by which the variants are compared, as in "chrf"; null for the
            main metric of the task.
        bins: bounds of the bins of length, as in 80, 100, 120, 140; by default these for short_to_long. For
            causal language models and events they bound the number of tokens, or events, read before. A bin
            that only other test sets reach is not shown.
        short_to_long: train on short sentences and test on long ones; provides the data and a test set
            "lengths".
        checkpoints: pretrained models whose positions are shown, by a name: Hugging Face names or
            directories.
        figures: kinds of figures of each model's positions; see `floater plot`.
        keep_checkpoints: whether a finished trial keeps its checkpoints, from which it could be trained for
            longer. With their optimizers they take several times the room of its model. Those of
            `training.keep_steps` stay in any case.
        keep_models: whether a finished trial keeps the weights of its model. Figures, trials that start from
            it and test sets that are added later need them.
        samples: resamplings of the paired bootstrap; more where many comparisons need it.
        level: level of significance, after Holm's correction.
        launcher: "local", side by side on this machine, "ray", on a Ray cluster, or "slurm", each a job; the
            machines of both share the folder.
        slurm: parameters of the jobs with launcher "slurm", under the names of submitit's executor, as
            slurm_partition, timeout_min (by default a day) and gpus_per_node.
        imports: Python modules to import first, with tasks or position encodings of your own.
        budget: resources that the trials may use together.
    """

    folder: str
    title: str = "Position models compared"
    question: str = "Which position model is best on these data?"
    scaled_from: str | None = None
    note: str | None = None
    task: str = "translation"
    settings: dict[str, Any] = field(default_factory=dict)
    models: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    blocks: list[str] = field(default_factory=list)
    axes: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    baseline: str | None = None
    comparisons: list[list[str]] = field(default_factory=list)
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    metric: str | None = None
    bins: list[int] = field(default_factory=list)
    short_to_long: ShortToLong = field(default_factory=ShortToLong)
    checkpoints: dict[str, str] = field(default_factory=dict)
    figures: list[str] = field(default_factory=lambda: ["vectors", "similarity"])
    keep_checkpoints: bool = True
    keep_models: bool = True
    samples: int = 1000
    level: float = 0.05
    launcher: Literal["local", "ray", "slurm"] = "local"
    slurm: dict[str, Any] = field(default_factory=dict)
    imports: list[str] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        paths = ("folder", "settings", "models", "axes", "tests", "checkpoints", "short_to_long")
        expand_fields(self, *paths)
        if not self.folder:
            raise ValueError("folder is ''; it must name a directory, as . for this one")
        check_numbers(self, samples=100)
        if self.launcher != "slurm":
            check_read(self, ["slurm"], "launcher 'slurm'")
        else:  # the executor's parameters ask for them
            check_read(self.budget, ["memory", "gpus"], "launcher 'local' or 'ray'", "budget.")
        if not 0 < self.level < 1:
            raise ValueError(f"level is {self.level}; it must be between 0 and 1")
        if not (self.models or self.checkpoints):
            raise ValueError("give models to train, or checkpoints to look at")
        if self.models and not self.seeds:
            raise ValueError("give at least one seed")
        if both := sorted(self.excluded.keys() & self.models.keys()):
            raise ValueError(f"{both[0]!r} is among models and among excluded")
        if "validation" in self.tests:
            raise ValueError("'validation' names the runs' own validation; name the test set differently")
        labels = [label for axis in self.axes.values() for label in axis]
        if empty := [name for name, axis in self.axes.items() if not axis]:
            raise ValueError(f"axis {empty[0]!r} has no label")
        if (tuned := self.tuning.axis) is not None:
            if tuned not in self.axes:
                hint = nearest(tuned, self.axes) if self.axes else "axes is empty"
                raise ValueError(f"tuning.axis is {tuned!r}; {hint}")
            if starts := [name for name, entry in self.models.items() if (entry or {}).get("start")]:
                raise ValueError(
                    f"tuning chooses a label of each variant alone; leave out start of {starts[0]!r}"
                )
        named: dict[str, Collection[str]] = {"model": self.models, "test": self.tests, "label": labels}
        for kind, names in (named | {"checkpoint": self.checkpoints}).items():
            for name in names:
                if not NAME.fullmatch(name):
                    raise ValueError(
                        f"{kind} {name!r}: a name has letters, digits and . _ + - only, as files are named so"
                    )
        pairs = self.comparisons
        for values, what in ((self.seeds, "seeds"), (self.blocks, "blocks"), (pairs, "comparisons")):
            if (twice := repeated(values)) is not None:
                raise ValueError(f"{what} has {twice} twice")
        for pair in self.comparisons:
            if len(pair) != 2 or pair[0] == pair[1]:
                raise ValueError(f"comparisons has {pair}; it must be a list of pairs of different variants")
        if self.bins and not all(low < high for low, high in pairwise([0, *self.bins])):
            raise ValueError(f"bins are {self.bins}; they must be positive and increasing")
        if not self.keep_models:
            starts = [name for name, entry in self.models.items() if (entry or {}).get("start")]
            if starts or self.figures or self.keep_checkpoints:
                needed = f"{starts[0]!r} starts from one" if starts else "figures are drawn of them"
                needed = needed if starts or self.figures else "keep_checkpoints is true"
                raise ValueError(f"keep_models is false, but {needed}")
        if self.short_to_long.enabled and self.task != "translation":
            raise ValueError(f"short_to_long cuts translation data; the task is {self.task!r}")
        if self.short_to_long.enabled and not self.bins and self.short_to_long.cut not in PAPER_BINS:
            raise ValueError(
                f"bins are {PAPER_BINS} by default, without the cut of short_to_long at "
                f"{self.short_to_long.cut}: give bins that start there, as one would mix lengths"
            )
        if self.short_to_long.enabled and "lengths" in self.tests:
            raise ValueError("'lengths' is the test set of short_to_long; name the other one differently")

    @property
    def compared_axes(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the axes all of whose labels are compared: not the tuned one."""
        return {name: axis for name, axis in self.axes.items() if name != self.tuning.axis}

    @property
    def edges(self) -> list[int]:
        """Return the bounds of the bins of length; none for no bins."""
        return self.bins or (PAPER_BINS if self.short_to_long.enabled else [])


def bounds(edges: Sequence[int]) -> list[tuple[int, int | None]]:
    """Return the bins between some edges: below the first, from each to the next, and from the last on.

    Example:
        >>> bounds([15, 20])
        [(0, 15), (15, 20), (20, None)]
    """
    return list(zip([0, *edges], [*edges, None], strict=True)) if edges else []


def repeated(values: Sequence[Any]) -> Any:
    """Return the first value that repeats; None if none does.

    Example:
        >>> repeated([1, 2, 1]), repeated([1, 2])
        (1, None)
    """
    return next((value for i, value in enumerate(values) if value in values[:i]), None)
