"""The contract of position encodings as checks, for the tests of encodings in and outside this package."""

from floater.testing.case import Case
from floater.testing.contract import CHECKS, check_contract
from floater.testing.refusals import check_refusal

__all__ = ["CHECKS", "Case", "check_contract", "check_refusal"]
