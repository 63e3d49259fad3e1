"""Options of the generated problems."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Settings of the generated examples; lengths are in the unit of the problem.

    Attributes:
        problem: name of the problem: "copy", "reverse", "sort", "missing_duplicate", "addition",
            "binary_addition", "sum", "parity", "majority", "binary_majority", "interleaved_majority", "poly",
            "dyck", "tomita_4", "equal_counts", "flip_flop", "counting", "s3", "s5", "lego", "recall",
            "passkey", "listops", "tree_distance", "graph_distance", "languages", "reorder" or "repeat".
        lengths: least and greatest length of training examples.
        longest: greatest length of test examples; null takes 8 times the greatest training length.
        train: number of training examples.
        valid: number of validation examples, of the training lengths.
        test: number of test examples of each bin of lengths.
        symbols: number of distinct symbols that are copied, reversed, sorted, reordered, repeated or counted
            (majority); of variables (counting); of variable names (lego); of keys, and of values (recall); of
            words of the repeated text (passkey); of names of nodes (tree_distance, graph_distance).
        distinct: true for symbols that all differ within an example (copy, reverse, sort).
        uniform_ones: true for a uniform number of ones, false for independent bits (parity).
        ignored: share of the instructions that are to be ignored (flip_flop; 0.8 in Liu et al. 2023).
        least_first: true to write numbers with the least significant digit first (addition).
        modulus: modulus of the answer (sum, poly; 10 in Kazemnejad et al. 2023).
        nested: true to close the last opened bracket first; false lets the four kinds cross (dyck).
        permute: true for clauses in random order instead of that of the chain (lego).
        slots: number of positions of queries for each key; random tokens fill those without a query (recall).
        digits: number of digits of the hidden number (passkey).
        max_depth: maximum depth of the digits of an expression (listops; 10 in Long Range Arena).
        max_args: maximum number of elements of a list (listops; 10 in Long Range Arena).
        extra_edges: number of random edges that are added to a tree (graph_distance).
        seed: seed of the examples, separate from that of the training.
    """

    problem: str
    lengths: tuple[int, int] = (1, 16)
    longest: int | None = None
    train: int = 50_000
    valid: int = 500
    test: int = 500
    symbols: int = 32
    distinct: bool = False
    uniform_ones: bool = False
    ignored: float = 0.8
    least_first: bool = True
    modulus: int = 10
    nested: bool = True
    permute: bool = False
    slots: int = 1
    digits: int = 5
    max_depth: int = 10
    max_args: int = 10
    extra_edges: int = 2
    seed: int = 0

    @property
    def most(self) -> int:
        """Return the greatest length of test examples."""
        return self.longest or 8 * self.lengths[1]
