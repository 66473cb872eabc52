"""What is built of this repository, and installed: its name, its content, and that it leaves others what is theirs."""

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import simnet
from simnet.base.errors import DISTRIBUTION

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PARTS = ("topologies", "sparsifier_models", "validate", "scenarios")
ONLY_IN_A_CHECKOUT = {
    "simnet/data/traces/README.md",
}
"""How shipped data and constants were made: what no command reads."""

TRACES = re.compile(r"simnet/data/traces/(?!convolutional-dirichlet/)[^/]*/(.*\.safetensors|trace\.json)")
"""Recorded gradients of a checkout that no package has."""

PYTHONS = os.environ.get("SIMNET_PYTHONS", sys.executable).split(os.pathsep)
"""The interpreters to install it with, each in an environment of its own."""

STRANGERS = {
    "validate.py": "THEIRS = True\n",
    "scenarios/__init__.py": "THEIRS = True\n",
    "topologies.py": "THEIRS = True\n",
}
BESIDE = """
import sys
from importlib import import_module
theirs, ours = ["validate", "scenarios", "topologies"], ["simnet", "simnet.validate.published", "simnet.topologies"]
for name in ours + theirs if sys.argv[1] == "ours" else theirs + ours:
    import_module(name)
assert all(sys.modules[name].THEIRS for name in theirs)
assert sys.modules["simnet"].load("quickstart").config.workers
try:
    import_module("validate.readers")
except ModuleNotFoundError:
    print(sys.modules["simnet"].__file__)
"""
"""A program that uses simnet and packages of others that have the names of folders of a checkout."""


def run(*command, **options):
    """Run a program of these words, which ends well, and return what it said."""
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Wheel and sdist of this checkout, in one folder."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="session")
def without_links(tmp_path_factory):
    """A source tree where links are not supported: git writes files that have their targets."""
    folder = tmp_path_factory.mktemp("windows") / "simnet"
    shutil.copytree(ROOT / "simnet", folder / "simnet", ignore=shutil.ignore_patterns("__pycache__"))
    for name in (
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "LICENSE",
        ".gitignore",
        "hatch_build.py",
    ):
        shutil.copy2(ROOT / name, folder)
    for name in PARTS:
        (folder / name).write_text(f"simnet/{name}")
    return folder


@pytest.fixture(scope="session")
def unpacked(built, tmp_path_factory):
    """A folder as one with installed packages: simnet as the wheel has it, and those of others."""
    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(built[0]).extractall(folder)
    strangers(folder)
    return folder


def strangers(folder):
    for name, text in STRANGERS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def content(wheel):
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_every_hint_has_the_name_of_the_distribution_and_an_extra_of_it():
    assert PROJECT["name"] == DISTRIBUTION
    folders = ("simnet", "docs", "examples", "benchmarks")
    files = [
        one
        for folder in folders
        for one in (ROOT / folder).rglob("*")
        if one.suffix in (".py", ".md", ".yaml", ".toml", ".txt")
    ]
    for file in [*files, ROOT / "README.md", ROOT / "CHANGELOG.md"]:
        text = file.read_text(encoding="utf-8")
        assert not re.search(
            r"pip install '?simnet(?!-sparse)|\bsimnet\[\w|^dependencies = .*\"simnet\"", text, re.MULTILINE
        ), file
        named = re.findall(rf"{DISTRIBUTION}\[(\w+)\]|to_install\(['\"](\w+)['\"]\)", text)
        assert {one or other for one, other in named} <= set(PROJECT["optional-dependencies"]), file


def test_a_wheel_has_all_below_one_package(built):
    files = content(built[0])
    assert {name.split("/")[0] for name in files} == {"simnet", f"simnet_sparse-{simnet.__version__}.dist-info"}
    there = [one for one in (ROOT / "simnet").rglob("*") if one.is_file() and one.parent.name != "__pycache__"]
    named = {str(one.relative_to(ROOT)) for one in there}
    gradients = {one for one in named if TRACES.fullmatch(one)}
    assert named - {*files} == ONLY_IN_A_CHECKOUT | gradients


def test_a_wheel_is_small_and_has_the_trace_of_the_scenario_that_needs_one(built):
    assert built[0].stat().st_size < 6_000_000
    assert built[1].stat().st_size < 6_000_000
    files = {name.removeprefix("simnet/data/traces/") for name in content(built[0]) if "data/traces/" in name}
    assert {name.partition("/")[0] for name in files if name.endswith(".safetensors")} == {"convolutional-dirichlet"}
    assert sum(name.endswith("/synthetic.json") for name in files) == 5


def test_wheel_and_sdist_have_the_schema_of_their_scenarios(built, tmp_path):
    written = content(built[0])["simnet/scenarios/scenario.schema.json"]
    assert written.decode() == run(sys.executable, "-m", "simnet.cli", "--no-plugins", "show", "schema", cwd=ROOT)
    assert set(json.loads(written)["required"]) == {"workers", "network", "job"}
    with tarfile.open(built[1]) as file:
        (member,) = (one for one in file.getmembers() if one.name.endswith("/scenario.schema.json"))
        assert file.extractfile(member).read() == written


def test_an_installed_simnet_says_which_traces_it_has(unpacked, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    command = [sys.executable, "-m", "simnet.cli", "--no-plugins"]
    assert "convolutional-dirichlet" in run(*command, "list", "traces", env=environment, cwd=tmp_path)
    words = "convert base ./made --to trace --workers 2 --gradients synthetic:like=digits"
    words += " --set job.model=null --set job.parameters=1000 --set job.scale=1 --set job.iterations=2 --compute 1ms"
    assert "2 workers, 1,000 entries" in run(*command, *words.split(), env=environment, cwd=tmp_path)
    refused = subprocess.run(
        [*command, "show", "digits"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "the recorded gradients of 'digits' do not ship" in refused.stderr


def test_the_wheel_of_an_sdist_is_the_wheel_of_the_checkout(built, tmp_path):
    with tarfile.open(built[1]) as file:
        members = file.getmembers()
        assert all(one.isfile() for one in members)
        file.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    assert {one.name for one in folder.iterdir() if one.is_dir()} == {"simnet"}
    for path in folder.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
        path.chmod(0o700 if path.is_dir() else 0o600)
    build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again")
    run(*build, cwd=folder, umask=0o077)
    (again,) = (tmp_path / "again").iterdir()
    assert content(again) == content(built[0])
    # Of other files, later, and by who lets others read nothing.
    assert again.read_bytes() == built[0].read_bytes()


def test_an_index_shows_no_picture_and_no_link_that_leads_nowhere(built):
    told = email.message_from_bytes(content(built[0])[f"simnet_sparse-{simnet.__version__}.dist-info/METADATA"])
    text = str(told.get_payload())
    assert told["Description-Content-Type"] == "text/markdown"
    assert "# simnet" in text
    assert "![" not in text
    assert not re.search(r"^!", text, re.MULTILINE)
    assert "make demo" in text
    for target in [*re.findall(r"\]\(([^)]*)\)", text), *re.findall(r"(?:src|href)=\"([^\"]*)\"", text)]:
        assert target.startswith("https://"), target
    assert all(url.partition(", ")[2].startswith("https://") for url in told.get_all("Project-URL", []))


def test_a_source_tree_without_links_works_and_has_the_same_wheel(built, without_links, tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=without_links)
    (again,) = tmp_path.glob("*.whl")
    assert content(again) == content(built[0])
    works(without_links, tmp_path)
    # Nor does anything need them, as in a zip that leaves them out.
    for name in PARTS:
        (without_links / name).unlink()
    works(without_links, tmp_path)


def works(tree, folder, python=sys.executable):
    """Check that simnet as it lies in a folder, or is installed, runs a scenario and finds what comes with it."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    words = "run quickstart --set job.iterations=2 --set output.report=false --out run --force"
    run(python, "-m", "simnet.cli", *words.split(), env=environment, cwd=folder)
    for kind, name in (("scenarios", "fluctuating_wan"), ("schemes", "oktopk"), ("networks", "fat_tree")):
        assert name in run(python, "-m", "simnet.cli", "list", kind, env=environment, cwd=folder)
    said = run(python, "-m", "simnet.cli", "reproduce", "artopk-table-ii", env=environment, cwd=folder)
    assert said.startswith("36 for orientation, not judged.")
    assert "Contradictions: none." in said


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_an_installed_simnet_leaves_names_to_others(unpacked, tmp_path, first):
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    said = run(sys.executable, "-c", BESIDE, first, env=environment, cwd=tmp_path)
    assert Path(said.strip()) == unpacked / "simnet" / "__init__.py"


def test_an_installed_simnet_runs_from_any_folder(unpacked, tmp_path):
    works(unpacked, tmp_path)


@pytest.mark.extras
def test_twine_finds_nothing_to_say(built):
    assert run(sys.executable, "-m", "twine", "check", "--strict", *built).count("PASSED") == 2


@pytest.mark.extras
@pytest.mark.parametrize("python", PYTHONS)
def test_installed_beside_others_in_a_fresh_environment(built, without_links, tmp_path, python):
    run(python, "-m", "venv", tmp_path / "fresh")
    fresh = tmp_path / "fresh" / "bin" / "python"
    site = Path(run(fresh, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    strangers(site)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pip = [fresh, "-m", "pip", "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--force-reinstall", "--constraint", ROOT / "constraints.txt"]
    (tmp_path / "elsewhere").mkdir()
    for archive in reversed(built):
        run(*install, *["--no-deps"] * (archive == built[0]), archive, env=environment)
        run(*pip, "check", env=environment)
        assert Path(run(fresh, "-c", BESIDE, "theirs", env=environment, cwd=tmp_path).strip()).is_relative_to(site)
    words = "run fluctuating_wan --set job.iterations=20 --out demo"
    run(fresh.with_name("simnet"), *words.split(), env=environment, cwd=tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "demo" / "report.html").is_file()
    assert (site / "validate.py").read_text() == STRANGERS["validate.py"]
    # Editable, of a tree with links and of one without them.
    for tree in (ROOT, without_links):
        run(*install, "--no-deps", "--editable", tree, env=environment)
        (found,) = tree.glob("simnet/__init__.py")
        code = "import simnet.validate.published; print(simnet.__file__)"
        assert run(fresh, "-c", code, env=environment, cwd=tmp_path / "elsewhere").strip() == str(found)
        works("", tmp_path / "elsewhere", fresh)
