"""Download and preparation of the papers' data sets, in directories that configurations name.

Training does not need this package: a task reads files from any source.
"""

from floater.lab.datasets.catalogue import Dataset, datasets, listing
from floater.lab.datasets.preparation import prepare

__all__ = ["Dataset", "datasets", "listing", "prepare"]
