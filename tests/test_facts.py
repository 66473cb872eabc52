"""Facts, formats and folders: what names tell of logs, what a line is of which format, which files are read."""

import pytest

from benchmark_logs import put
from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers import kinds, read_logs, read_measurements
from simnet.cost_models.calibration.readers.kinds import log_format
from simnet.cost_models.calibration.readers.tables import parse_facts

LOG = "# OSU MPI Broadcast Latency Test v7.5\n# Size  Avg Latency(us)\n8 2.5\n16 2.75\n"
TIDY = "collective,nbytes,seconds\nreduce,8,1.0\n"


class TestFacts:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("x" * 61, f"must be COLUMN=VALUE, PATTERN:COLUMN=VALUE or a pattern with {{COLUMN}}, got '{'x' * 60}'"),
            ("{ranks}_{ranks}" + "x" * 60, f"names 'ranks' twice: '{{ranks}}_{{ranks}}{'x' * 45}'"),
            ("*" * 9 + "x" * 60 + ":ranks=3",
             f"a pattern has at most 200 characters and eight stars or columns, got '{'*' * 9}{'x' * 51}'"),
            ("*{tool}" + "x" * 60,
             f"has a star beside {{tool}}, so that nothing says where it begins or ends: '*{{tool}}{'x' * 53}'"),
            (f"ranks={'x' * 41}", f"ranks: must be a whole number, got '{'x' * 40}'"),
            ("*_n{rank}.log", "there is no column 'rank': did you mean 'ranks'?"),
            ("*.log:rank=3", "there is no column 'rank': did you mean 'ranks'?"),
            ("{collective}*.log", "has a star beside {collective}, so that nothing says where"),
            ("ranks=1.5", "ranks: must be a whole number, got '1.5'"),
            ("ranks=²", "ranks: must be a whole number, got '²'"),
            ("ranks=-1", "ranks: must be a whole number, got '-1'"),
            ("ranks=", "ranks: must be a whole number, got ''"),
        ],
    )  # fmt: skip
    def test_what_is_refused_is_shown(self, text, said):
        with pytest.raises(InputError) as error:
            parse_facts([text])
        assert str(error.value).startswith(f"--fact: {said}")

    @pytest.mark.parametrize(
        ("text", "name", "found"),
        [
            ("ranks=3", "a.log", {"ranks": 3}), ("a.log:ranks=3", "a.log", {"ranks": 3}),
            ("a.log:ranks=3", "b.log", {}),
            ("a.log:ranks=3", "x/y/a.log", {"ranks": 3}), ("a.log:ranks=3", "ya.log", {}), ("a*:ranks=3", "a/b", {}),
            ("a?c:ranks=3", "abc", {"ranks": 3}), ("a?c:ranks=3", "a/c", {}), ("a?c:ranks=3", "ac", {}),
            ("x\\a:ranks=3", "x/a", {"ranks": 3}), ("a{x}b:ranks=3", "a{x}b", {"ranks": 3}), ("a.c:ranks=3", "abc", {}),
            ("a*b*c:ranks=3", "axbxc", {"ranks": 3}), ("a*b*c:ranks=3", "axcxb", {}),
            ("a**c:ranks=3", "abc", {"ranks": 3}),
            ("n{ranks}.log", "n12.log", {"ranks": 12}), ("n{ranks}.log", f"n{'1' * 15}.log", {"ranks": int("1" * 15)}),
            ("n{ranks}.log", f"n{'1' * 16}.log", {}), ("n{ranks}.log", "n.log", {}), ("n{ranks}", "x/n1", {"ranks": 1}),
            ("{tool}_{ranks}.log", "osu_2.log", {"tool": "osu", "ranks": 2}), ("{tool}.log", "a/b.log", {"tool": "b"}),
            ("{tool}.log", "x" * 60 + ".log", {"tool": "x" * 60}), ("{tool}.log", "x" * 61 + ".log", {}),
            ("b*:ranks=3", "b" + "c" * 1999, {"ranks": 3}), ("b*:ranks=3", "b" + "c" * 2000, {}),
            ("a*b?:ranks=3", "abbx", {"ranks": 3}), ("*:ranks=3", "a/b", {"ranks": 3}),
            ("seconds=3", "a", {"seconds": 3.0}), ("tool=a*:ranks=3", "tool=abc", {"tool": "a*:ranks=3"}),
            ("*{ranks}.log", "n2/2024_16.log", {"ranks": 16}), ("*{ranks}.log", "a/16x_16.log", {"ranks": 16}),
            ("*_collective_{collective}.log", "a_collective_bcast.log", {"collective": "bcast"}),
        ],
    )  # fmt: skip
    def test_names_that_fit(self, text, name, found):
        assert parse_facts([text]).of(name) == found

    def test_later_facts_count_more_and_numbers_of_those_that_fit_are_kept(self):
        facts = parse_facts(["ranks=1", "b:ranks=2", "a:ranks=3", "nodes=4"])
        assert facts.of("a") == {"ranks": 3, "nodes": 4}
        assert facts.fitted == {0, 2, 3}


class TestKinds:
    @pytest.mark.parametrize(
        ("name", "text", "tool", "kind"),
        [
            ("osu_bcast.log", "8 2.5\n", "", "osu"), ("osu_bcast.log", "no 2.5\n", "", None),
            ("osu_x", "8 2.5\n", "", "osu"),
            ("IMB_bcast.log", "8 2.5\n", "", "imb"), ("limb.log", "8 2.5\n", "", None),
            ("a.log", "x\n\n 8 2.5\n", "osu", "osu"),
            ("osu_bcast.log", "8 2.5\n", "imb", "imb"), ("osu_bcast.log", "8 2.5\n", "mine", "osu"),
            ("a.log", "8 2.5\n", "rccl-tests", "nccl"), ("a.log", "8 2.5\n", "nccl-tests", "nccl"),
            ("a.log", "", "osu", None),
            ("osu_bcast.log", "[1,0]<stdout>:8   2.5\n", "", "osu"),
            ("osu_bcast.log", TIDY, "imb", "tidy"), ("a.log", "# remark\n\n" + TIDY, "", "tidy"),
            ("a.log", "x\n" + TIDY, "", None),
            ("a.log", "noise\nmore\n12: # Benchmarking Bcast\n", "", "imb"),
            ("osu_bcast.log", '[{"numCycle": 1, "algBw": 1}]', "imb", "rccl"),
        ],
    )  # fmt: skip
    def test_files(self, tmp_path, name, text, tool, kind):
        assert log_format(put(tmp_path, text, name), tool) == kind

    def test_facts_reach_readers(self, tmp_path):
        path = put(tmp_path, "8 2.5\n", "a.log")
        facts = {"tool": "osu", "collective": "reduce"}
        assert read_measurements(path, facts=facts).rows["collective"].tolist() == ["reduce"]
        assert read_measurements(path, "osu", facts={"collective": "reduce"}).kind == "osu"
        with pytest.raises(
            InputError, match=r"a\.log: holds no measurements in a format that is read: chakra, deepspeed, "
        ):
            read_measurements(path)
        with pytest.raises(InputError, match=r"a\.log: there is no format 'os': did you mean 'osu'"):
            read_measurements(path, "os")
        with pytest.raises(ValueError, match="there is no column 'rank': did you mean 'ranks'"):
            read_measurements(path, facts={"rank": 3})


class TestFolders:
    def test_problems_of_logs_that_are_read_are_told(self, tmp_path):
        put(tmp_path, LOG + "32 x\n", "a.log")
        put(tmp_path, TIDY, "b.csv")
        measured = read_logs(tmp_path)
        (problem,) = measured.problems
        assert (measured.kind, measured.rows.index.tolist()) == ("several", [0, 1, 2])
        assert (problem.line, problem.message[:15]) == (5, "the row has 2 v")

    def test_so_many_files_and_rows_are_read(self, tmp_path, monkeypatch):
        for name in ("a.log", "b.log"):
            put(tmp_path, LOG, name)
        monkeypatch.setattr(kinds, "MAX_FILES", 2)
        monkeypatch.setattr(kinds, "MAX_ROWS", 4)
        assert len(read_logs(tmp_path)) == 4
        monkeypatch.setattr(kinds, "MAX_ROWS", 3)
        with pytest.raises(InputError, match=f"^{tmp_path}: has more than 3 rows, the most that are read$"):
            read_logs(tmp_path)
        put(tmp_path, LOG, "c.log")
        with pytest.raises(InputError, match=f"^{tmp_path}: has more than 2 files, the most that are read$"):
            read_logs(tmp_path)
