"""The contract of every position encoding; its card names the parts that it does not keep."""

import pytest
from contract_cases import EVERY

from floater import catalogue
from floater.testing import CHECKS, check_contract

CARD = ("card", "compile", "options", "rows")
"""Checks of what a card says of the default options."""
ORDER_ALONE = ("none", "disan", "cope", "forgetting", "cable", "stick_breaking", "path")
SMALL_AT_FIRST = ("seqpe",)
"""Encodings whose initial weights hardly act."""


@EVERY
@pytest.mark.parametrize("check", [check for check in CHECKS if check not in CARD])
def test_every_encoding_keeps_the_contract(name, options, check):
    random_weights = check == "order" and name in SMALL_AT_FIRST
    check_contract(name, check, options, random_weights=random_weights, order_alone=name in ORDER_ALONE)


@pytest.mark.parametrize("name", catalogue())
@pytest.mark.parametrize("check", CARD)
def test_every_card_describes_its_encoding(name, check):
    check_contract(name, check)


@EVERY
def test_far_positions_keep_relative_encodings_relative(name, options, monkeypatch):
    """Beyond the lengths at which a rule begins, and where angles in single precision would round."""
    monkeypatch.setattr("floater.testing.invariances._SHIFT", 20_000)
    check_contract(name, "shift", options)
