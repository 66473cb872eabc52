"""Short logs of benchmarks as they are printed: figures of public documentation, and made-up ones."""

# ruff: noqa: E501  (logs are as wide as they are)

import json
from pathlib import Path


def printed(name: str) -> str:
    """Return a log of `tests/golden/logs`."""
    return (Path(__file__).parent / "golden" / "logs" / f"{name}.txt").read_text(encoding="utf-8")


NCCL = printed("nccl")
"""Two tests in one log, with what NCCL logs between the rows."""

NCCL_OLD = printed("nccl_old")
"""Rows of the RoCE guide of NVIDIA's deepops (BSD-3-Clause): no root, largest error, no word of ranks or collective."""

NCCL_1 = printed("nccl_1")
"""What version 1 of nccl-tests prints, made up: times in ms, and headers that do not say so."""

NCCL_EXCERPT = printed("nccl_excerpt")
"""Excerpts without headers, in the columns of versions that leave out what a collective has not."""

NCCL_EACH = printed("nccl_each")
"""Per-iteration columns and timestamps; the last row has wrong results in place."""

RCCL_TAGGED = "".join(
    f"[1,0]<stdout>:{line}\n"
    for line in (
        "# nThread 1 nGpus 2 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1",
        "rccl-tests: Version develop:3f7f785",
        "#   Rank  0 Pid  21284 on host-a device  0 [0000:2f:00.0] AMD Instinct MI100",
        "#   Rank  1 Pid  21284 on host-a device  1 [0000:03:00.0] AMD Instinct MI100",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
        "    40046416      10011604     float    none       0   1268.1   31.58   31.58      0   1279.3   31.30   31.30      0",
    )
)
"""What rccl-tests prints under mpirun --tag-output; a broadcast, which the log does not say."""


def nccl_json() -> str:
    """Return what nccl-tests writes with -J, version 3, with an environment that holds secrets."""
    side = {"time": 100.0, "alg_bw": 10.48576, "bus_bw": 15.72864, "nwrong": 0.0}
    each = {
        "skipped_iterations": 0,
        "min_us": 95.0,
        "max_us": 110.0,
        "avg_us": 100.0,
        "p50_us": 99.0,
        "p95_us": 108.0,
        "p99_us": 110.0,
        "stdev_us": 4.0,
        "cv_pct": 4.0,
        "times_us": [95.0, 99.0, 110.0, "nan"],
    }
    row = {"size": 1048576, "count": 262144, "type": "float", "redop": "sum", "root": "    -1"}
    devices = [
        {"rank": k, "group": 0, "pid": 7, "hostname": f"secret-host-{k // 2}", "device": k, "device_info": "H100"}
        for k in range(4)
    ]
    data = {
        "version": 3,
        "start_time": "2026-03-01 10:00:00",
        "args": ["./build/all_reduce_perf", "-b", "1M", "-a", "3", "--token", "TOPSECRET-ARGUMENT"],
        "env": ["PATH=/usr/bin", "AWS_SECRET_ACCESS_KEY=TOPSECRET-KEY", "NCCL_ALGO=Tree", "NCCL_PROTO=LL128"],
        "nccl_version": 22809,
        "config": {"nthreads": 1, "ngpus": 1, "iterations": 20, "blocking_collectives": "false", "devices": devices},
        "results": [
            row | {"actual_iterations": 20, "experiment_name": "", "out_of_place": side, "in_place": None},
            row
            | {
                "out_of_place": side | {"nwrong": None},
                "out_of_place_per_iter": each,
                "in_place": side | {"time": "nan", "alg_bw": "nan", "bus_bw": "nan"},
            },
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 15.7, "okay": "unchecked"},
        "errors": [],
        "end_time": "2026-03-01 10:00:09",
    }
    return json.dumps(data)


OSU = printed("osu")
"""Four OSU micro-benchmarks in one log."""

IMB = printed("imb")
"""Three Intel MPI benchmarks; a size that was not measured, and a throughput that is not that of its time."""

TIDY = printed("tidy")
"""Tidy CSV with a column of its own, a collective of its own, and a remark."""

WIDE = printed("wide")
"""CSV with both sides in a row."""

OSU_MORE = printed("osu_more")
"""Non-blocking, uneven, paired and one-sided benchmarks, one that is not read, and two tables without their headings."""

IMB_MORE = printed("imb_more")
"""A non-blocking benchmark, one of several groups, one of several pairs, and a one-sided one that is not read."""

PERFTEST = printed("perftest")
"""Three benchmarks of perftest; the second row's rate is not that of its messages."""


def inspector(*, rank: int = 0, micros: int = 100) -> str:
    """Return what the NCCL inspector writes of one rank of four on two nodes: an all-gather, a message, an all-to-all."""
    header = {"id": "0x7f", "rank": rank, "n_ranks": 4, "nnodes": 2}
    host = {"inspector_output_format_version": "v4.0", "hostname": "TOPSECRET-HOST", "pid": 7}
    rate = 4 * 2**20 / micros / 1e3
    of = {"coll": "AllGather", "coll_sn": 3, "coll_msg_size_bytes": 2**20, "coll_exec_time_us": micros}
    of |= {"coll_algobw_gbs": round(rate, 6), "coll_busbw_gbs": round(0.75 * rate, 6)}
    message = {"p2p": "Send", "p2p_sn": 4, "p2p_peer": 1, "p2p_msg_size_bytes": 4096, "p2p_exec_time_us": 12}
    odd = {"coll": "Odd", "coll_sn": 5, "coll_msg_size_bytes": 1, "coll_exec_time_us": 1}
    entries = ({"coll_perf": of}, {"p2p_perf": message}, {"coll_perf": odd})
    return "\n".join(json.dumps({"header": header, "metadata": host} | one) for one in entries)


def kineto(*, rank: int = 0, micros: float = 120.5) -> str:
    """Return a trace of the PyTorch profiler of one rank of two: NCCL kernels with what they do, and without."""

    def event(name: str, category: str, dur: float, **args: object) -> dict[str, object]:
        return {"ph": "X", "cat": category, "name": name, "pid": rank, "tid": 7, "ts": 10.0, "dur": dur, "args": args}

    group = {"Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    gather = {"Collective name": "_allgather_base", "dtype": "BFloat16", "In msg nelems": 1024, "Out msg nelems": 2048}
    reduce = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 256, "Out msg nelems": 256}
    events = [
        event("aten::add", "cpu_op", 3.0),
        event(
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "kernel",
            micros,
            **gather,
            **group,
            Seq=5,
        ),
        event("record_param_comms", "cpu_op", 12.5, **reduce, **group, **{"External id": 9}),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", "kernel", 40.0, **{"External id": 9}),
        event("ncclDevKernel_SendRecv()", "kernel", 70.0, **{"External id": 11}),
        event("gemm", "kernel", 500.0, **{"External id": 10}),
    ]
    trace = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
    return json.dumps(trace | {"traceEvents": events, "traceName": "TOPSECRET-PATH"})


def rccl_records(*, csv: bool = False) -> str:
    """Return records of rccl-tests, as JSON or as CSV: both sides of an all-reduce over 8 ranks."""
    one = {"numCycle": 0, "name": "AllReduce", "nodes": 2, "ranks": 8, "ranksPerNode": 4, "gpusPerRank": 1}
    one |= {"size": 1048576, "type": "float", "redop": "sum", "inPlace": 0, "time": "60.500000"}
    one |= {"algBw": "17.331835", "busBw": "30.330711", "wrong": "0"}
    both = [one, one | {"inPlace": 1}]
    if csv:
        return ",".join(one) + "\n" + "".join(",".join(map(str, each.values())) + "\n" for each in both)
    texts = [json.dumps(each).replace('"60.500000"', "60.500000") for each in both]
    return "[\n" + ",\n".join(texts) + "\n]\n"


ALL = {
    "nccl": NCCL,
    "nccl old": NCCL_OLD,
    "nccl 1": NCCL_1,
    "nccl excerpt": NCCL_EXCERPT,
    "nccl each": NCCL_EACH,
    "nccl-json": nccl_json(),
    "osu": OSU,
    "imb": IMB,
    "tidy": TIDY,
    "wide": WIDE,
    "osu more": OSU_MORE,
    "imb more": IMB_MORE,
    "perftest": PERFTEST,
    "inspector": inspector(),
    "kineto": kineto(),
    "rccl": rccl_records(),
    "rccl csv": rccl_records(csv=True),
}
"""Every log whose collective is known, by its kind and more."""


def put(folder, text, name="a.log"):
    """Write a log, of text or bytes, below a folder, and return its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path
