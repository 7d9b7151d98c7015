"""Published tables run again: every row predicted by the package, held against the figure, within stated limits."""

from pdmodel.verification.results import BandResult, TableResult, verify
from pdmodel.verification.tables import Comparison, Limit, PublishedTable, read_tables

__all__ = ["BandResult", "Comparison", "Limit", "PublishedTable", "TableResult", "read_tables", "verify"]
