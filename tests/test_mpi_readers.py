"""Logs of benchmarks of MPI and of links, a line at a time: what each says, to the last field and message."""

import pytest

from benchmark_logs import put
from simnet.cost_models.calibration.readers import read_measurements


def rows(folder, *lines, kind="osu", **options):
    return read_measurements(put(folder, "\n".join((*lines, ""))), kind=kind, **options).rows.to_dict("records")


def messages(folder, *lines, kind="osu", **options):
    return [
        (one.line, one.message)
        for one in read_measurements(put(folder, "\n".join((*lines, ""))), kind=kind, **options).problems
    ]


def known(row, *names):
    return tuple(None if row.get(one) != row.get(one) else row.get(one) for one in names)


class TestOsu:
    TITLE = "# OSU MPI Allreduce Latency Test v7.5"
    COLUMNS = "# Size   Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"

    @pytest.mark.parametrize(
        ("command", "ranks", "nodes"),
        [
            ("mpirun -np 16 ./osu_allreduce", 16, None), ("mpiexec.hydra -n 8 osu_allreduce -f", 8, None),
            ("mpirun -N 4 -np 8 osu_allreduce", 8, None), ("srun -N 4 --ntasks-per-node=8 osu_allreduce", 32, 4),
            ("srun --nodes=2 -n 6 osu_allreduce", 6, 2), ("flux run -N2 -n6 osu_allreduce", 6, 2),
            ("srun -N 4 osu_allreduce -n 6", None, 4), ("mpirun --ntasks-per-node=8 osu_allreduce", None, None),
            ("srun --ntasks=12 -N3 --ntasks-per-node=9 osu_allreduce", 12, 3),
        ],
    )  # fmt: skip
    def test_commands_of_launchers_say_ranks_and_nodes(self, tmp_path, command, ranks, nodes):
        (row,) = rows(tmp_path, command, self.TITLE, self.COLUMNS, "8 4.0 3.0 5.0 1000")
        assert known(row, "ranks", "nodes", "collective") == (ranks, nodes, "all_reduce")

    def test_times_are_of_their_columns(self, tmp_path):
        lines = (self.TITLE, "# Datatype: MPI_CHAR.", self.COLUMNS + "  P50 Tail Lat(us)  P99 Tail Lat(us)  Validation",
                 "8 4.0 3.0 5.0 1000 4.5 4.9 Pass", "16 8.0 6.0 9.0 100 8.5 8.9 Fail")  # fmt: skip
        first, second = rows(tmp_path, *lines)
        names = ("nbytes", "seconds", "seconds_min", "seconds_max", "iterations", "seconds_p50", "seconds_p99", "wrong")
        assert known(first, *names) == pytest.approx((8, 4e-6, 3e-6, 5e-6, 1000, 4.5e-6, 4.9e-6, None))
        assert known(second, *names) == pytest.approx((16, 8e-6, 6e-6, 9e-6, 100, 8.5e-6, 8.9e-6, 1))
        assert known(first, "dtype", "tool", "run") == ("int8", "osu", "2")

    @pytest.mark.parametrize(
        ("title", "pairs", "collective", "ranks", "variant", "share"),
        [
            ("Bandwidth Test", "", "p2p_bw", 2, "", 1), ("Bi-Directional Bandwidth Test", "", "p2p_bibw", 2, "", 1),
            ("Multiple Bandwidth / Message Rate Test", "# [ pairs: 3 ] [ window size: 64 ]", "p2p_bw", 6, "3 pairs", 3),
            ("Multiple Bandwidth / Message Rate Test", "# Pairs: 1", "p2p_bw", 2, "", 1),
            ("Multiple Bandwidth / Message Rate Test", "# Pairs: 2", "p2p_bw", 4, "2 pairs", 2),
            ("Multiple Bandwidth / Message Rate Test", "# Pairs: 99999999", "p2p_bw", None, "several pairs", 1),
            ("Multiple Bandwidth / Message Rate Test", "", "p2p_bw", None, "several pairs", 1),
        ],
    )  # fmt: skip
    def test_pairs_share_what_is_printed(self, tmp_path, title, pairs, collective, ranks, variant, share):
        (row,) = rows(tmp_path, f"# OSU MPI {title} v7.5", pairs, "# Size   Bandwidth (MB/s)", "1000 600.0")
        assert known(row, "collective", "ranks") == (collective, ranks)
        assert (known(row, "variant")[0] or "") == variant
        assert known(row, "seconds", "algbw") == pytest.approx((1000 * share / 6e8, 6e8 / share))


class TestImb:
    TITLE, RANKS = "# Benchmarking Bcast", "# #processes = 4"
    COLUMNS = "#bytes #repetitions t_min[usec] t_max[usec] t_avg[usec]"

    def test_times_are_of_their_columns(self, tmp_path):
        (row,) = rows(tmp_path, self.TITLE, self.RANKS, self.COLUMNS, "8 1000 3.0 5.0 4.0", kind="imb")
        names = ("collective", "ranks", "nbytes", "iterations", "seconds", "seconds_min", "seconds_max", "tool", "run")
        assert known(row, *names) == ("broadcast", 4, 8, 1000, 4e-6, 3e-6, 5e-6, "imb", "2")

    def test_types_and_operations_are_of_collectives_that_reduce(self, tmp_path):
        said = ("# MPI_Datatype for reductions : MPI_FLOAT", "# MPI_Op : MPI_SUM")
        for name, wanted in (("Allreduce", ("float", "sum")), ("Bcast", (None, None))):
            (row,) = rows(
                tmp_path, *said, f"# Benchmarking {name}", self.RANKS, self.COLUMNS, "8 1000 3.0 5.0 4.0", kind="imb"
            )
            assert tuple(one or None for one in known(row, "dtype", "reduction")) == wanted

    def test_groups_have_ranks_of_their_own_and_each_table_its_number(self, tmp_path):
        first, second = rows(
            tmp_path, self.TITLE, "# ( 3 groups of 5 processes each running simultaneously )", self.COLUMNS,
            "8 1000 3.0 5.0 4.0", "# Benchmarking Allreduce", self.RANKS, self.COLUMNS, "8 1000 3.0 5.0 4.0",
            kind="imb",
        )  # fmt: skip
        assert known(first, "ranks", "variant", "run") == (5, "3 groups", "2")
        assert (second["ranks"], known(second, "variant")[0] or "", second["run"]) == (4, "", "3")

    @pytest.mark.parametrize(
        ("name", "messages_sent"), [("PingPong", 1), ("PingPing", 1), ("Sendrecv", 2), ("Exchange", 4)]
    )
    def test_throughputs_count_messages_both_ways(self, tmp_path, name, messages_sent):
        title, columns = f"# Benchmarking {name}", "#bytes #repetitions t_min[usec] t_max[usec] t_avg[usec] Mbytes/sec"
        if name.startswith("Ping"):
            columns = "#bytes #repetitions t[usec] Mbytes/sec"
        times = "100.0" if name.startswith("Ping") else "90.0 100.0 95.0"
        for megabyte in (1e6, 2**20):
            rate = messages_sent * 2**20 / 100e-6 / megabyte
            (row,) = rows(tmp_path, title, self.RANKS, columns, f"1048576 100 {times} {rate:.2f}", kind="imb")
            assert row["nbytes"] == 2**20
        wrong = 1.01 * messages_sent * 2**20 / 100e-6 / 1e6
        lines = (title, self.RANKS, columns, f"1048576 100 {times} {wrong:.2f}", f"0 100 {times} 0.00")
        ((line, message),) = messages(tmp_path, *lines, kind="imb")
        sent = messages_sent * 2**20
        assert line == 4
        assert message == (
            f"throughput is {round(wrong, 2):g} MB/s, but {sent:g} bytes in 0.0001 s are {sent / 1e-4 / 1e6:.5g}"
        )
        found = read_measurements(tmp_path / "a.log", kind="imb")
        assert ([one.dropped for one in found.problems], len(found)) == ([True], 1)


class TestPerftest:
    TITLE = "                    RDMA_Write BW Test"
    COLUMNS = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"

    def test_bandwidths_are_in_the_unit_of_their_column(self, tmp_path):
        for unit, of in (("Gb", 1e9 / 8), ("MB", 2.0**20), ("MiB", 2.0**20)):
            columns = self.COLUMNS.replace("Gb", unit)
            rate = 1e6 * 65536 / of
            (row,) = rows(
                tmp_path, self.TITLE, " Number of qps   : 2", columns,
                f" 65536 5000 {2 * rate:.2f} {rate:.2f} 1.000000",
                kind="perftest",
            )  # fmt: skip
            assert known(row, "algbw", "seconds") == pytest.approx((65536e6, 1e-6), rel=1e-3)
            names = ("collective", "nbytes", "iterations", "ranks", "nodes", "statistic", "run", "tool", "variant")
            assert known(row, *names) == ("p2p_bw", 65536, 5000, 2, 2, "rank0", "2", "perftest", "2 queue pairs")
            # Another column between, as of --report-min-bw.
            more = columns.replace("    BW average", f"    BW min[{unit}/sec]    BW average")
            (row,) = rows(tmp_path, self.TITLE, more, f" 65536 5000 9 1 {rate:.2f} 1.000000", kind="perftest")
            assert row["algbw"] == pytest.approx(65536e6, rel=1e-3)

    def test_what_was_done_is_told_by_the_title(self, tmp_path):
        times = (
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    99% percentile[usec]"
        )
        for title, columns, row, name in (
            ("RDMA_Read BW Test", self.COLUMNS, "1000 10 9.0 8.0 1.0", "get_bw"),
            ("Send Bidirectional BW Test", self.COLUMNS, "1000 10 9.0 8.0 1.0", "p2p_bibw"),
            ("Send Latency Test", times, "2 1000 1.0 9.0 1.5 2.0 3.0", "p2p_latency"),
        ):
            (found,) = rows(tmp_path, "   " + title, columns, row, kind="perftest")
            assert found["collective"] == name
        assert known(found, "seconds", "seconds_p50", "seconds_min", "seconds_max", "seconds_p99") == pytest.approx(
            (2e-6, 1.5e-6, 1e-6, 9e-6, 3e-6)
        )
        typical = times.replace("    t_avg[usec]", "")
        (found,) = rows(tmp_path, "   Send Latency Test", typical, "2 1000 1.0 9.0 1.5 3.0", kind="perftest")
        assert known(found, "seconds", "seconds_p50") == pytest.approx((1.5e-6, 1.5e-6))

    def test_rows_that_contradict_themselves_or_say_nothing_are_told_by_line(self, tmp_path):
        said = messages(
            tmp_path, self.TITLE, self.COLUMNS, "1000 10 9.0 8.0 1.000", "1000 10 9.0 8.1 1.000",
            "1000 10 9.0", "1000 10 9.0 0.0 0.0", "    Atomic_FAA BW Test", self.COLUMNS,
            "8 10 9.0 8.0 1.0", kind="perftest",
        )  # fmt: skip
        assert said == [
            (4, "8.1 is not 1 million messages of 1000 bytes a second"),
            (5, "the row has 3 values under 5 columns: its size or its time is no number"),
            (6, "the row has 5 values under 5 columns: its size or its time is no number"),
            (9, "a table begins, but 'atomic_faa bw' is no collective that is read"),
        ]
