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

RCCL_TAGGED = printed("rccl_tagged")
"""What rccl-tests prints under mpirun --tag-output; a broadcast, which the log does not say."""


NCCL_JSON = printed("nccl_json")
"""What nccl-tests writes with -J, version 3, with an environment that holds secrets."""

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


INSPECTOR = printed("inspector")
"""What the NCCL inspector writes of one rank of four on two nodes: an all-gather, a message, an unknown collective."""


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


RCCL_JSON, RCCL_CSV = printed("rccl_json"), printed("rccl_csv")
"""Records of rccl-tests: both sides of an all-reduce over 8 ranks."""

ALL = {
    "nccl": NCCL,
    "nccl old": NCCL_OLD,
    "nccl 1": NCCL_1,
    "nccl excerpt": NCCL_EXCERPT,
    "nccl each": NCCL_EACH,
    "nccl-json": NCCL_JSON,
    "osu": OSU,
    "imb": IMB,
    "tidy": TIDY,
    "wide": WIDE,
    "osu more": OSU_MORE,
    "imb more": IMB_MORE,
    "perftest": PERFTEST,
    "inspector": INSPECTOR,
    "kineto": kineto(),
    "rccl": RCCL_JSON,
    "rccl csv": RCCL_CSV,
    **{name: printed(name.replace(" ", "_")) for name in ("gloo", "gloo old", "param", "ucc", "deepspeed")},
    **{
        name: printed(name.replace(" ", "_")) for name in ("deepspeed-log", "hccl", "mscclpp", "mscclpp bench", "nccom")
    },
    "imb oneccl": printed("oneccl"),
    "iperf3": printed("iperf3"),
    "ping": printed("ping"),
}
"""Every log whose collective is known, by its kind and more."""


def put(folder, text, name="a.log"):
    """Write a log, of text or bytes, below a folder, and return its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path
