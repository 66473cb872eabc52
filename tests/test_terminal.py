"""How the command line talks: completion of words, options that all commands have, errors of words, help, widths."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import killing
import needs
from commands import NO_PAGE, did, invoke, refused
from simnet.scenario import shipped
from simnet.verbs import app, terminal
from simnet.verbs.completion import completion_words

ROOT = Path(__file__).parents[1]

# Completing


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which `simnet` is a command."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "simnet"
    program.write_text(f"#!{sys.executable}\nfrom simnet.cli import main\nmain()\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def output(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=killing.PATIENCE, check=True
    ).stdout


@pytest.mark.parametrize(
    ("typed", "wanted", "unwanted"),
    [
        ("", "job.", "job="),
        ("job.", "job.density=", "density="),
        ("network.topology.", "network.topology.star.", "network.weather="),
        ("network.topology.star.", "network.topology.star.latency=", "network.topology.tree.latency="),
        ("job.density.", None, "job.density="),
        ("nosuch.field", None, "job."),
    ],
)
def test_fields_that_can_be_set_are_completed(typed, wanted, unwanted):
    found = completion_words("set", typed)
    assert wanted is None or wanted in found
    assert unwanted not in found
    assert all(word.startswith(typed) for word in found)


@pytest.mark.parametrize(
    ("name", "typed", "wanted"),
    [
        ("schemes", "topk,okt", "topk,oktopk"),
        ("model", "vgg", "vgg16"),
        ("device", "ide", "ideal"),
        ("network", "sta", "star"),
        ("network", "dgx", "dgx-h100"),
        ("what", "allreduce_ri", "allreduce_ring"),
        ("stack", "glo", "gloo"),
        ("gradients", "dig", "digits"),
        ("logs", "shaped_g", "shaped_gloo"),
        ("scenario", "quick", "quickstart"),
        ("scenario", "scenarios/quick", "scenarios/quickstart.yaml"),
        ("kind", "sche", "schemes"),
    ],
)
def test_names_are_those_that_there_are(name, typed, wanted, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(ROOT)
    assert wanted in completion_words(name, typed)


def test_policies_are_those_of_the_scenario_that_was_named() -> None:
    assert completion_words("policies", "AG,or", "quickstart") == ["AG,oracle"]
    assert completion_words("policies", "", "nosuch") == []


@needs.posix
def test_bash_completes_what_the_script_that_it_loads_asks_for(shell: dict[str, str]) -> None:
    cases = {
        "simnet run base --model resnet": ["resnet18", "resnet50"],
        "simnet run quickstart --policies AG,or": ["AG,oracle"],
        "simnet lis": ["list"],
    }
    asks = "\n".join(f"ask {line}" for line in cases)
    script = (
        'eval "$(simnet --show-completion bash)" || exit 1\n'
        'ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; '
        '$(complete -p simnet | sed "s/.*-F \\([^ ]*\\) .*/\\1/") simnet; local IFS=" "; echo "${COMPREPLY[*]}"; }\n'
    )
    # The function sets COMPREPLY of this shell, so that it is not to be called in one of its own.
    found = output(["bash", "--norc", "-c", script + asks], shell).splitlines()
    assert dict(zip(cases, map(shlex.split, found), strict=True)) == cases


@pytest.mark.parametrize("kind", ["zsh", "fish"])
def test_other_shells_have_a_script_too(kind: str) -> None:
    assert "simnet" in did("--show-completion", kind).stdout


# Options of all commands, and what is wrong with words


def test_every_verb_can_be_quiet_and_verbose() -> None:
    for name in app.all_verbs():
        names = {one.names for one in app.verb_options(name)}
        assert {"--quiet, -q", "--verbose, -v", "--json", "--wide"} <= names, name


def test_a_quiet_command_leaves_its_answer_and_nothing_else(tmp_path: Path) -> None:
    assert "resnet50" in did("list", "models", "-q").stdout
    ring = "allreduce_ring", "--workers", 2, "--size", "1 kB"
    assert did("time", *ring, "--network", "quickstart", "--out", tmp_path / "a.csv", "--quiet").stderr == ""
    assert "either --quiet or --verbose" in invoke("list", "models", "-q", "-v").stderr


def test_a_verbose_command_says_what_it_runs_on_and_where_an_error_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SIMNET_TRACEBACK", raising=False)
    told = invoke("list", "models", "--verbose")
    assert told.stderr.startswith("simnet ")
    assert "CPU s since the start" in told.stderr
    assert "Python" not in told.stdout
    wrong = invoke("run", "quikstart", "-v")
    assert wrong.exit_code == 2
    assert "Traceback" in wrong.stderr
    assert wrong.stderr.splitlines()[-1].startswith("error: quikstart: there is no such file")
    assert "SIMNET_TRACEBACK" not in os.environ


# Folders


def test_folders_that_stay_empty_are_taken_away(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for place, left in (("a/b/c", {"there"}), ("there/x", {"there"}), ("there", {"there"})):
        with terminal.no_empty_folders(tmp_path / place):
            (tmp_path / place).mkdir(parents=True, exist_ok=True)
        assert {str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*")} == left
    with terminal.no_empty_folders(tmp_path / "kept" / "in"):
        (tmp_path / "kept" / "in").mkdir(parents=True)
        (tmp_path / "kept" / "in" / "file").touch()
    assert (tmp_path / "kept" / "in" / "file").exists()


@needs.linux
@pytest.mark.parametrize("command", [["run", "quickstart"], ["run", "quickstart", "--grid", "density=1,2%"]])
def test_ctrl_c_leaves_no_empty_folders(command: list[str], tmp_path: Path) -> None:
    out = tmp_path / "runs" / "one"
    more = ["--set", "job.iterations=1000000", "--out", out]
    process = killing.start([*command, *more], stderr=subprocess.PIPE, text=True)
    killing.await_that(out.is_dir, process)
    os.killpg(process.pid, killing.signal.SIGINT)
    process.communicate(timeout=killing.PATIENCE)
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_a_page_of_several_runs_is_replaced_by_force_alone(tmp_path: Path) -> None:
    few = "--set", "job.iterations=2", "-q"
    for place in ("a", "b"):
        did("run", "quickstart", *few, *NO_PAGE, "--out", tmp_path / place, "--seed", 5)
    pages = "show", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "page"
    did(*pages)
    assert "report.html: is there already; --force replaces it" in refused(*pages)
    did(*pages, "--force")
    # What a folder holds is drawn again from itself.
    did("show", tmp_path / "a")
    did("show", tmp_path / "a")


def test_a_trace_is_replaced_by_force_unless_its_folder_has_other_files(tmp_path: Path) -> None:
    made = "convert", "convolutional-dirichlet", tmp_path / "made", "--part", "entries=10"
    did(*made)
    assert "is there already; --force replaces it" in refused(*made)
    did(*made, "--force", "--seed", 1)
    (tmp_path / "made" / "notes.txt").touch()
    assert "other files in it" in refused(*made, "--force")


# Scenarios in editors


def test_editors_find_the_schema_of_shipped_scenarios() -> None:
    for path in shipped().values():
        mark, _, place = path.read_text().partition("\n")[0].partition("=")
        assert mark == "# yaml-language-server: $schema"
        schema = (path.parent / place).resolve()
        assert schema == ROOT / "simnet" / "scenarios" / "scenario.schema.json"
