"""More context for models that somebody else trained."""

from floater.pretrained.extending.extend import ExtendError, Extension, extend

__all__ = ["ExtendError", "Extension", "extend"]
