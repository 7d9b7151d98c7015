from dataclasses import replace

import pytest
from sample_plan import sample_plan
from syrupy.assertion import SnapshotAssertion

from pdmodel.answer import FlowResult, MemoryResult, ReuseResult, SolverResult, VerdictKind
from pdmodel.report import plan_document, to_markdown, to_text
from pdmodel.report.document import Document, Section
from pdmodel.report.grid import layout
from pdmodel.report.text import best_simple_rule, port_groups
from pdmodel.spec import SourceKind
from pdmodel.transfer.breakdown import TransferTime

PLAN = sample_plan()


def section(document: Document, title: str) -> Section:
    return next(part for part in document.sections if part.title == title)


def rows(document: Document, title: str) -> list[tuple[str, ...]]:
    found = section(document, title).table
    assert found is not None
    return list(found.rows)


def test_plan_text(snapshot: SnapshotAssertion) -> None:
    assert to_text(plan_document(PLAN)) == snapshot


def test_plan_text_full(snapshot: SnapshotAssertion) -> None:
    assert to_text(plan_document(PLAN, full=True, full_schedule=True)) == snapshot


def test_plan_markdown(snapshot: SnapshotAssertion) -> None:
    assert to_markdown(plan_document(PLAN)) == snapshot


def test_the_first_screen_answers_in_order() -> None:
    titles = [part.title for part in plan_document(PLAN).sections]
    order = [
        "Verdict",
        "Times",
        "Ports",
        "What to set: rates",
        "What to set: knobs",
        "Enforceability",
        "Assumed inputs that matter",
        "Hazards",
        "Warnings",
        "Transfers",
        "How it was found",
    ]
    assert titles == order


def test_no_line_is_wider_than_the_terminal() -> None:
    for width in (80, 100, 140):
        text = to_text(plan_document(PLAN, full=True, full_schedule=width >= 100), width)
        assert max(len(line) for line in text.splitlines()) <= width


def test_verdict_says_its_kind_once() -> None:
    told = replace(PLAN, verdict=replace(PLAN.verdict, text="contended: unmanaged 3, plan 2."))
    assert section(plan_document(told), "Verdict").text[0] == "CONTENDED: unmanaged 3, plan 2."
    other = replace(PLAN, verdict=replace(PLAN.verdict, kind=VerdictKind.NO_SHARED_PORT, text="no collective uses it."))
    assert section(plan_document(other), "Verdict").text[0] == "NO SHARED PORT: no collective uses it."


def test_times_show_unmanaged_best_rule_and_plan_or_all() -> None:
    shown = [row[0] for row in rows(plan_document(PLAN), "Times")]
    assert shown == ["unmanaged", "strict (best simple)", "plan", "no_kv", "bytes_over_bandwidth"]
    everything = [row[0] for row in rows(plan_document(PLAN, full=True), "Times")]
    assert everything[:5] == ["unmanaged", "strict (best simple)", "after_prefill", "cap", "plan"]
    assert "2 more policies" in section(plan_document(PLAN), "Times").note


def test_times_carry_the_band() -> None:
    unmanaged = rows(plan_document(PLAN), "Times")[0]
    assert unmanaged[1] == "27.3 (25.2 .. 29.1)"
    assert unmanaged[-1] == "0.0287 (0.0209 .. 0.0341)"


def test_a_simple_rule_that_wins_is_named() -> None:
    solver = SolverResult("policy:strict", "optimal", 0.0062, 0.0, 0.01, rule="strict")
    shown = [row[0] for row in rows(plan_document(replace(PLAN, solver=solver)), "Times")]
    assert "plan (= strict)" in shown


def test_best_simple_rule_is_the_cheapest_without_a_plan() -> None:
    best = best_simple_rule(PLAN.policies)
    assert best is not None
    assert best.name == "strict"
    assert best_simple_rule([policy for policy in PLAN.policies if policy.name == "plan"]) is None


def test_of_equally_cheap_rules_the_first_is_the_best() -> None:
    costs = (("strict", 1.0), ("cap", 1.0 - 1e-14))
    equal = [replace(PLAN.policies[0], name=name, cost=cost) for name, cost in costs]
    found = best_simple_rule(equal)
    assert found is not None
    assert found.name == "strict"


def test_headroom_says_that_the_rates_are_not_worth_setting() -> None:
    relaxed = replace(PLAN, verdict=replace(PLAN.verdict, kind=VerdictKind.HEADROOM), settings=())
    assert "not worth setting" in section(plan_document(relaxed), "What to set: knobs").text[0]
    pressed = replace(PLAN, settings=())
    assert "not worth setting" not in section(plan_document(pressed), "What to set: knobs").text[0]


def test_alike_ports_share_a_line_and_shared_ports_come_first() -> None:
    shown = [row[0] for row in rows(plan_document(PLAN), "Ports")]
    assert shown == ["P/switch0/down", "P/gpu[0-1]/ingress", "P/nic0/tx"]
    assert [len(group) for group in port_groups(PLAN.ports)] == [1, 2, 1]
    assert [row[0] for row in rows(plan_document(PLAN, full=True), "Ports")] == [
        "P/switch0/down",
        "P/gpu0/ingress",
        "P/gpu1/ingress",
        "P/nic0/tx",
    ]


def test_ports_without_traffic_are_left_to_full() -> None:
    silent = replace(PLAN.ports[3], name="P/nic1/tx", kv_bytes=0.0, critical_bytes=0.0, utilisation=0.0)
    plan = replace(PLAN, ports=(*PLAN.ports, silent))
    assert "P/nic1/tx" not in to_text(plan_document(plan))
    assert "P/nic1/tx" in to_text(plan_document(plan, full=True))
    assert "1 ports not shown" in section(plan_document(plan), "Ports").note


def test_unsolved_ports_have_no_price() -> None:
    plan = replace(PLAN, ports=tuple(replace(port, shadow_price=None) for port in PLAN.ports))
    assert {row[-1] for row in rows(plan_document(plan), "Ports")} == {"-"}


def test_rates_digest_adds_up_to_the_schedule() -> None:
    digest = rows(plan_document(PLAN), "What to set: rates")
    assert digest == [
        ("2 x load", "idle: full rate", "28", "12.7 ms", "711 MB", "wait before attention, attention"),
        ("2 x load", "contended: throttled", "7", "8 ms", "112 MB", "all_reduce"),
        ("2 x send", "idle: full rate", "20", "1 ms", "40 MB", "after the prefill"),
        ("2 x send", "headroom: go on", "6.67", "9 ms", "120 MB", "attention"),
    ]
    rows_bytes = sum(r.rate_bytes_per_s * r.duration_s * (r.last_layer - r.first_layer + 1) for r in PLAN.schedule)
    assert rows_bytes == pytest.approx((711.2 + 112 + 40 + 120) * 1e6, rel=1e-3)
    assert "0.4 ms in all" in section(plan_document(PLAN), "What to set: rates").note


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schedule": ()}, "No rates to set"),
        ({"settings": ()}, "leave the defaults"),
        ({"enforceability": ()}, "Nothing to enforce"),
        ({"assumed": ()}, "None: every input that matters is measured or derived."),
    ],
)
def test_empty_parts_say_so(change: dict[str, object], words: str) -> None:
    assert words in to_text(plan_document(replace(PLAN, **change)))  # type: ignore[arg-type]


def test_missed_deadlines_come_right_after_the_times() -> None:
    titles = [part.title for part in plan_document(replace(PLAN, missed_deadlines=("send/rank0: 3 ms",))).sections]
    assert titles[2] == "Missed deadlines"


def test_late_transfers_say_by_how_much() -> None:
    late = replace(PLAN, flows=(replace(PLAN.flows[1], finish_s=0.025),))
    (row,) = rows(plan_document(late), "Transfers")
    assert row[6] == "5 ms"


def test_phase_kinds_of_one_fate_share_a_line() -> None:
    gateable = PLAN.enforceability[0]
    alike = [
        replace(gateable, phase_kind=f"{kind} beside sends", burst_s=burst)
        for kind, burst in (("a", 1e-3), ("b", 2e-3))
    ]
    document = plan_document(replace(PLAN, enforceability=(*alike, PLAN.enforceability[1])))
    assert rows(document, "Enforceability") == [
        ("a, b", "sends", "gateable", "1 ms .. 2 ms", "3 ms", "65 us"),
        ("decode step", "-", "class-only", "60 us", "0.2 ms", "0.3 ms"),
    ]
    assert section(document, "Enforceability").bullets[1] == f"gateable (sends): {gateable.text}"


def test_settings_say_name_value_place_and_reason() -> None:
    assert section(plan_document(PLAN), "What to set: knobs").bullets == (
        "mlnx_qos --ratelimit = 96 Gbit/s (NIC of rank 0, prefill side): caps the class that carries KV",
        "MC_MAX_WR = 16 (Mooncake transfer engine, prefill side): 4 MiB in flight instead of 32",
    )


def test_a_band_without_width_is_left_out() -> None:
    first = replace(PLAN.policies[0], ttft_low_s=0.0273, ttft_high_s=0.0273, cost_low=0.0287, cost_high=0.0287)
    shown = rows(plan_document(replace(PLAN, policies=(first, *PLAN.policies[1:]))), "Times")[0]
    assert (shown[1], shown[-1]) == ("27.3", "0.0287")


def test_a_full_port_is_not_hidden_behind_contended_ones() -> None:
    ports = tuple(
        replace(port, utilisation=0.99, shadow_price=0.01) if port.name == "P/nic0/tx" else port for port in PLAN.ports
    )
    assert rows(plan_document(replace(PLAN, ports=ports)), "Ports")[0][0] == "P/nic0/tx"


def test_the_control_plane_is_told_where_there_is_one() -> None:
    assert "control plane" not in to_text(plan_document(PLAN), 400)
    slow = replace(PLAN, times=replace(PLAN.times, control_s=0.0042))
    assert "of which control plane 4.2 ms" in section(plan_document(slow), "Times").note


def test_load_or_recompute() -> None:
    one = ReuseResult("turn", "host_memory", 6000, 6000, 0, 0.2, 0.9, 3.2, 9.1, 3.0, 7, 2)
    two = replace(one, tier="store", loaded_tokens=1000, recomputed_tokens=5000, load_s=1.4)
    document = plan_document(replace(PLAN, reuse=(one, two)))
    assert rows(document, "Load or recompute") == [
        ("turn", "host_memory", "6000", "6000", "0", "200 ms", "900 ms"),
        ("turn", "store", "6000", "1000", "5000", "1.400 s", "900 ms"),
    ]
    (line,) = section(document, "Load or recompute").bullets
    assert "turn: 3 GPU·s in all" in line
    assert "3.2 with the whole prefix loaded, 9.1 with nothing of it (7 splits looked at, 2 planned)" in line
    assert all(title != "Load or recompute" for title in (part.title for part in plan_document(PLAN).sections))


def test_descriptors_are_counted() -> None:
    port = replace(
        PLAN.ports[0],
        name="P/gpu0/posting",
        kind="posting",
        capacity_bytes_per_s=19.1e9,
        capacity_source=SourceKind.DERIVED,
        critical_bytes=0.0,
        kv_bytes=1.71e6 * 65536,
        utilisation=0.97,
        shadow_price=None,
    )
    document = plan_document(replace(PLAN, ports=(port, *PLAN.ports)))
    assert ("P/gpu0/posting", "19.1 derived", "-", "1.71 million descriptors", "97 %", "-") in rows(document, "Ports")
    assert "in GB/s of 64 KiB descriptors" in section(document, "Ports").note
    assert "posting" not in section(plan_document(PLAN), "Ports").note


def test_nobody_waits_for_a_write_back() -> None:
    flow = FlowResult("r0/write/P0", "writeback", 3e9, 0.002, None, 0.4, "P/gpu0>P/socket0")
    row = rows(plan_document(replace(PLAN, flows=(flow,))), "Transfers")
    assert row == [("r0/write/P0", "writeback", "3 GB", "2 ms", "-", "400 ms", "-", "P/gpu0>P/socket0")]


def test_memory() -> None:
    pools = tuple(
        MemoryResult(f"P/gpu{k}/kv", "prefill_hbm", 40e9, 31e9 if k < 2 else 8e9, 1.25, "turn, chunk 3")
        for k in range(3)
    )
    assert rows(plan_document(replace(PLAN, memory=pools)), "Memory") == [
        ("P/gpu[0-1]/kv", "40 GB", "31 GB", "78 %", "1.250 s", "turn, chunk 3"),
        ("P/gpu2/kv", "40 GB", "8 GB", "20 %", "1.250 s", "turn, chunk 3"),
    ]
    assert len(rows(plan_document(replace(PLAN, memory=pools), full=True), "Memory")) == 3


SLOW = TransferTime(
    request="turn",
    bytes=3.22e9,
    pairs=8,
    senders=4,
    descriptors=12_600_000,
    run_bytes=256.0,
    bandwidth_s=0.14,
    descriptors_s=10.7,
    messages_s=0.2,
    setup_s=0.002,
    staging_s=0.0,
    control_s=0.168,
    time_s=10.87,
    bound_by="descriptors",
    port="P/nic0/tx",
    fix_lever="HND",
    fix="HND pages on both sides",
    fix_time_s=0.171,
)


def test_where_the_transfer_time_goes() -> None:
    slow = SLOW
    fast = replace(slow, request="short", time_s=0.31, bound_by="bandwidth", fix="", fix_lever="", fix_time_s=None)
    document = plan_document(replace(PLAN, transfer_times=(fast, slow)))
    title = "Where the transfer time goes"
    assert rows(document, title) == [("turn", "0.14", "10.7", "0.2", "0.002", "0", "0.168", "10.9")]
    (line,) = section(document, title).bullets
    assert line == (
        "turn: 3.22 GB in 12.6 million descriptors of 256 B, bound by descriptors; cheapest fix: HND pages on both "
        "sides, 171 ms instead of 10.870 s"
    )
    assert section(document, title).note.startswith("Terms in s,")
    assert section(document, title).note.endswith("1 more requests: --full.")
    both = section(plan_document(replace(PLAN, transfer_times=(fast, slow)), full=True), title)
    assert "descriptors of 256 B, bound by bandwidth (P/nic0/tx); no change" in both.bullets[0]


@pytest.mark.parametrize("width", [80, 100])
def test_where_the_transfer_time_goes_in_a_narrow_terminal(width: int, snapshot: SnapshotAssertion) -> None:
    small = replace(SLOW, request="a_turn_of_a_long_name", staging_s=1.23e-4, setup_s=1.84e-3, messages_s=1.23e-4)
    document = plan_document(replace(PLAN, transfer_times=(small, SLOW)), full=True)
    part = section(document, "Where the transfer time goes")
    text = to_text(replace(document, title="", subtitle="", sections=(part,)), width)
    assert part.table is not None
    assert max(len(line) for lines in layout(part.table, width - 2) for line in lines) <= width - 2
    assert text == snapshot


def test_a_rule_that_breaks_memory_is_not_the_best_simple_one() -> None:
    reason = "D/gpu0/hbm holds 45 GB of 40 GB at 1.000 s (turn)"
    broken = tuple(replace(one, breaks=reason) if one.name == "strict" else one for one in PLAN.policies)
    best = best_simple_rule(broken)
    assert best is not None
    assert best.name == "cap"
    document = plan_document(replace(PLAN, policies=broken), full=True)
    assert any(line.endswith(f"does not fit: {reason}") for line in section(document, "Times").bullets)


def test_many_transfers_of_one_name_share_a_line() -> None:
    flows = tuple(
        FlowResult(f"turn/prefetch/P{k}", "load", 7e8, 0.0, 0.01, 0.01 * (k + 1), "P/nic0>P/socket0") for k in range(12)
    )
    assert rows(plan_document(replace(PLAN, flows=flows)), "Transfers") == [
        (
            "turn/prefetch/P[0-11]",
            "load",
            "700 MB",
            "0 ms",
            "10 ms",
            "10 ms .. 120 ms",
            "0 ms .. 110 ms",
            "P/nic0>P/socket0",
        )
    ]
    assert len(rows(plan_document(replace(PLAN, flows=flows[:3])), "Transfers")) == 3
