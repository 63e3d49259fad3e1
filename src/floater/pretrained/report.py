"""The summary of what `plug` added to a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """Summary of a plugged model: fields, projections and parameters.

    Args:
        fields: width of each field and names of the projections that share it, by name of the field.
        parameters: number of parameters of fields and starting vectors, or of clocks.
        clocks: number of blocks with a clock.
        plain: parts that are Hugging Face models of no known family, and stay as they are.

    Example:
        >>> print(Report({"64": (64, ("query", "key", "query", "key"))}, 12_700))
        a field of width 64 for 2 query, 2 key; 12,700 parameters
    """

    fields: Mapping[str, tuple[int, tuple[str, ...]]]
    parameters: int
    clocks: int = 0
    plain: tuple[str, ...] = ()

    def __str__(self) -> str:
        plain = f"; unchanged: {', '.join(self.plain)}" if self.plain else ""
        return f"{self._changed()}; {self.parameters:,} parameters{plain}"

    def _changed(self) -> str:
        if self.clocks:
            return f"a clock in each of {self.clocks} blocks"
        counts = [(width, Counter(names)) for width, names in self.fields.values()]
        fields = (
            f"a field of width {width} for {', '.join(f'{n} {name}' for name, n in names.items())}"
            for width, names in counts
        )
        return "; ".join(fields)
