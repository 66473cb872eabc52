"""What others add: registered by a package or in a file that a scenario names, identified, and refused on demand."""

import re
import subprocess
import sys
import warnings

import pytest

import killing
from commands import did, invoke, policies_of, refused
from simnet import collectives
from simnet.base import plugins
from simnet.collectives import registry
from simnet.cost_models.calibration.readers import read_measurements
from simnet.cost_models.calibration.readers.kinds import log_format
from simnet.cost_models.costs.devices import device_names, load_device
from simnet.scenario import load
from simnet.scenario.runner import identity
from simnet.sparsifier_models import create
from simnet.verbs import app

SCHEME = """\
from collections.abc import Sequence
from dataclasses import dataclass

from simnet.sparsifier_models.topk import Topk


@dataclass(frozen=True, kw_only=True)
class MineOptions(Topk.option_type):
    share: float = 0.5
    turns: int = 1
    steps: Sequence[float] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.turns < 1 or min(self.steps, default=0) < 0 or not 0 < self.share <= 1:
            raise ValueError(f"share must be in (0, 1], got {self.share}")


class Mine(Topk):
    name = "mine"
    paper = "a test"
    option_type = MineOptions
"""

SCENARIO = """\
name: own
workers: 4
network:
  topology: {star: {hosts: 8, latency: 1 ms, bandwidth: 1 Gbit/s}}
job: {parameters: 2000, iterations: 6, density: 0.01, compute: {mean: 10 ms}}
exchanges:
  AG: {scheme: topk}
  own: {scheme: ./mine.py:Mine, share: 0.25}
policies:
  AG: {fixed: AG}
  own: {fixed: own}
output: {report: false}
"""


READER = """\
from simnet.cost_models.calibration.readers import LogFormat
from simnet.cost_models.calibration.readers.tables import RowCollector


def read_mine(path, *, facts=None):
    out = RowCollector(str(path), "mine", facts or {})
    for at, line in enumerate(path.read_text().splitlines()[1:], 1):
        size, seconds = line.split()
        out.add({"collective": "all_reduce", "nbytes": int(size), "seconds": float(seconds)}, at)
    return out.done()


MINE = LogFormat(read_mine, first=lambda line: line.startswith("mine"))
"""


TIME = ("time", "--workers", "4", "--size", "1 MB")
LINKS = ("--latency", "1 ms", "--bandwidth", "1 Gbit/s")
WEATHER = "network.weather=[{links: all, bandwidth: {NAME: {}}}]"

FAILING = """\
from simnet.cost_models.calibration.readers import LogFormat
from simnet.collectives.registry import collective
from simnet.sparsifier_models.topk import Topk


def fails(*arguments, **options):
    return DOES


class Mine(Topk):
    name, paper = "mine", "a test"
    SELECTS = fails


class Turns:
    def __init__(self, candidates):
        self.candidates = candidates

    def reset(self):
        pass

    def shortlist(self, context):
        return DOES


def network(hosts: int = 4):
    return DOES


def gusts():
    return DOES


@collective("all_reduce", "onehop")
def allreduce_onehop(n_ranks, nbytes):
    return DOES


LOGS = LogFormat(fails, first=lambda line: line.startswith("mine"))
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "mine.py").write_text(SCHEME)
    path = tmp_path / "own.yaml"
    path.write_text(SCENARIO)
    return path


class TestFiles:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ("turns: many", "turns: turns must be a whole number, got 'many'"),
            ("share: many", "share: share must be a number, got 'many'"),
            ("steps: 1", "steps: steps must be a list, got 1"),
            ("steps: [1, two]", "steps: an entry of steps must be a number, got 'two'"),
        ],
    )
    def test_an_option_of_another_type_is_refused_with_its_place(self, own, given, message):
        own.write_text(SCENARIO.replace("share: 0.25", given))
        assert f"own.yaml:8: exchanges.own.{message}" in refused("run", own)

    def test_a_scenario_with_a_scheme_in_a_file_runs_and_its_lock_runs_alike(self, own, tmp_path):
        # Two processes, each of which loads the file; nothing but the results is left behind.
        command = [sys.executable, "-m", "simnet.cli", "run", "--jobs", "2", "--quiet"]
        subprocess.run([*command, own, "--out", tmp_path / "a"], check=True, timeout=killing.PATIENCE)
        (copy,) = (tmp_path / "a" / "inputs").iterdir()
        assert copy.read_text() == SCHEME
        (tmp_path / "mine.py").unlink()
        did("run", tmp_path / "a" / "scenario.lock.yaml", "--out", tmp_path / "b", "--jobs", "1")
        for name in ("summary.json", "iterations.csv", "scenario.lock.yaml"):
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        assert not list(tmp_path.rglob("__pycache__"))

    def test_compare_takes_it_by_its_path(self, own, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        did("run", "compare", "--schemes", "topk,mine.py:Mine", "--set", "job.iterations=2", "--out", "c", "-q")
        assert set(policies_of(tmp_path / "c").index) == {"topk", "mine"}
        (tmp_path / "copy.py").write_text(SCHEME + "\n")
        told = refused("run", "compare", "--schemes", "mine.py:Mine,copy.py:Mine")
        assert "--schemes: names 'mine' twice, by " in told

    def test_the_identity_goes_by_its_content(self, own):
        before = identity(load(own), "x")
        assert identity(load(own), "x") == before
        (own.parent / "mine.py").write_text(SCHEME.replace("a test", "another"))
        assert identity(load(own), "x") != before

    @pytest.mark.parametrize(
        ("found", "written", "messages"),
        [
            ("share: 0.25", "share: 2", ["own.yaml:8: exchanges.own.share: share must be in (0, 1], got 2"]),
            ("share: 0.25", "shara: 1", ["own.yaml:8: exchanges.own.shara", "did you mean 'share'?"]),
            ("py:Mine", "py:Min", ["mine.py: defines no 'Min': did you mean 'Mine'?", "own.yaml:8"]),
            (
                "py:Mine",
                "py:MineOptions",
                ["own.yaml:8: exchanges.own.scheme", "MineOptions must be a class that derives from simnet."],
            ),
            ("./mine.py:Mine", "./none.py:Mine", ["none.py: there is no such file", "own.yaml:8"]),
            ("./mine.py:Mine", "../../etc/passwd:X", ["own.yaml:8", "name a class in the file", "passwd:X"]),
            ("./mine.py:Mine", "'.:Mine'", ["own.yaml:8", "name a class in the file"]),
            ("./mine.py:Mine", "./folder.py:Mine", ["folder.py: is not a file"]),
            ("./mine.py:Mine", "./large.py:Mine", ["large.py: is larger than 1,048,576 bytes"]),
            ("./mine.py:Mine", "./syntax.py:Mine", ["syntax.py:2: cannot be imported: SyntaxError"]),
            ("./mine.py:Mine", "./fails.py:Mine", ["fails.py:6: cannot be imported: KeyError: 'a'"]),
            ("./mine.py:Mine", "./exits.py:Mine", ["exits.py:1: cannot be imported: SystemExit: 7"]),
            (
                "./mine.py:Mine",
                "./partly.py:Mine",
                ["partly.py:Mine is no complete", "it lacks name, paper, _communicate"],
            ),
        ],
    )
    def test_what_is_wrong_with_it_is_one_message(self, own, found, written, messages):
        folder = own.parent
        (folder / "folder.py").mkdir()
        with (folder / "large.py").open("w") as stream:
            stream.truncate(2**30)
        (folder / "syntax.py").write_text("import numpy\ndef (:\n")
        (folder / "fails.py").write_text("def f():\n    return 1\n\ndef g():\n    f()\n    {}['a']\n\ng()\n")
        (folder / "exits.py").write_text("raise SystemExit(7)\n")
        (folder / "partly.py").write_text(
            "from simnet.sparsifier_models import Sparsifier\nclass Mine(Sparsifier): pass\n"
        )
        own.write_text(SCENARIO.replace(found, written, 1))
        told = refused("run", own)
        for message in messages:
            assert message in told
        # What failed once is not taken for loaded.
        assert refused("run", own) == told

    def test_an_interrupt_while_it_is_imported_is_one(self, own):
        (own.parent / "mine.py").write_text("raise KeyboardInterrupt\n")
        assert invoke("run", own).exit_code == 130

    def test_in_python_a_path_starts_where_one_is(self, own, monkeypatch):
        monkeypatch.chdir(own.parent)
        assert create("mine.py:Mine", workers=2, parameters=10, share=0.5).options.share == 0.5


class TestRegistered:
    def test_a_log_reader_is_asked_when_no_format_of_simnet_is_recognised(self, install, tmp_path):
        install("mine_reader", READER, "[simnet.log_readers]\nmine = mine_reader:MINE\n")
        log = tmp_path / "a.log"
        log.write_text("mine 1\n1024 1e-5\n2048 2e-5\n")
        assert log_format(log) == "mine"
        assert (
            read_measurements(log).rows["seconds"].tolist()
            == [1e-5, 2e-5]
            == read_measurements(log, "mine").rows["seconds"].tolist()
        )
        log.write_text("mine 1\n# OSU MPI Allreduce Latency Test v7.5\n")
        assert log_format(log) == "osu"

    def test_a_device_is_found_by_its_name(self, install):
        imported = "from simnet.cost_models.costs.devices import DeviceProfile as D"
        text = f"{imported}\ndef fast():\n    return D('f', 'd', 's', 1, {{}})\n"
        entries = "[simnet.devices]\nfast = mine_device:fast\ncpu = nowhere:none\nodd = json:JSONDecoder\n"
        install("mine_device", text, entries)
        assert load_device("fast").name == "f"
        assert {"fast", "cpu"} <= set(device_names())
        assert load_device("cpu").memory_bandwidth > 1
        with pytest.raises(ValueError, match=r"'odd', .* by mine_device 1.0 \(json:.*\), .* no DeviceProfile"):
            load_device("odd")

    @pytest.mark.parametrize(
        ("kind", "listed", "beside", "asking"),
        [
            ("sparsifiers", "schemes", "artopk", ["run", "own.yaml", "--set", "exchanges.AG={scheme: NAME}"]),
            ("topologies", "networks", "fat_tree", ["run", "own.yaml", "--set", "network.topology={NAME: {}}"]),
            ("topologies", "networks", "fat_tree", [*TIME, "allreduce_ring", "--network", "NAME"]),
            ("weather", "weather", "noise", ["run", "own.yaml", "--set", WEATHER]),
            ("policies", "policies", "flexible", ["run", "own.yaml", "--set", "policies.AG={NAME: {}}"]),
            ("devices", "devices", "v100", ["run", "own.yaml", "--set", "job.device=NAME"]),
            ("collectives", "collectives", "allreduce_ring", [*TIME, "allreduce_NAME", "--network", "star"]),
            ("collectives", "schemes", "artopk", ["run", "own.yaml", "--set", "exchanges.AG.allgather=NAME"]),
            ("log_readers", "readers", "osu", []),
        ],
    )
    @pytest.mark.filterwarnings("ignore::simnet.base.plugins.PluginWarning")
    def test_what_cannot_be_used_is_told_and_is_an_error_only_by_its_name(
        self, install, own, monkeypatch, kind, listed, beside, asking
    ):
        monkeypatch.chdir(own.parent)
        entries = f"[simnet.{kind}]\nbroken = mine_broken:X\ngone = nowhere:X\nodd = mine_odd:X\n"
        install("mine_broken", "1 / 0\n", entries)
        (own.parent / "site" / "mine_odd.py").write_text("X = 3\n")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            table = did("list", listed, "--wide").stdout
        told = table + "".join(f"{one.message}\n" for one in warned)
        assert beside in table
        for name, why in (("broken", "ZeroDivisionError: "), ("gone", "ModuleNotFoundError: "), ("odd", "")):
            said = f"'{name}', registered as simnet.{kind} by mine_broken 1.0 "
            assert said in told
            assert f"cannot be used: {why}" in told.partition(said)[2].partition("\n")[0]
            if asking:
                answer = refused(*(one.replace("NAME", name) for one in asking))
                assert said in answer
                assert f"cannot be used: {why}" in answer
        did("show", "schema")
        did(*TIME, "allreduce_ring", *LINKS)
        did("run", own, "--out", "out", "--quiet", "--set", "job.iterations=1")

    @pytest.mark.parametrize(
        ("of", "name", "taken"),
        [
            ("'all_reduce', 'ring'", "allreduce_mine", True),
            ("'all_reduce', 'mine'", "allreduce_ring", True),
            ("'all_gather', 'mine'", "allreduce_mine", False),
        ],
    )
    def test_collectives_of_others_do_not_take_the_names_of_simnet_s_own(self, install, of, name, taken):
        text = (
            "from simnet.collectives.registry import collective\n"
            "from simnet.schedule import Schedule\n"
            f"@collective({of})\n"
            f"def {name}(n_ranks, nbytes):\n    return Schedule(n_ranks)\n"
        )
        # A module of one name is imported once.
        module = re.sub(r"\W", "", f"names_{of}_{name}")
        install(module, text, f"[simnet.collectives]\nmine = {module}:{name}\n")
        others = [one for one in registry.all_collectives() if one not in registry.built_in()]
        assert [one.name for one in others] == ([] if taken else [name])
        assert registry.collective_by_name("allreduce_ring").function is collectives.allreduce_ring
        assert registry.collective_by_algorithm("all_reduce", "ring").function is collectives.allreduce_ring

    @pytest.mark.filterwarnings("ignore::simnet.base.plugins.PluginWarning")
    def test_a_collective_of_others_that_is_none_is_refused_by_its_names(self, install):
        install(
            "mine_unmarked", "def reduce(n_ranks, nbytes): ...\n", "[simnet.collectives]\nodd = mine_unmarked:reduce\n"
        )
        for ask in (
            lambda: registry.collective_by_name("allreduce_odd"),
            lambda: registry.collective_by_algorithm("all_reduce", "odd"),
        ):
            with pytest.raises(plugins.PluginError, match=r"'odd', .* it is not marked by `collective`"):
                ask()
        with pytest.raises(ValueError, match="there is no collective 'allreduce_od': did you mean"):
            registry.collective_by_name("allreduce_od")

    def test_commands_of_others_stand_beside_those_of_simnet(self, install):
        text = "from simnet.report.summary import Summary\n\n\ndef hail(name: str = 'you'):\n"
        text += "    '''Greet.'''\n    return Summary(answer=f'hello {name}')\n"
        install("mine_command", text, "[simnet.commands]\ngreet = mine_command:hail\nbad = nowhere:add\n")
        app._registered_verbs.cache_clear()
        with pytest.warns(UserWarning, match="'bad', registered as"):
            assert invoke("greet", "there").stdout == "hello there\n"
        assert "Others     greet      Greet." in app._overview()
        app._registered_verbs.cache_clear()


class TestFailing:
    """Code of others that fails while it runs is one message that names it; that of simnet keeps its traceback."""

    ENTRIES = """\
[simnet.sparsifiers]
scheme = mine_failing:Mine
[simnet.topologies]
network = mine_failing:network
[simnet.weather]
gusts = mine_failing:gusts
[simnet.policies]
turns = mine_failing:Turns
[simnet.collectives]
onehop = mine_failing:allreduce_onehop
[simnet.log_readers]
logs = mine_failing:LOGS
"""

    @pytest.mark.parametrize(
        ("name", "code", "command"),
        [
            ("scheme", "fails", ["run", "own.yaml", "--set", "exchanges.AG={scheme: scheme}"]),
            ("network", "network", ["run", "own.yaml", "--set", "network.topology={network: {}}"]),
            ("network", "network", [*TIME, "allreduce_ring", "--network", "network"]),
            ("gusts", "gusts", ["run", "own.yaml", "--set", WEATHER.replace("NAME", "gusts")]),
            ("turns", "Turns.shortlist", ["run", "own.yaml", "--set", "policies={AG: {turns: {}}}"]),
            ("turns", "Turns.shortlist", ["run", "own.yaml", "--jobs", "2", "--set", "policies.AG={turns: {}}"]),
            ("onehop", "allreduce_onehop", [*TIME, "allreduce_onehop", *LINKS]),
            ("onehop", "onehop", ["run", "own.yaml", "--set", "exchanges.AG={scheme: dense, algorithm: onehop}"]),
            ("logs", "fails", ["calibrate", "a.log", "-o", "a.yaml"]),
        ],
    )
    @pytest.mark.parametrize("does", ["None", "{}['this']"])
    def test_it_is_one_message(self, install, own, monkeypatch, name, code, command, does):
        monkeypatch.chdir(own.parent)
        text = FAILING.replace("DOES", does).replace("SELECTS", "_select" if does != "None" else "_communicate")
        # A package of its own for each case: modules stay loaded.
        package = f"mine_failing_{abs(hash((name, code, *command, does)))}"
        install(package, text, self.ENTRIES.replace("mine_failing", package))
        (own.parent / "a.log").write_text("mine 1\n")
        own.write_text(SCENARIO.replace("./mine.py:Mine, share: 0.25", "dense"))
        # A run that stops says so first.
        told = invoke(*command)
        assert told.exit_code == 2, told.output
        (error,) = (one for one in told.stderr.splitlines() if one.startswith("error: "))
        assert "Traceback" not in told.output
        assert f"'{name}', registered as simnet." in error
        assert f" by {package} 1.0 ({package}:" in error
        expected = " returned None, and not " if does == "None" else ", failed: KeyError: 'this' ("
        assert expected in error
        assert re.search(rf"{package}\.py:\d+(, in \w*\.?{code.split('.')[-1]})?", error)

    @pytest.mark.parametrize(
        ("code", "said"),
        [
            ("return worker.odd", r"exchanges\.own: code in .*mine\.py, failed: AttributeError: .*, in a trial before"),
            ("return int(values[0] / values[0])", r"exchanges\.own: .*NaN to integer \(.*mine\.py:25, in Mine\._select,"
             r" in a trial before the run, with one layer and gradients of zero\)$"),
            ("raise OverflowError('odd')", r"exchanges\.own: odd \(.*mine\.py:25, in Mine\._select, in a trial"),
            ("if values.any():\n            raise ValueError('odd')\n        return super()._select(values, worker)",
             r"^error: code in .*mine\.py, failed: ValueError: odd \(.*mine\.py:26, in Mine\._select\); SIMNET"),
        ],
    )  # fmt: skip
    def test_an_error_of_any_kind_names_the_line_and_the_trial(self, own, monkeypatch, code, said):
        text = SCHEME + f"\n    def _select(self, values, worker):\n        {code}\n"
        (own.parent / "mine.py").write_text(text)
        assert re.search(said, invoke("run", own, "--out", own.parent / "out").stderr, re.MULTILINE)
        monkeypatch.setenv(plugins.TRACEBACK, "1")
        with pytest.raises((AttributeError, ValueError, OverflowError)):
            invoke("run", own, "--out", own.parent / "out")

    @pytest.mark.parametrize(
        ("selected", "said"),
        [
            ("top_k(values, self.k)", r"mine declares none \(trait overlaps=True; or job\.overlap=none for all"),
            ("top_k(values, 8 * self.k // 10)", r"Warning: mine selects 0\.[78]\d* % of the entries, 1 % asked\."),
            ("top_k(values, 3 * self.k)", r"mine is not settled: 3 % of the entries, 1 % asked\."),
            ("np.array([3, 3])", r"mine\.py: Mine._select returned .* \(worker 0: index 3 is there twice\) \(.*:6\)"),
            ("abs(values) >= 0", r"\(worker 0: they are bool of shape \(16,\)\)"),
            ("np.array([-1])", r"\(worker 0: index -1 is not from 0 to 15\)"),
        ],
    )  # fmt: skip
    def test_what_a_scheme_selects_and_declares_is_checked(self, tmp_path, monkeypatch, selected, said):
        monkeypatch.chdir(tmp_path)
        used = "gathered import Gathered", "selection import np, top_k"
        code = "".join(f"from simnet.sparsifier_models.{one}\n" for one in used)
        code += "\nclass Mine(Gathered):\n    name, paper = 'mine', 'a test'\n"
        code += f"    def _select(self, values, worker):\n        return {selected}\n"
        (tmp_path / "mine.py").write_text(f"{code}    def _selection_kernels(self):\n        return ()\n")
        words = "run compare --schemes topk,mine.py:Mine --set job.iterations=4 --out out --wide"
        assert re.search(said, " ".join(invoke(*words.split()).output.split()))

    def test_a_kernel_without_cost_is_blamed_on_the_scheme(self, own):
        kernel = "DeviceOp('l2norm', 9)"
        text = f"from simnet.cost_models.costs.devices import DeviceOp\n{SCHEME}"
        (own.parent / "mine.py").write_text(f"{text}\n    def _selection_kernels(self):\n        return ({kernel},)\n")
        said = refused("run", own, "--set", "job.overlap=none")
        assert re.search(r"own\.yaml:8: exchanges\.own: /.*mine\.py:Mine: device .* has no method 'l2norm'", said)

    def test_a_refusal_by_a_constructor_names_its_line(self, own):
        said = refused("run", own, "--set", "exchanges.own.share=2")
        assert re.search(r"share must be in \(0, 1\], got 2\.0 \(.*mine\.py:16, in MineOptions\.__post_init__\)", said)


class TestRefusal:
    def test_no_plugins_refuses_files_and_packages_and_says_so(self, own, install, tmp_path, monkeypatch):
        entries = "[simnet.sparsifiers]\nmine = mine_scheme:Mine\n[simnet.commands]\nm = x:y\n"
        entries += "[simnet.collectives]\nallreduce_new = x:y\n[simnet.log_readers]\nmine_log = x:y\n"
        install("mine_scheme", SCHEME, f"{entries}[simnet.topologies]\nline = x:y\n")
        told = refused("--no-plugins", "run", own)
        assert "own.yaml:8: exchanges.own.scheme: " in told
        assert "mine.py:Mine' is a file, code of others, which --no-plugins or SIMNET_NO_PLUGINS" in told
        assert plugins.plugins_allowed()
        own.write_text(SCENARIO.replace("./mine.py:Mine", "mine"))
        told = refused("--no-plugins", "run", own)
        assert "'mine' is registered as simnet.sparsifiers by mine_scheme 1.0, code of others, which" in told
        assert " mine " not in invoke("--no-plugins", "list", "schemes").stdout
        told = refused("--no-plugins", "run", own, "--set", "network.topology={line: {latency: 1 ms}}")
        assert "'line' is registered as simnet.topologies by mine_scheme 1.0, code of others" in told
        # What simnet itself registers stays.
        with plugins.refuse_plugins():
            assert "validate" in plugins.plugin_names("commands")
        (tmp_path / "a.log").write_text("mine 1\n1024 1e-5\n")
        for refusing, left_out in (
            (["run", own, "--set", "exchanges.own={scheme: artopk, collective: new}"], "allreduce_new"),
            (["time", "allreduce_new", "--workers", "2", "--size", "1 MB"], "allreduce_new"),
            (["calibrate", tmp_path / "a.log", "-o", tmp_path / "a.yaml"], "mine_log"),
        ):
            assert f"; not looked at: {left_out}, code of others, which" in refused("--no-plugins", *refusing)
        monkeypatch.setenv(plugins.REFUSED, "1")
        assert "is registered as" in refused("run", own)
