"""How KV gets from one layout into another: pairs of ranks, bytes, descriptors, and the time they take.

`tokens` says which tokens a rank keeps, `descriptors` into how many pieces memory falls, `caches` what an LLM keeps,
`pairs` who sends what, `law` and `timing` how long it takes, `fixes` what would make it faster.
"""

from pdmodel.costs.fullest_port import PathTime
from pdmodel.costs.kv_layout.caches import Cache, caches
from pdmodel.costs.kv_layout.descriptors import Order, Pages, Side, descriptors
from pdmodel.costs.kv_layout.fixes import Fix, Lever, cheapest, fixes
from pdmodel.costs.kv_layout.law import (
    MOONCAKE_SLICES,
    Slicing,
    Term,
    Terms,
    completion_s,
    equal_pieces_s,
    slices,
    staging_s,
    transfer_terms,
)
from pdmodel.costs.kv_layout.pairs import CopySender, Exchange, Pair, Placement, pairs
from pdmodel.costs.kv_layout.timing import (
    HandOver,
    Path,
    Setting,
    box_choices,
    box_path,
    engine_constants,
    engine_slicing,
    even_path,
    hand_over,
    route_path,
    staged_tokens,
    work_requests,
)
from pdmodel.costs.kv_layout.tokens import Comb, Split, TokenRuns, Window, comb, common_runs, cut, share

__all__ = [
    "MOONCAKE_SLICES",
    "Cache",
    "Comb",
    "CopySender",
    "Exchange",
    "Fix",
    "HandOver",
    "Lever",
    "Order",
    "Pages",
    "Pair",
    "Path",
    "PathTime",
    "Placement",
    "Setting",
    "Side",
    "Slicing",
    "Split",
    "Term",
    "Terms",
    "TokenRuns",
    "Window",
    "box_choices",
    "box_path",
    "caches",
    "cheapest",
    "comb",
    "common_runs",
    "completion_s",
    "cut",
    "descriptors",
    "engine_constants",
    "engine_slicing",
    "equal_pieces_s",
    "even_path",
    "fixes",
    "hand_over",
    "pairs",
    "route_path",
    "share",
    "slices",
    "staged_tokens",
    "staging_s",
    "transfer_terms",
    "work_requests",
]
