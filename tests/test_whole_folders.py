"""Folders of results at every moment of a command: the old ones, the new ones, or some of one kind and a word of it.

A command is watched while it renames, removes and closes files: before each of these the folder is copied, as a kill at
that moment would have left it. What is in memory only is not in the copy.
"""

import builtins
import io
import os
import shutil

import pytest

from commands import NO_PAGE, contents, did, invoke
from simnet.base import file_io
from simnet.base.errors import InputError
from simnet.base.file_io import INCOMPLETE, FileSet, mark_incomplete, replace_files, stage_files

OLD, NEW = ("--set", "job.iterations=2"), ("--set", "job.iterations=3")
ANEW = (*NEW, "--force")
SMALL = """
workers: 3
network: {topology: {star: {latency: 1 ms, bandwidth: 1 Gbit/s}}}
job: {model: resnet18, scale: 10000, density: 5 %, iterations: 2}
exchanges: {AG: {scheme: topk}, RING: {scheme: artopk, collective: ring}}
policies: {AG: {fixed: AG}, RING: {fixed: RING}}
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def moments(folder, monkeypatch, work):
    """Return what a folder held at each moment at which something in it was about to change, each content once."""
    found = []

    def see():
        now = contents(folder)
        if now not in found:
            found.append(now)

    def watched(real):
        def call(*arguments, **options):
            see()
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("replace", "rename", "unlink", "remove", "rmdir", "fsync", "mkdir"):
            patch.setattr(os, name, watched(getattr(os, name)))
        work()
    see()
    return found


def settled(held):
    """Return the files of results of a folder: without those that are being written, and those of the work."""
    return {
        name: data
        for name, data in held.items()
        if not name.startswith((".", "checkpoints/", "cells/", INCOMPLETE)) and "/." not in name
    }


def laid(folder, held):
    """Lay files into a folder that is not there."""
    for name, data in held.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


COMMANDS = {
    "run": (["run", "SMALL", "--jobs", 1], OLD, ANEW),
    "run without a report after one with": (
        ["run", "SMALL", "--jobs", 1],
        OLD,
        [*ANEW, *NO_PAGE],
    ),
    "run with seeds after one without": (
        ["run", "SMALL", "--jobs", 1, *NO_PAGE],
        OLD,
        [*ANEW, "--seeds", 2],
    ),
    "run without seeds after one with": (
        ["run", "SMALL", "--jobs", 1, *NO_PAGE],
        [*OLD, "--seeds", 2],
        ANEW,
    ),
    "schemes": (["run", "SMALL", "--schemes", "topk,randomk", "--jobs", 1], OLD, [*ANEW, "--seeds", 2]),
    "grid": (["run", "SMALL", "--jobs", 1, "--grid", "workers=2,3"], OLD, [*ANEW, "--set", "job.density=9 %"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_moment_of_a_command_has_files_of_two_runs(name, small, tmp_path, monkeypatch):
    command, old, new = COMMANDS[name]
    command = [str(small) if one == "SMALL" else one for one in command]
    out = tmp_path / "out"
    did(*command, *old, "--out", out, "-q")
    (out / "mine.txt").write_text("mine")
    (out / "figures").mkdir(exist_ok=True)
    (out / "figures" / "mine.txt").write_text("mine, too")
    before = settled(contents(out))
    seen = moments(out, monkeypatch, lambda: did(*command, *new, "--out", out, "-q"))
    after = settled(seen[-1])
    mine = {"mine.txt", "figures/mine.txt"}
    assert mine < before.keys() & after.keys()
    assert INCOMPLETE not in seen[-1]
    changed = {one for one in before.keys() | after.keys() if before.get(one) != after.get(one)}
    assert len(changed) > 5
    halfway = []
    for held in seen:
        found = settled(held)
        assert {one: found.get(one) for one in mine} == {one: after[one] for one in mine}
        if found in (before, after):
            continue
        halfway.append(held)
        assert INCOMPLETE in held
        # Of what differs there is some of the one, or some of the other.
        kinds = {after.get(one) == found[one] for one in changed & found.keys()}
        assert len(kinds) <= 1
    assert len(halfway) > len(changed)
    # The same command makes it whole.
    for held in (halfway[1], halfway[-1]):
        again = laid(tmp_path / "again", held)
        did(*command, *new, "--out", again, "-q")
        assert settled(contents(again)) == after
        assert not [one for one in contents(again) if one.startswith(".") or one == INCOMPLETE]
        shutil.rmtree(again)


WRITES = {
    "fabric.yaml": ["calibrate", "log.csv", "-o"],
    "platform.yaml": ["calibrate", "dgx-h100", "-o"],
    "compute.yaml": ["calibrate", "hooks", "-o"],
    "table.json": [
        *("choose", "--grid", "latency=1ms,2ms", "--grid", "bandwidth=1,2Gbit/s", "--set", "job.overlap=none"),
        *("--set", "job.iterations=1", "--schemes", "topk,dense", "--out"),
    ],
}


@pytest.mark.parametrize("name", WRITES)
def test_the_one_file_of_a_command_is_old_or_new_at_every_moment(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = [1 << at for at in range(10, 16)]
    times = "".join(f"all_reduce,4,{size},{1e-5 + size * 1e-9}\n" for size in sizes)
    (tmp_path / "log.csv").write_text(f"collective,ranks,nbytes,seconds\n{times}")
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "rank_0.csv").write_text(
        "iteration,compute_s\n" + "".join(f"{one},0.1\n" for one in range(20))
    )
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / name
    target.write_bytes(b"old")
    seen = moments(target.parent, monkeypatch, lambda: did(*WRITES[name], target, "--force"))
    assert seen[-1].keys() == {name}
    assert {held[name] for held in seen} == {b"old", seen[-1][name]}
    assert len(seen) > 2


def test_a_disk_that_is_full_leaves_the_old_run_as_it_was(small, tmp_path, monkeypatch):
    out = tmp_path / "out"
    command = ["run", str(small), "--out", out, "--jobs", 1, *NO_PAGE]
    did(*command, *OLD)
    before = contents(out)
    real, count = builtins.open, 0
    for full_after in range(0, 40, 4):
        count = 0

        def full(file, mode="r", *arguments, full_after=full_after, **options):
            nonlocal count
            if "x" in mode and ".run." in str(file):
                count += 1
                if count > full_after:
                    raise OSError(28, "No space left on device", str(file))
            return real(file, mode, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(io, "open", full)
            result = invoke(*command, *NEW, "--force")
        if count <= full_after:
            break
        assert result.exit_code == 2
        assert "cannot be written: No space left on device; choose another folder with --out" in result.stderr
        assert ".tmp" not in result.stderr
        held = contents(out)
        assert settled(held) == settled(before)
        assert INCOMPLETE in held
    assert full_after > 6
    assert result.exit_code == 0
    assert INCOMPLETE not in contents(out)


TABLE = FileSet("table", ("*.csv", "below/*.csv"), "z.csv")


def swap(folder, names, said=""):
    with replace_files(folder, TABLE) as stage:
        for name in names:
            (stage / name).parent.mkdir(exist_ok=True)
            (stage / name).write_text("new")
        mark_incomplete(stage, said)


def test_who_is_killed_in_between_is_helped_by_whoever_comes_next(tmp_path, monkeypatch):
    start = {"a.csv": b"old", "gone.csv": b"old", "below/gone.csv": b"old", "z.csv": b"old", "mine.txt": b"mine"}
    new = {"a.csv": b"new", "c.csv": b"new", "z.csv": b"new", "mine.txt": b"mine"}
    folder = laid(tmp_path / "out", start)
    seen = moments(folder, monkeypatch, lambda: swap(folder, ("a.csv", "c.csv", "z.csv"), "one is missing"))
    ends = []
    for number, held in enumerate(seen):
        again = laid(tmp_path / str(number), held)
        if any(name.startswith((".table.whole/", ".table.moving/")) for name in held):
            with pytest.raises(InputError, match="a table ended here while its files took their places"):
                file_io.refuse_incomplete_replacement(again, [TABLE])
        else:
            file_io.refuse_incomplete_replacement(again, [TABLE])
        file_io.finish_replacement(again, TABLE)
        found = settled(contents(again))
        assert found in (start, new)
        assert (found == start) or contents(again)[INCOMPLETE] == b"one is missing\n"
        ends.append(found == new)
    # Once they are whole they are never lost.
    assert ends == sorted(ends)
    assert not (again / "below").exists()


def test_an_error_leaves_all_as_it_was(tmp_path):
    laid(tmp_path, {"a.csv": b"old", "z.csv": b"old"})

    def fail():
        with replace_files(tmp_path, TABLE) as stage:
            (stage / "a.csv").write_text("new")
            raise InputError("is odd", file=str(stage / "a.csv"))

    with pytest.raises(InputError) as told:
        fail()
    assert str(told.value) == f"{tmp_path / 'a.csv'}: is odd"
    assert contents(tmp_path) == {"a.csv": b"old", "z.csv": b"old"}


@pytest.mark.parametrize("profiles", ["a file", "a folder"])
def test_files_beside_each_other_are_old_or_new_at_every_moment(profiles, tmp_path, monkeypatch):
    targets = [tmp_path / "platform.xml", tmp_path / "profiles"]

    def lay(folder, said):
        (folder / "platform.xml").write_text(said)
        if profiles == "a file":
            (folder / "profiles").write_text(said)
        else:
            (folder / "profiles").mkdir()
            (folder / "profiles" / "a.csv").write_text(said)

    def replaced():
        with stage_files(targets, force=True, suffixes=[".csv"]) as folder:
            lay(folder, "new")

    lay(tmp_path, "old")
    before, seen = contents(tmp_path), moments(tmp_path, monkeypatch, replaced)
    assert set(seen[-1].values()) == {b"new"}
    assert seen[-1].keys() == before.keys()
    assert all(len(set(settled(held).values())) < 2 for held in seen)


def test_no_moment_of_a_report_has_a_page_of_two_kinds_and_the_same_command_makes_it_whole(
    small, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    did("run", small, "--jobs", 1, *OLD, "--out", out, "-q")
    whole = contents(out)
    page = {name for name in whole if name == "report.html" or name.startswith("figures/")}
    for name in page - {"report.html"}:
        (out / name).write_bytes(b"old")
    (out / "report.html").write_bytes(b"old")
    old = contents(out)
    seen = moments(out, monkeypatch, lambda: did("show", out))
    assert seen[-1] == whole
    halfway = [held for held in seen if settled(held) not in (old, whole)]
    assert len(halfway) > len(page)
    for held in halfway:
        found = settled(held)
        assert INCOMPLETE in held
        assert {name: found[name] for name in found.keys() - page} == {
            name: whole[name] for name in whole.keys() - page
        }
        assert len({whole[name] == found[name] for name in page & found.keys()}) <= 1
    for number, (held, command) in enumerate(
        [(halfway[1], ["show"]), (halfway[-1], ["run", small, *OLD, "-q", "--out"])]
    ):
        again = laid(tmp_path / str(number), held)
        did(*command, again)
        assert contents(again) == whole
