"""The columns of figures that terminal and page show of a model, each by what a document calls it.

A field stands beside its heading; what is printed of it follows a specification.
"""

REGRET = {"geomean": "geomean", "p95": "p95", "max": "max", "within_2_percent": "within 2%"}
REGRET_COLUMNS = dict.fromkeys(REGRET.values(), ".2%")

LIBRARY = {"left": "left to it", "geomean": "speed", "slower": "below 0.97x", "worst": "worst"}
LIBRARY_COLUMNS = dict(zip(LIBRARY.values(), (".0%", ".3f", ".1%", ".2f"), strict=True))
