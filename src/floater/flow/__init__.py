"""Position vectors from a continuous dynamical model (FLOATER, sections 3.1, 3.2 and appendix A)."""

from floater.flow.collocation.error_control import FlowSensitive
from floater.flow.collocation.plan import SolverState
from floater.flow.collocation.solution import Solution
from floater.flow.collocation.solver import solve_dense
from floater.flow.encoder import FlowEncoder
from floater.flow.errors import (
    FlowDiverged,
    FlowError,
    FlowInaccurate,
    FlowStiff,
    FlowTransformError,
    SecondDerivativeError,
    SpanTooLong,
)
from floater.flow.reference import flow_error, gradient_error, reference_solve
from floater.flow.solve import METHODS, solve
from floater.flow.vector_fields import (
    BoundedField,
    MLPField,
    SinusoidField,
    SumField,
    ZeroField,
    init_small_,
    init_zero_,
    sinusoid,
)
from floater.flow.vectors import FlowVectors

__all__ = [
    "METHODS",
    "BoundedField",
    "FlowDiverged",
    "FlowEncoder",
    "FlowError",
    "FlowInaccurate",
    "FlowSensitive",
    "FlowStiff",
    "FlowTransformError",
    "FlowVectors",
    "MLPField",
    "SecondDerivativeError",
    "SinusoidField",
    "Solution",
    "SolverState",
    "SpanTooLong",
    "SumField",
    "ZeroField",
    "flow_error",
    "gradient_error",
    "init_small_",
    "init_zero_",
    "reference_solve",
    "sinusoid",
    "solve",
    "solve_dense",
]
