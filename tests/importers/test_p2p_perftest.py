"""Measured copies and tables of perftest, in every form that the programs print."""

import json

import pytest
from made_boxes import nvbandwidth, p2p_log, perftest

from pdmodel.errors import InputError
from pdmodel.importers import p2p
from pdmodel.importers import perftest as perf
from pdmodel.importers.p2p import Measure, Path


def test_every_matrix_of_the_cuda_sample():
    log = p2p.parse(p2p_log(4, lambda a, b: 50 + a + b / 10), "p2p.txt")
    assert (log.program, log.gpu_count, log.refused) == ("p2pBandwidthLatencyTest", 4, ())
    assert log.gpus[3] == "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    enabled = [one for one in log.find(Path.GPU_TO_GPU, Measure.ONE_WAY) if one.p2p]
    assert enabled[0].cells[2, 1] == 52.1 and (2, 2) not in enabled[0].between
    assert len(log.find(Path.GPU_TO_GPU, Measure.LATENCY)) == 2  # by the GPU, by the CPU
    assert log.find(Path.GPU_TO_GPU, Measure.BOTH_WAYS)[0].cells[0, 1] == pytest.approx(1.95 * 50.1, abs=0.01)


def test_pairs_without_p2p():
    log = p2p.parse(p2p_log(2, lambda a, b: 5.7, access=False), "p2p.txt")
    assert log.refused == ((0, 1), (1, 0))
    assert any("staged" in text for text in log.warnings)


def test_a_row_that_was_cut_is_left_out_by_name():
    text = p2p_log(3, lambda a, b: 50.0)
    cut = text[: text.index("Bidirectional")].rstrip().rsplit(None, 1)[0]
    log = p2p.parse(cut, "p2p.txt")
    assert any("row 2 left out" in warning for warning in log.warnings)
    assert any("no row 2" in warning for warning in log.warnings)


def test_a_direction_that_is_slower_is_said():
    log = p2p.parse(p2p_log(2, lambda a, b: 50.0 if a < b else 25.0), "p2p.txt")
    assert any("not symmetric" in text for text in log.warnings)


def test_nvbandwidth_as_text_and_as_json():
    tests = {
        "host_to_device_memcpy_ce": [[55.3, 55.2]],
        "device_to_host_memcpy_ce": [[54.1, 54.0]],
        "device_to_device_memcpy_write_ce": [[None, 276.1], [276.4, None]],
        "all_to_host_memcpy_ce": [[54.0, 54.0]],
    }
    log = p2p.parse(nvbandwidth(tests), "nvb.txt")
    assert log.program == "nvbandwidth" and log.gpu_count == 2 and log.gpus[1] == "NVIDIA H100 80GB HBM3"
    assert log.find(Path.HOST_TO_GPU, Measure.ONE_WAY)[0].cells == {(0, 0): 55.3, (0, 1): 55.2}
    assert log.find(Path.GPU_TO_GPU, Measure.ONE_WAY)[0].between == {(0, 1): 276.1, (1, 0): 276.4}
    assert len(log.matrices) == 3  # of all GPUs at once: no link's rate
    cases = [
        {
            "name": name,
            "status": "Passed",
            "bandwidth_matrix": [["N/A" if v is None else str(v) for v in row] for row in rows],
        }
        for name, rows in tests.items()
    ]
    listed = ["0: NVIDIA H100 80GB HBM3 (00000000:01:00)"]
    same = p2p.parse(json.dumps({"nvbandwidth": {"GPU Device List": listed, "testcases": cases}}), "nvb.json")
    assert same.gpus == {0: "NVIDIA H100 80GB HBM3"}
    assert [one.cells for one in same.matrices] == [one.cells for one in log.matrices]


def test_a_test_that_was_waived():
    text = nvbandwidth({"host_to_device_memcpy_ce": [[55.3]]}) + "Running device_to_device_memcpy_read_ce.\nWaived.\n"
    assert any("waived" in warning for warning in p2p.parse(text, "x").warnings)


@pytest.mark.parametrize("text", ["", "{}", '{"nvbandwidth": {"testcases": 3}}', "GPU0 GPU1", "Running x.\n"])
def test_no_matrix_is_refused(text):
    with pytest.raises(InputError):
        p2p.parse(text, "x.txt")


@pytest.mark.parametrize("unit", ["Gb/sec", "MB/sec", "MiB/sec"])
@pytest.mark.parametrize("program", ["ib_write_bw", "ib_read_bw", "ib_send_bw"])
def test_units_and_programs(program, unit):
    table = perf.parse(perftest(program, unit=unit), "ib.txt").tables[0]
    assert table.operation == program.split("_")[1]
    assert table.best.bytes_per_s == pytest.approx(390e9 / 8, rel=1e-3)
    assert table.best.size_bytes >= 65536
    assert (table.device, table.qps, table.mtu, table.gpu, table.bidirectional) == ("mlx5_2", 2, 4096, False, False)


def test_gpu_memory_and_both_ways():
    log = perf.parse(perftest(cuda=True) + perftest(both=True, gbit=700), "ib.txt")
    assert [(one.gpu, one.bidirectional) for one in log.tables] == [(True, False), (False, True)]


def test_a_wrong_unit_contradicts_the_messages():
    text = perftest().replace("Gb/sec", "MB/sec")
    assert any("wrong unit" in warning for warning in perf.parse(text, "x").warnings)


def test_small_messages_and_one_queue_pair_are_said():
    lines = perftest().replace("qps   : 2", "qps   : 1").splitlines()
    small = "\n".join(line for line in lines if not line.strip().startswith(("65536", "1048576")))
    warnings = perf.parse(small, "x").warnings
    assert any("message rate" in text for text in warnings) and any("one queue pair" in text for text in warnings)


def test_a_figure_in_a_sentence_counts():
    text = "ib_write_bw  65536 B: 11025.44 peak / 11024.71 avg MB/s, 0.176395 Mpps\nib_write_lat 2 B: typical 1.58"
    table = perf.parse(text, "x").tables[0]
    assert table.best.bytes_per_s == pytest.approx(0.176395e6 * 65536, rel=1e-4)


def test_latencies_alone_are_refused():
    text = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n 2 1000 1.5 2.1 1.6\n"
    with pytest.raises(InputError, match="only latencies"):
        perf.parse(text, "x")
