"""Gauss-Legendre collocation in mesh intervals: implicit, parallel in time, with the exact discrete gradient.

`docs/design/collocation.md` derives the method; the modules follow its sections.
"""
