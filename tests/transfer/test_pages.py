"""Pages of a request one behind the other, or scattered: what each costs in a scenario."""

from typing import Any

import pytest

from pdmodel.hardware.ports import PortKind
from pdmodel.planner import plan
from pdmodel.resolve import prices
from pdmodel.timeline.build import timeline
from pdmodel.transfer.breakdown import page_notes, transfer_breakdown
from pdmodel.transfer.build import build_transfers
from pdmodel.transfer.sends import parts_of

SCATTERED = {"transfer": {"pages": "scattered"}}


def test_scattered_pages_are_a_descriptor_each_and_take_longer(variant: Any) -> None:
    """sglang issue 5450: fragmented pages are several times slower; here 64-token pages of one KV head, 32 KiB."""
    name = "rtx_pro_6000_qwen3_32b_tp4"
    resolved, apart = variant(name), variant(name, SCATTERED)
    (request,) = resolved.requests
    tokens, pages = request.input_tokens, resolved.page_tokens
    one, two = parts_of(resolved, request), parts_of(apart, request)
    assert [part.pieces.size_bytes for part in one] == [part.pieces.size_bytes for part in two]
    assert {part.pieces.descriptors for part in two} == {2 * resolved.arch.layers * tokens // pages}
    assert {part.pieces.run_bytes for part in two} == {pages * 2 * 128 * 2}  # two KV heads of 128 values, 2 byte each
    (now,), (then,) = transfer_breakdown(resolved), transfer_breakdown(apart)
    assert (now.bound_by, then.bound_by) == ("control", "descriptors")
    assert now.descriptors_s < now.bandwidth_s < then.descriptors_s
    assert then.descriptors_s == pytest.approx(2 * resolved.arch.layers * tokens / pages * 3.4e-6, rel=1e-6)


def test_posting_becomes_a_port_of_the_plan(variant: Any) -> None:
    name = "agentic_turn_pcie"
    kinds = []
    for changes in ({}, SCATTERED):
        resolved = variant(name, changes)
        transfers = build_transfers(resolved, timeline(resolved))
        kinds.append({port.kind for port in transfers.ports})
    assert PortKind.POSTING not in kinds[0]
    assert PortKind.POSTING in kinds[1]
    assert prices(variant(name)) == prices(variant(name, SCATTERED))


def test_what_is_taken_for_granted_is_said_where_it_matters(variant: Any) -> None:
    (note,) = page_notes(variant("agentic_turn_pcie"))
    assert note.startswith("the pages of a request lie one behind the other")
    assert "descriptors of turn would take 655 ms, its bytes 274 ms" in note
    for pages in ("consecutive", "scattered"):
        assert page_notes(variant("agentic_turn_pcie", {"transfer": {"pages": pages}})) == ()
    assert page_notes(variant("layout_mismatch")) == ()  # a token is a descriptor either way
    assert page_notes(variant("urgent_user", {"transfer": {"staging_tokens": 8192}})) == ()
    found = plan(variant("rtx_pro_6000_qwen3_32b_tp4"))
    assert any(line.startswith("the pages of a request lie") for line in found.assumed)
