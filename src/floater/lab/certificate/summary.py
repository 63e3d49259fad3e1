"""Claims that a record supports or refutes, and the choice of a method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from floater.lab.certificate.certified_model import Method
from floater.lab.certificate.record import Interval, Record, wilson

LOSS_GOAL, SHORT_GOAL, NEEDLES_GOAL = 0.05, 0.001, 0.8
"""Goals: nats beyond the old length, relative change of the loss within it, share of the needles found."""
PLAIN = Method(None)


class Claim(NamedTuple):
    """A claim about an extension.

    Args:
        text: the claim.
        holds: whether it holds; None if the samples do not show it, or it was not measured.
        evidence: the numbers.
    """

    text: str
    holds: bool | None
    evidence: str


def short_change(record: Record, method: Method) -> float | None:
    """Return the relative change of the loss of short inputs; None if it was not measured.

    It is the largest of two: that of short inputs alone, and that of the tokens within the old length of the
    long text, which methods that promise to keep short inputs cannot change.
    """
    shorts = [result for _, result in record.results_of("loss", method) if "short" in result]
    if not shorts:
        return None
    changes = [result["short"]["change"] for result in shorts]
    before = record.loss(PLAIN, 0, record.old)
    after = record.loss(method, 0, record.old)
    if before is not None and after is not None and not all(result["promised"] for result in shorts):
        changes.append(after / before - 1)
    return float(max(changes, key=abs))


def claims(record: Record, method: Method) -> list[Claim]:
    """Return the claims about a method, each with its verdict."""
    old, new = record.old, record.length
    about = [_short_claim(record, method)]
    difference = record.difference(method, PLAIN, old, new, windows=True)
    text = f"loss at {old:,} to {new:,} tokens within {LOSS_GOAL} nats of the same tokens read in parts"
    if difference is None:
        about.append(Claim(text, None, "not measured"))
    else:
        about.append(Claim(text, _below(difference, LOSS_GOAL), f"{signed(difference)} nats per token"))
    if record.settings["model"]["kind"] == "causal":
        about.append(_needles_claim(record, method))
    return about


def _short_claim(record: Record, method: Method) -> Claim:
    results = [result for _, result in record.results_of("loss", method) if "short" in result]
    if not results:
        return Claim("short inputs unchanged", None, "not measured")
    shorts = [result["short"] for result in results]
    if all(result["promised"] for result in results):
        largest = max(short["largest"] for short in shorts)
        evidence = f"{shorts[0]['tokens']:,} tokens: largest difference of a token's loss {largest:.2g}"
        return Claim("short inputs unchanged, bit for bit", all(short["equal"] for short in shorts), evidence)
    change = short_change(record, method) or 0.0
    text = f"loss of short inputs changed by at most {SHORT_GOAL:.1%}; the method promises no equality"
    return Claim(text, abs(change) <= SHORT_GOAL, f"{change:+.2%} within {record.old:,} tokens")


def _needles_claim(record: Record, method: Method) -> Claim:
    half = record.old // 2
    text = f"at {record.length:,} tokens at least {NEEDLES_GOAL:.0%} of the needles found at {half:,}"
    (hits, total), (before, count) = record.recall(method, record.length), record.recall(PLAIN, half)
    if not total or not before:
        return Claim(text, None, "not measured" if not count else f"none found at {half:,} either")
    ratio = (hits / total) / (before / count)
    evidence = f"{share(hits, total)} against {share(before, count)}, ratio {ratio:.2f}"
    return Claim(text, ratio >= NEEDLES_GOAL, evidence)


def _below(interval: Interval, goal: float) -> bool | None:
    """Return whether a value is at most a goal; None if its interval contains the goal."""
    if interval.low is None or interval.high is None or interval.low <= goal < interval.high:
        return None
    return interval.high <= goal


def signed(interval: Interval | None) -> str:
    """Format a difference with its interval."""
    if interval is None:
        return "–"
    if interval.low is None or interval.high is None:
        return f"{interval.value:+.3f}"
    return f"{interval.value:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"


def share(hits: int, total: int) -> str:
    """Format a share with its Wilson interval.

    Example:
        >>> share(8, 10), share(0, 0)
        ('80 % (49 to 94), 8/10', '–')
    """
    if not total:
        return "–"
    value, low, high = (round(100 * each) for each in wilson(hits, total) if each is not None)
    return f"{value} % ({low} to {high}), {hits}/{total}"


def choose(record: Record, measured: Sequence[Method]) -> tuple[Method | None, str]:
    """Choose a method by the record, with the reason.

    The method has the lowest loss beyond the old length among those that change the loss of short inputs by
    at most 0.1 %, or among all if there is none. Of methods whose loss does not differ significantly from the
    lowest, it is the one that finds the most needles.

    Returns:
        The method, None if no method has a result, and the reason.
    """
    old, new = record.old, record.length
    ranked = [method for method in record.ranked(measured) if record.loss(method, old, new) is not None]
    if not ranked:
        return None, "no method has a result yet"
    changes = {str(method): short_change(record, method) for method in ranked}
    keeping = [m for m in ranked if (change := changes[str(m)]) is not None and abs(change) <= SHORT_GOAL]
    pool = keeping or ranked
    best = pool[0]
    equal = [best]
    for method in pool[1:]:
        difference = record.difference(method, best, old, new)
        if difference is not None and (difference.low is None or difference.low <= 0):
            equal.append(method)

    def recalled(method: Method) -> float:
        hits, total = record.recall(method, new)
        return hits / total if total else -1.0

    chosen = max(equal, key=recalled)
    loss = f"{record.loss(best, old, new):.3f} nats at {old:,} to {new:,} tokens"
    keeps = f"the loss of short inputs by at most {SHORT_GOAL:.1%}"
    if len(pool) > 1:
        kind = f"methods that change {keeps}" if keeping else "methods"
        reason = f"{best} has the least loss, {loss}, among {len(pool)} {kind}"
    else:
        kind = f"that changes {keeps}" if keeping else "that was measured"
        reason = f"{best} is the only method {kind}; it has {loss}"
    if len(equal) > 1:
        others = ", ".join(str(method) for method in equal if method is not best)
        reason += f"; {others} {'does' if len(equal) == 2 else 'do'} not differ significantly"
        if recalled(chosen) >= 0:
            reason += f", and {chosen} finds the most needles ({recalled(chosen):.0%})"
    if not keeping:
        reason += f"; every method changes short inputs by more than {SHORT_GOAL:.1%}"
    return chosen, reason
