"""The laboratory: everything that runs experiments, behind the command `floater`.

It trains, evaluates, compares and reports. It imports the library; the library never imports it.
"""
