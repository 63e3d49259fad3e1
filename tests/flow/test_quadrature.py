"""Gauss-Legendre rules against closed forms and numpy."""

import math

import numpy as np
import pytest
import torch

from floater.flow.collocation.quadrature import gauss_rule, legendre

COUNTS = [1, 2, 3, 8, 12]
TIGHT = {"rtol": 0, "atol": 1e-14}  # a few roundings in float64


@pytest.mark.parametrize("count", COUNTS)
def test_nodes_and_weights_are_numpys(count):
    nodes, weights = np.polynomial.legendre.leggauss(count)
    rule = gauss_rule(count)
    torch.testing.assert_close(rule.nodes, torch.from_numpy((nodes + 1) / 2), **TIGHT)
    torch.testing.assert_close(rule.weights, torch.from_numpy(weights / 2), **TIGHT)


def test_the_two_stage_matrix_is_the_textbooks():
    root = math.sqrt(3) / 6
    exact = torch.tensor([[0.25, 0.25 - root], [0.25 + root, 0.25]], dtype=torch.float64)
    torch.testing.assert_close(gauss_rule(2).quadrature, exact, **TIGHT)


@pytest.mark.parametrize("count", COUNTS)
def test_the_weights_integrate_degree_2n_minus_1(count):
    rule = gauss_rule(count)
    for degree in range(2 * count):
        assert float(rule.weights @ rule.nodes**degree) == pytest.approx(1 / (degree + 1), abs=1e-14)
    missed = float(rule.weights @ rule.nodes ** (2 * count)) - 1 / (2 * count + 1)
    # The error of degree 2N is (N!)^4 / (2N)!^2 / (2N + 1), from the norm of the monic Legendre polynomial.
    expected = -(math.factorial(count) ** 4) / math.factorial(2 * count) ** 2 / (2 * count + 1)
    assert missed == pytest.approx(expected, rel=1e-3, abs=1e-15)


@pytest.mark.parametrize("count", COUNTS)
def test_polynomials_of_degree_n_minus_1_are_read_and_integrated_exactly(count):
    rule, x = gauss_rule(count), torch.linspace(-0.2, 1.4, 9, dtype=torch.float64)
    for degree in range(count):
        values = rule.nodes**degree
        # Beyond the interval the roundings grow with the Legendre polynomials.
        torch.testing.assert_close(rule.evaluation(x) @ values, x**degree, rtol=1e-8, atol=1e-8)
        exact = x ** (degree + 1) / (degree + 1)
        torch.testing.assert_close(rule.integration(x) @ values, exact, rtol=1e-8, atol=1e-8)
        exact = rule.nodes ** (degree + 1) / (degree + 1)
        torch.testing.assert_close(rule.quadrature @ values, exact, **TIGHT)


def test_projection_finds_the_coefficients():
    rule = gauss_rule(8)
    torch.testing.assert_close(
        rule.projection @ legendre(rule.nodes, 7), torch.eye(8, dtype=torch.float64), rtol=0, atol=1e-13
    )


def test_a_lower_degree_is_the_truncated_series():
    rule, x = gauss_rule(8), torch.tensor([0.1, 1.3], dtype=torch.float64)
    values = legendre(rule.nodes, 7) @ torch.arange(1.0, 9.0, dtype=torch.float64)
    expected = legendre(x, 3) @ torch.arange(1.0, 5.0, dtype=torch.float64)
    torch.testing.assert_close(rule.evaluation(x, degree=3) @ values, expected, rtol=1e-12, atol=1e-12)


def test_the_integral_to_zero_is_exactly_zero():
    assert not gauss_rule(8).integration(torch.zeros(1, dtype=torch.float64)).any()
