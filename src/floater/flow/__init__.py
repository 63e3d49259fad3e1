"""Position vectors from a continuous dynamical model (FLOATER, sections 3.1, 3.2 and appendix A)."""

from floater.flow.bounded import BoundedField
from floater.flow.collocation import dense
from floater.flow.conditioning import FlowSensitive
from floater.flow.encoder import FlowEncoder
from floater.flow.errors import FlowDiverged, FlowError, FlowInaccurate, SpanTooLong
from floater.flow.field import MLPField, SinusoidField, SumField, ZeroField, sinusoid, small_, zero_
from floater.flow.nonblocking import settle
from floater.flow.piecewise import Dense
from floater.flow.reference import flow_error, gradient_error, reference_solve
from floater.flow.solver import METHODS, solve
from floater.flow.vectors import FlowVectors

__all__ = [
    "METHODS",
    "BoundedField",
    "Dense",
    "FlowDiverged",
    "FlowEncoder",
    "FlowError",
    "FlowInaccurate",
    "FlowSensitive",
    "FlowVectors",
    "MLPField",
    "SinusoidField",
    "SpanTooLong",
    "SumField",
    "ZeroField",
    "dense",
    "flow_error",
    "gradient_error",
    "reference_solve",
    "settle",
    "sinusoid",
    "small_",
    "solve",
    "zero_",
]
