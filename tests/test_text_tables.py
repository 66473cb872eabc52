"""Labels that launchers put in front of lines, and the tables of benchmarks that are read by their columns."""

import json
import re

import pytest

import benchmark_logs as logs
from benchmark_logs import put
from commands import did, refused
from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers import read_logs, read_measurements, total_bytes

NCCL_16 = logs.printed("nccl_16")
LABELS = dict(line.split(" = ", 1) for line in logs.printed("labels").splitlines())


@pytest.mark.parametrize("name", LABELS)
def test_what_stands_in_front_of_all_rows_alike_is_a_label(name, tmp_path):
    def labelled(text):
        label = LABELS[name].encode().decode("unicode_escape")
        lines = (label.format(line=line, at=at) for at, line in enumerate(text.splitlines(), 1))
        return put(tmp_path, "".join(f"{line}\n" for line in lines))

    measured = read_measurements(labelled(NCCL_16))
    rows = measured.rows
    assert not measured.problems
    assert (len(rows), set(rows["ranks"]), set(rows["nodes"]), rows["seconds"][9]) == (10, {16}, {2}, 12678.6e-6)
    osu = read_measurements(labelled(logs.OSU)).rows
    assert osu["seconds"].tolist() == read_measurements(put(tmp_path, logs.OSU)).rows["seconds"].tolist()


def test_rows_without_any_heading_have_labels_too(tmp_path):
    for label in ("[1,0]<stdout>:", "2025-03-03 09:00:01 "):
        table = put(tmp_path, f"{label}8   12.5\n{label}16   13.5\n", "osu_allreduce.log")
        assert read_measurements(table).rows["seconds"].tolist() == [12.5e-6, 13.5e-6]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("[0] ", ""),
        ("0: ", ""),
        ("2025-03-03 09:00:59 [0] ", ""),
        ("", "gpu-1:4101:4133 [0] NCCL INFO 8192 Bytes -> Algo 0 proto 0 time 26.5\n"),
        ("[0] ", "gpu-1:4101:4133 [0] NCCL INFO 8192 Bytes -> Algo 0 proto 0 time 26.5\n"),
    ],
)
def test_parts_of_a_row_make_a_row(label, message, tmp_path):
    parts = re.sub(r"(?<=  -1)|(?<=      0)(?=  )", label.replace(":59", ":60") + message, NCCL_16)
    text = "".join(f"{label}{line}\n" for line in parts.splitlines())
    measured = read_measurements(put(tmp_path, text))
    assert (len(measured), measured.problems) == (10, ())
    assert measured.rows["seconds"].tolist()[-2:] == [12806.6e-6, 12678.6e-6]


def test_lines_without_the_label_and_comments_stay_as_they_are(tmp_path):
    lines = NCCL_16.splitlines()
    text = "".join(f"gpu-1: {line}\n" for line in lines[:-3]) + "# 4096 1024 float no row\n" + lines[-3]
    assert read_measurements(put(tmp_path, text)).rows["nbytes"].nunique() == 5


def test_a_row_that_is_seen_and_not_read_is_said(tmp_path):
    cut = "".join(f"gpu-1: {line[:80] if '16777216' in line else line}\n" for line in NCCL_16.splitlines())
    (problem,) = read_measurements(put(tmp_path, cut)).problems
    assert (problem.line, problem.dropped) == (27, True)
    with pytest.raises(InputError, match=re.escape("a.log:2: has rows of numbers ('[0] 100 20.5 30'), but holds no ")):
        read_measurements(put(tmp_path, "[0] size time rate\n[0] 100   20.5 30\n[0] 200 30.5 40\n"))


@pytest.mark.parametrize("name", ["kubectl_prefix", "mpirun_timestamp", "pdsh", "prepend_rank_inside_rows", "torchrun"])
def test_labelled_logs_are_one_curve(name, shared, tmp_path):
    log = shared / "cases" / "labels" / f"{name}.log"
    figures = json.loads(did("calibrate", log, "-o", tmp_path / "f.yaml", "--json").stdout)
    assert (figures["rows_read"], figures["curves"], figures["problems"]) == (5, 1, [])
    assert (set(read_logs(log).rows["ranks"]), set(read_logs(log).rows["nodes"])) == ({16}, {2})


@pytest.mark.parametrize(
    ("name", "collective", "ranks", "nbytes", "seconds"),
    [
        ("gloo", "all_reduce", 4, [400, 40000, 4000000], [163e-6, 357e-6, 9365e-6]),
        ("gloo_old", "all_reduce", 2, [400, 400000, 20000000], [210e-6, 3700e-6, 0.18]),
        ("param", "all_gather", 16, [1048576, 67108864], [91.4e-6, 935.1e-6]),
        ("ucc", "all_gather", 16, [8192, 1048576], [14.02e-6, 331.2e-6]),
        ("deepspeed", None, 8, [8 * 32768 * 4, 8 * 17589862 * 4, 8501054668 * 4], [92.13e-6, 12.207e-3, 3.17662]),
        ("hccl", "all_gather", 8, [8192, 67108864], [764.55e-6, 2630.2e-6]),
        ("mscclpp", "all_reduce", 16, [1024, 134217728], [18.74e-6, 1112e-6]),
        ("mscclpp_bench", "all_gather", None, [80 * 1024, 40 * 2**20], [7.21e-6, 175.4e-6]),
        ("oneccl", "all_reduce", 2, [4, 512, 1048576], [30.68e-6, 30.34e-6, 521.9e-6]),
        ("nccom", "all_reduce", 2, [33554432, 67108864, 134217728], [768e-6, 1520e-6, 7025.52e-6]),
        ("iperf3", "p2p_bw", 2, [1181116006], [1181116006 * 8 / 939e6]),
        ("ping", "p2p_latency", 2, [64, 64, 64], [10.2e-3, 10.05e-3, 10.1e-3]),
    ],
)  # fmt: skip
def test_tables_of_benchmarks(name, collective, ranks, nbytes, seconds, tmp_path):
    measured = read_measurements(put(tmp_path, logs.printed(name)))
    rows = measured.rows
    assert not measured.problems
    assert set(rows["collective"]) == ({collective} if collective else {"all_gather", "all_reduce"})
    assert set(rows["ranks"].dropna()) == ({ranks} if ranks else set())
    assert rows["seconds"].tolist() == pytest.approx(seconds)
    assert total_bytes(rows if ranks else rows.assign(ranks=8)).tolist() == pytest.approx(nbytes)


def test_the_log_of_deepspeed_names_collectives_between_the_rows(tmp_path):
    measured = read_measurements(put(tmp_path, logs.printed("deepspeed-log")), facts={"ranks": 8})
    assert measured.rows["collective"].tolist() == ["broadcast", "all_gather", "reduce_scatter"]
    assert measured.rows["variant"].tolist() == ["", "all_gather_base", "reduce_scatter_base"]
    assert measured.rows["seconds"].tolist() == pytest.approx([8e-5, 6e-5, 9.69e-3])
    assert total_bytes(measured.rows).tolist() == [2**21, 8 * 2**19, round(678.86 * 2**20)]
    assert [one.line for one in measured.problems] == [7]
    assert "'log_summary_barrier' is no collective that is read" in measured.problems[0].message


def test_what_iperf3_writes_as_json(tmp_path):
    end = {"sum_sent": {"bytes": 5, "seconds": 1}, "sum_received": {"bytes": 1178000000, "seconds": 10.04}}
    text = json.dumps({"start": {"version": "iperf 3.9"}, "end": end})
    assert read_measurements(put(tmp_path, text)).rows["seconds"].tolist() == [10.04]
    # A sum of UDP is what was sent, with the share that was lost.
    text = text.replace(json.dumps(end), json.dumps({"sum": {"bytes": 1000, "seconds": 2, "lost_percent": 40}}))
    assert read_measurements(put(tmp_path, text)).rows["nbytes"].tolist() == [600]
    for role in ("", "[RX-C]"):
        text = f"[  4]{role}   0.00-10.00  sec  10.0 MBytes  1.00 MBytes/sec   receiver"
        assert read_measurements(put(tmp_path, text)).rows["seconds"].tolist() == [10.0]


@pytest.mark.parametrize(
    ("name", "facts", "seconds"),
    [
        ("gloo_benchmark", [16], {2e7: 0.18}),
        ("param_comms", [16], {1048576: 60e-6, 67108864: 800e-6}),
        ("ucc_perftest", [16], {1024: 14e-6, 65536: 61.2e-6, 1048576: 600e-6}),
        ("oneccl", [], {4096: 21e-6, 4194304: 3.1e-3}),
    ],
)
def test_benchmarks_are_calibrated(name, facts, seconds, shared, tmp_path):
    log = shared / "cases" / "benchmarks" / f"{name}.txt"
    did("calibrate", log, *(f"--fact=ranks={one}" for one in facts), "-o", tmp_path / "f.yaml")
    rows = read_logs(log).rows
    assert {size: rows["seconds"][rows["nbytes"] == size].item() for size in seconds} == pytest.approx(seconds)
    assert set(rows["collective"]) == {"all_reduce"}


@pytest.mark.parametrize(
    ("name", "cut", "next_", "assumed"),
    [
        ("ping", None, "simnet time all_reduce --latency '10.1 ms'", ""),
        ("oneccl", None, "simnet time all_reduce --network fabric.yaml, after --out fabric.yaml", ""),
        # Rows that are left out are said in the answer.
        ("nccl_16", -120, "simnet time all_reduce --network fabric.yaml, after --out fabric.yaml", "1 remark on "),
    ],
)
def test_calibrate_says_what_to_ask_and_what_was_left_out(name, cut, next_, assumed, tmp_path):
    log = put(tmp_path, logs.printed(name)[:cut])
    said = json.loads(did("calibrate", log, "--json").stdout)
    assert said["next"] == next_
    assert (said["assumed"].startswith(assumed), bool(said["assumed"])) == (True, bool(assumed))


def test_logs_of_ping_and_iperf3_together_are_a_link(tmp_path):
    (tmp_path / "wan").mkdir()
    for name in ("ping", "iperf3"):
        (tmp_path / "wan" / f"{name}.txt").write_text(logs.printed(name))
    flags = "--latency '10.1 ms' --bandwidth '939 Mbit/s'"
    said = json.loads(did("calibrate", tmp_path / "wan", "-o", tmp_path / "wan.yaml", "--json").stdout)
    assert said["answer"].endswith(f": a link, which every verb takes as {flags}.")
    assert "tool" not in said["depends_on"]
    assert f"and give {flags} to other verbs" in refused("calibrate", tmp_path / "wan", "--network", "star")
    assert "of ping and iperf3 take --latency" in refused("choose", "--network", tmp_path / "wan.yaml")


def test_an_execution_trace_of_pytorch_is_called_by_its_name(shared, tmp_path):
    trace = shared / "cases" / "traces" / "pytorch_execution_trace.json"
    said = refused("calibrate", trace, "-o", tmp_path / "f.yaml")
    assert (
        "is an execution trace of PyTorch (ExecutionTraceObserver), which has no times; give the Kineto trace" in said
    )
