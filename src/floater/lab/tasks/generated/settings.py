"""Settings of a run on a generated task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from floater.errors import DataError, nearest
from floater.lab.tasks import settings
from floater.lab.tasks.corpora.problems import PROBLEMS
from floater.lab.tasks.corpora.problems.options import Options
from floater.lab.tasks.measurement import check_edges
from floater.lab.training.settings import TrainingSettings, check_numbers, default_of, first_changed
from floater.transformer.times import Times

__all__ = ["Data", "GeneratedSettings", "Model"]
_OPTIONS = {name for problem in PROBLEMS.values() for name in problem.options}


@dataclass(frozen=True)
class Data(Options):
    """Settings of the generated examples; lengths are in the unit of the problem."""

    def __post_init__(self) -> None:
        if self.problem not in PROBLEMS:
            raise ValueError(f"unknown problem '{self.problem}'; {nearest(self.problem, PROBLEMS)}")
        least = {"symbols": 2, "modulus": 2, "max_depth": 2, "max_args": 2, "extra_edges": 0, "seed": 0}
        check_numbers(self, positive=("train", "valid", "test", "longest", "slots", "digits"), **least)
        if not 0 <= self.ignored < 1:
            raise ValueError(f"ignored is {self.ignored}; it must be a share, at least 0 and below 1")
        low, high = self.lengths
        if not 1 <= low <= high:
            raise ValueError(f"lengths are {low} to {high}; they must increase from at least 1")
        if self.longest is not None and self.longest < high:
            raise ValueError(f"longest is {self.longest}; it must be at least the greatest length, {high}")
        read = PROBLEMS[self.problem].options
        if (option := first_changed(self, _OPTIONS - {*read})) is not None:
            value, default = getattr(self, option), default_of(self, option)
            raise ValueError(
                f"{option} is {value}, which problem '{self.problem}' does not read; remove it or "
                f"set it to {default} (of such options it reads {' and '.join(read) or 'none'})"
            )
        if (wrong := PROBLEMS[self.problem].refuse(self)) is not None:
            raise ValueError(wrong)

    @property
    def classifies(self) -> bool:
        """Return True if the answer is a class, False if it consists of tokens after the question."""
        return PROBLEMS[self.problem].classes > 0

    @property
    def aligned(self) -> bool:
        """Return True if the model predicts a token of the answer at each token of the question."""
        return PROBLEMS[self.problem].aligned

    def tokens(self, length: int) -> int:
        """Return the maximum number of tokens of a row of a length: <s>, question, =, answer, </s>.

        Example:
            >>> Data("reverse").tokens(16), Data("addition").tokens(3), Data("listops").tokens(9)
            (35, 14, 10)
        """
        return PROBLEMS[self.problem].tokens(self, length)

    def bins(self, edges: tuple[int, ...] = ()) -> list[tuple[int, int]]:
        """Return the bounds of the test bins, which end at the greatest training length, twice that, ...

        Args:
            edges: first length of every bin but the first, in place of these.

        Example:
            >>> Data("copy").bins(), Data("copy", lengths=(4, 10), longest=25).bins()
            ([(1, 16), (17, 32), (33, 64), (65, 128)], [(4, 10), (11, 20), (21, 25)])
            >>> Data("copy").bins((5, 50))
            [(1, 4), (5, 49), (50, 128)]

        Raises:
            DataError: if the edges are not strictly increasing, or not between the least and the greatest
                length.
        """
        low, high = self.lengths
        starts = list(edges)
        check_edges(starts)
        if starts and not (low < starts[0] and starts[-1] <= self.most):
            raise DataError(
                f"bins {starts} do not lie between the least length, {low}, and the greatest that is tested, "
                f"{self.most} (data.longest)"
            )
        if not edges:
            starts = [high * 2**i + 1 for i in range(self.most.bit_length()) if high * 2**i < self.most]
        return list(zip([low, *starts], [*(start - 1 for start in starts), self.most], strict=True))


@dataclass(frozen=True)
class Model(settings.Model):
    """The Transformer and its position model.

    Attributes:
        max_length: training length in tokens, which is the initial span of a flow; for a bounded model such
            as "learned", the number of tokens of the longest test example.
    """

    preset: str = "tiny"
    max_length: int = 64


@dataclass(frozen=True, kw_only=True)
class GeneratedSettings(settings.RunSettings):
    """A run on a generated task.

    Attributes:
        data: settings of the generated examples.
    """

    task: Literal["generated"] = "generated"
    data: Data
    model: Model = field(default_factory=Model)
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(
            learning_rate=1e-3, warmup_steps=200, max_tokens=4096, average_last=0
        )
    )

    def files_read(self) -> dict[str, Any]:
        return {}

    def __post_init__(self) -> None:
        super().__post_init__()
        needed, longest = (self.data.tokens(length) for length in (self.data.lengths[1], self.data.most))
        row = f"a training row may have {needed} tokens"
        settings.check_block(row, needed, self.training)
        times = Times.of(self.model.times, self.model.max_length)
        if times is not None and needed > times.horizon:
            raise ValueError(
                f"{row}, more than the horizon of random times, {times.horizon}; raise model.max_length or "
                "model.times.max_scale"
            )
        self.model.check_reach(needed, f"{row} (the longest test needs {longest})")
