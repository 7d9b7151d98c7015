"""Where the time of a transfer goes, and the mismatch of layouts that a plan must not miss."""

from typing import Any

import pytest

from pdmodel.answer import VerdictKind
from pdmodel.planner import plan
from pdmodel.transfer.breakdown import transfer_breakdown
from pdmodel.transfer.control import control

MISMATCH = "layout_mismatch"


def test_a_mismatch_takes_ten_seconds_and_staging_takes_them_away(variant: Any) -> None:
    # sglang pull request 39992: 10.5 s -> 0.2 s with staging; LLM, prompt and NIC are not stated there, so it is the
    # order of magnitude that is held.
    before = plan(variant(MISMATCH))
    assert before.verdict.kind is VerdictKind.INFEASIBLE
    assert "posting" in before.verdict.text
    assert 5 < before.times.decode_stall_s < 20
    staged = variant(MISMATCH, {"transfer": {"staging_tokens": 8192}})
    after = plan(staged)
    assert after.verdict.kind is VerdictKind.HEADROOM
    assert after.times.decode_stall_s < 0.2
    (one,), (two,) = transfer_breakdown(variant(MISMATCH)), transfer_breakdown(staged)
    assert 5 < one.time_s < 20
    assert 0.05 < two.time_s < 0.5
    assert one.time_s > 30 * two.time_s
    assert (one.bound_by, two.bound_by) == ("descriptors", "bandwidth")
    assert one.bytes == two.bytes
    assert (one.run_bytes, one.senders, one.pairs) == (256, 4, 8)
    assert two.staging_s > 0 == one.staging_s


def test_the_cheapest_fix_does_what_it_says(variant: Any) -> None:
    (now,) = transfer_breakdown(variant(MISMATCH))
    assert now.fix
    assert now.fix_lever == "HND"
    (fixed,) = transfer_breakdown(variant(MISMATCH, {"transfer": {"layout": "hnd"}}))
    assert fixed.time_s == pytest.approx(now.fix_time_s)
    assert fixed.time_s < 0.1 * now.time_s


def test_terms_add_up_and_belong_to_the_scenario(variant: Any) -> None:
    resolved = variant("seed_h200_nvlink")
    found = transfer_breakdown(resolved)
    assert [one.request for one in found] == ["fresh", "cached"]
    # Two instances, each on its own NIC: one of the two carries all that one instance sends.
    assert [one.port for one in found] == ["P/nic0/tx", "P/nic1/tx"]
    for one in found:
        middle = max(one.bandwidth_s, one.descriptors_s, one.messages_s)
        assert one.time_s == pytest.approx(one.setup_s + middle + one.staging_s + one.control_s)
        assert one.setup_s == pytest.approx(1.84e-3)
        (request,) = [each for each in resolved.requests if each.name == one.request]
        assert control(resolved, request).after_s == pytest.approx(one.time_s - middle)


def test_what_takes_longest_may_be_the_control_plane(variant: Any) -> None:
    (one,) = transfer_breakdown(variant("rtx_pro_6000_qwen3_32b_tp4"))
    assert one.bound_by == "control"
    assert one.control_s > one.bandwidth_s


def test_a_store_in_between_is_no_direct_hand_over(variant: Any) -> None:
    changes = {"transfer": {"through": "store"}, "store": {"backend": "mooncake_store"}}
    assert transfer_breakdown(variant("rtx_pro_6000_qwen3_32b_tp4", changes)) == ()
