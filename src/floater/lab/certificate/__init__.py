"""Certificates: the costs and gains of an extension to longer inputs, measured on the model itself."""

from floater.lab.certificate.certified_model import Method, methods, subject
from floater.lab.certificate.measurements import certify, read_texts
from floater.lab.certificate.page import write_page
from floater.lab.certificate.summary import choose

__all__ = ["Method", "certify", "choose", "methods", "read_texts", "subject", "write_page"]
