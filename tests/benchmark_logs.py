"""Short logs of benchmarks as they are printed: figures of public documentation, and made-up ones."""

# ruff: noqa: E501  (logs are as wide as they are)

import json

NCCL = """\
+ srun -N2 --ntasks-per-node=2 ./build/all_reduce_perf -b 1M -e 4M -f 2
# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid  15784 on  node-one device  0 [0009:01:00] NVIDIA GH200 120GB
#  Rank  1 Group  0 Pid  15785 on  node-one device  1 [0009:02:00] NVIDIA GH200 120GB
#  Rank  2 Group  0 Pid  24926 on  node-two device  0 [0009:01:00] NVIDIA GH200 120GB
#  Rank  3 Group  0 Pid  24927 on  node-two device  1 [0009:02:00] NVIDIA GH200 120GB
node-one:15784:15784 [0] NCCL INFO NCCL_ALGO set by environment to Ring
node-one:15784:15801 [0] NCCL INFO comm 0x55d8 rank 0 nranks 4 cudaDev 0 busId 1000 - Init COMPLETE
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    105.9    9.90   14.85      0    105.7    9.92   14.88      0
node-two:24926:24999 [0] NCCL INFO Channel 00/02 :    0   1
     2097152        524288     float     sum      -1    142.1   14.76   22.14      0    140.4   14.94   22.41      0
     4194304       1048576     float     sum      -1    177.1   23.68   35.52      0    176.7   23.74   35.61      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 24.235
#
# Collective test concluded: all_reduce_perf
#
# Collective test starting: all_gather_perf
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 1 iters: 50 agg iters: 1 validation: 1 graph: 0
# Using devices
#  Rank  0 Group  0 Pid  15784 on  node-one device  0 [0009:01:00] NVIDIA GH200 120GB
#  Rank  1 Group  0 Pid  15785 on  node-one device  1 [0009:02:00] NVIDIA GH200 120GB
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        131072     float    none      -1    80.00   13.11    6.55      0    80.00   13.11    6.55    N/A
     2097152        262144     float    none      -1    100.0   20.97   10.49      0    100.0   20.97   10.49    N/A
"""
"""Two tests in one log, with what NCCL logs between the rows."""

NCCL_OLD = """\
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
          8             2   float     sum   2193.5    0.00    0.00  2e-07    132.2    0.00    0.00  2e-07
    8388608       2097152   float     sum    906.8    9.25   17.34  5e-07    847.9    9.89   18.55  5e-07
 2147483648     536870912   float     sum   175667   12.22   22.92  5e-07   176189   12.19   22.85  5e-07
"""
"""Rows of the RoCE guide of NVIDIA's deepops (BSD-3-Clause): no root, largest error, no word of ranks or collective."""

NCCL_1 = """\
# NCCL Tests compiled with NCCL 2.1
# Using devices
#   Rank  0 on     dgx-1 device  0 [0x06] Tesla V100-SXM2-16GB
#                                                 out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
       65536         16384   float     sum    0.052   1.26   2.21    4e-07    0.051   1.29   2.25    4e-07
    33554432       8388608   float     sum    0.504  66.58 116.51    4e-07    0.502  66.84 116.97    4e-07
   134217728      33554432   float     sum    1.897  70.75 123.82    4e-07    1.894  70.86 124.01    4e-07
"""
"""What version 1 of nccl-tests prints, made up: times in ms, and headers that do not say so."""

NCCL_EXCERPT = """\
## nccl_allgather.log | all_gather nranks=8 nnodes=1
          0             0   float    34.27    0.00    0.00    N/A    33.57    0.00    0.00    N/A
   16777216        524288   float    167.7  100.03   87.52    N/A    164.6  101.94   89.20    N/A
## nccl_broadcast.log | broadcast nranks=8 nnodes=1
    1048576        262144   float       0    50.00   20.97   20.97  0e+00    50.00   20.97   20.97  0e+00
"""
"""Excerpts without headers, in the columns of versions that leave out what a collective has not."""

NCCL_EACH = """\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 1024 maxBytes 2048 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#                                                              out-of-place (+ per-iteration)                                in-place (+ per-iteration)
#       size         count      type   redop    root     time   algbw   busbw #wrong    i_min    i_max    i_p99    i_cv%     time   algbw   busbw #wrong    i_min    i_max    i_p99    i_cv% timestamp
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)     (us)     (us)      (%)     (us)  (GB/s)  (GB/s)            (us)     (us)     (us)      (%) %Y-%m-%d %H:%M:%S
        1024           256     float     sum      -1    20.00    0.05    0.09      0    18.00    25.00    24.50     5.00    20.00    0.05    0.09      0    18.00    25.00    24.50     5.00  2026-03-01 10:00:00
        2048           512     float     sum      -1    21.00    0.10    0.17      0    18.50    26.00    24.75     5.00    21.00    0.10    0.17      2    18.50    26.00    24.75     5.00  2026-03-01 10:00:01
"""
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


OSU = """\
$ srun -N 2 -n 8 --mpi=pmix osu_allgather -f

# OSU MPI Allgather Latency Test v7.5
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
1                       2.24              0.42              2.94        5000
1024                   12.79              9.45             15.70        5000
$ mpirun -np 16 osu_allreduce
# OSU MPI-CUDA Allreduce Latency Test v5.8
# Size       Avg Latency(us)
4                      12.45
8                      12.41
# OSU MPI Latency Test v7.5
# Size          Latency (us)
0                       1.26
1024                    2.10
# OSU MPI Bandwidth Test v7.5
# Datatype: MPI_CHAR.
# Size      Bandwidth (MB/s)        Validation
1048576              2048.00              Pass
2097152              2048.00              Fail
"""
"""Four OSU micro-benchmarks in one log."""

IMB = """\
# Calling sequence was:
# ./IMB-MPI1 allreduce pingpong
# MPI_Datatype for reductions    :   MPI_FLOAT
# MPI_Op                         :   MPI_SUM

#----------------------------------------------------------------
# Benchmarking Allreduce
# #processes = 144
# ( 16 additional processes waiting in MPI_Barrier)
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0         1000         0.03         0.03         0.03
            8         1000         4.50        18.59        11.69
        65536          640 out-of-mem.
#---------------------------------------------------
# Benchmarking PingPong
# #processes = 2
#---------------------------------------------------
       #bytes #repetitions      t[usec]   Mbytes/sec
            0         1000         1.66         0.00
            8         1000         1.66         4.81
         1024         1000         3.09       316.00
         2048         1000         3.09       999.00
#----------------------------------------------------------------
# Benchmarking Barrier
# #processes = 16
#----------------------------------------------------------------
 #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         1000         5.10         5.30         5.20
"""
"""Three Intel MPI benchmarks; a size that was not measured, and a throughput that is not that of its time."""

TIDY = """\
# replayed on a cluster
collective,algorithm,ranks,nodes,nbytes,seconds,statistic,iteration,in_place,algbw,busbw,site
all_reduce,ring,8,2,1048576,0.0001,max,0,false,1.048576e+10,1.835e+10,Bergen
all_reduce,ring,8,2,1048576,0.00011,max,1,,,,Bergen
ag_topk,ring,8,2,2048,2.5e-05,max,0,,,,Bergen
"""
"""Tidy CSV with a column of its own, a collective of its own, and a remark."""

WIDE = """\
dataset,variant,run,collective,algo,proto,nranks,nnodes,ranks_per_node,dtype,op,size_bytes,total_bytes,count,time_us_oop,algbw_gbs_oop,busbw_gbs_oop,err_oop,time_us_ip,algbw_gbs_ip,busbw_gbs_ip,err_ip,time_min_us,time_max_us,time_p10_us,time_p50_us,time_p90_us,n_iter,source_path
mine,a,1,all_reduce,ring,LL,8,2,4,float,sum,1048576,,262144,100.0,10.49,18.35,0,101,10.38,18.17,2e-07,,,,,,20,logs/1.txt
mine,a,2,all_gather,,,8,2,,float,none,1024,8192,256,25.6,0.32,0.28,,,,,,24,30,,25,,,logs/2.txt
"""
"""CSV with both sides in a row."""

OSU_MORE = """\
$ srun -N 2 --ntasks-per-node=4 --mpi=pmix osu_ialltoall

# OSU MPI Non-blocking All-to-All Latency Test v5.6.3
# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait

# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)
1                      11.09              6.10              5.18              3.46
2                      10.87              6.04              5.10              5.46
$ mpirun -np 8 osu_scatterv
# OSU MPI Scatterv Latency Test v5.6.3
# Size       Avg Latency(us)
1024                    1.73
$ mpirun -npernode 20 -np 1240 osu_mbw_mr
# OSU MPI Multiple Bandwidth / Message Rate Test v5.7
# [ pairs: 620 ] [ window size: 64 ]
# Size                  MB/s        Messages/s
1024               124000.00      121093750.00
$ mpirun -np 2048 osu_multi_lat
# OSU MPI Multi Latency Test v7.1
# Size          Latency (us)
# Datatype: MPI_CHAR.
8                       4.35
# OSU MPI_Put Latency Test v5.8
# Window creation: MPI_Win_allocate
# Size          Latency (us)
8                       0.58
# OSU MPI Neighborhood Allgather Latency Test v7.5
# Size       Avg Latency(us)
8                      99.00
$ mpirun -np 4 osu_igather
8                      20.00              9.00              7.25              1.00
$ mpirun -np 4 osu_bcast
8                       3.50
"""
"""Non-blocking, uneven, paired and one-sided benchmarks, one that is not read, and two tables without their headings."""

IMB_MORE = """\
#-----------------------------------------------------------------------------
# Benchmarking Ialltoall
# #processes = 4
#-----------------------------------------------------------------------------
       #bytes #repetitions t_ovrl[usec] t_pure[usec]  t_CPU[usec]   overlap[%]
            8         1000        20.00        12.50        10.00        25.00
#----------------------------------------------------------------
# Benchmarking Multi-Allgatherv
# ( 2 groups of 4 processes each running simultaneously )
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         1024         1000         3.00         5.00         4.00
#----------------------------------------------------------------
# Benchmarking PingPong
# #processes = 4
#----------------------------------------------------------------
       #bytes #repetitions      t[usec]   Mbytes/sec      Msg/sec
         1024       100000        49.50        41.37        40404
#----------------------------------------------------------------
# Benchmarking Unidir_put
# #processes = 2
#----------------------------------------------------------------
       #bytes #repetitions      t[usec]   Mbytes/sec
            8         1000         1.00         8.00
"""
"""A non-blocking benchmark, one of several groups, one of several pairs, and a one-sided one that is not read."""

PERFTEST = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 2\t\tTransport type : IB
---------------------------------------------------------------------------------------
 local address: LID 0x01 QPN 0x0049 PSN 0x8b53ba OUT 0x10 RKey 0x1fffbf VAddr 0x00799b96ceb000
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 3295.212000 != 5003.410000. CPU Frequency is not max.
 65536      1000             328.64             328.61 \t\t     0.626777
 131072     1000             328.64             328.61 \t\t     0.626777
---------------------------------------------------------------------------------------
                    RDMA_Read BW Test
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      1000             11709.18            11708.31\t\t   0.187333
---------------------------------------------------------------------------------------
                    Send Latency Test
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          1.76           6.12         1.79                1.80             0.06            1.88                    6.12
---------------------------------------------------------------------------------------
"""
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
