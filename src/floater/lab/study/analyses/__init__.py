"""Analyses of what a trained model has learned about positions, as numbers and as figures.

Each file has one analysis: a function that returns its numbers, and one that draws them on axes of the
caller, so that one figure can show several models. `draw` does both for one model, by the analysis's name.
"""

from floater.lab.study.analyses.attention import head_map, head_maps, positional_logits
from floater.lab.study.analyses.flow import curves, flow_curves
from floater.lab.study.analyses.kinds import KINDS, Options, draw, kinds
from floater.lab.study.analyses.plotting import Plot, panels, save
from floater.lab.study.analyses.probe import linear_probe, probe, probe_bars
from floater.lab.study.analyses.reordering import detect
from floater.lab.study.analyses.same_word import same_word_logits
from floater.lab.study.analyses.similarity import similarity, similarity_map
from floater.lab.study.analyses.smoothness import Smoothness, smoothness, smoothness_lines
from floater.lab.study.analyses.subject import Subject, load_subject
from floater.lab.study.analyses.terms import Terms, logit_terms
from floater.lab.study.analyses.vectors import all_vectors, heat_map, vectors

__all__ = [
    "KINDS",
    "Options",
    "Plot",
    "Smoothness",
    "Subject",
    "Terms",
    "all_vectors",
    "curves",
    "detect",
    "draw",
    "flow_curves",
    "head_map",
    "head_maps",
    "heat_map",
    "kinds",
    "linear_probe",
    "load_subject",
    "logit_terms",
    "panels",
    "positional_logits",
    "probe",
    "probe_bars",
    "same_word_logits",
    "save",
    "similarity",
    "similarity_map",
    "smoothness",
    "smoothness_lines",
    "vectors",
]
