"""The matrix: Pythons, versions of dependencies, extras, threads, interpreted loops; ``nox -l`` lists it.

``nox -s tests-3.12`` runs one. Each session makes an environment of its own and runs the tests of `SELECTION`, where
versions and machines show: golden runs, clocks, closed forms, exponentials and units. ``nox -s tests-3.12 -- tests``
runs all, or what else stands behind ``--``. Interpreters have to be there: sessions of others are skipped, and said.
docs/trust.md has what they gave.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|venv"
nox.options.sessions = ["tests", "oldest", "newest", "plain", "extra", "threads", "interpreted"]

PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
# What tests need beside simnet and its extras, and what all of them need.
TOOLS = ("hypothesis", "pytest", "pytest-xdist", "hatchling", "hatch-fancy-pypi-readme")
ALL = (*TOOLS, "scikit-learn")
SHORT = "published clocks costs exponential schedule units"
SELECTION = tuple(f"tests/test_{name}.py" for name in SHORT.split())
INTERPRETED = ("tests/test_engines.py", "tests/test_against_reference.py")
# What is tested of an extra alone, and what else that needs.
EXTRAS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "digits": (("tests/test_live_training.py", "-k", "digits"), ()),
    "train": (("tests/test_live_torch.py", "-m", "extras"), ()),
    "mpi": (("tests/test_replay.py", "-m", "extras", "-k", "mpi"), ("mpich",)),
    "dask": (("tests/test_sweep.py", "-m", "extras", "-k", "cluster and not jobs"), ()),
    "slurm": (("tests/test_sweep.py", "-m", "extras", "-k", "slurm or jobs or job_that"), ()),
}


def lowest(requirements: list[str]) -> list[str]:
    """Return requirements with the oldest versions that they allow."""
    return [re.sub(r">=([\w.]+).*", r"==\1", one) for one in requirements]


def run(session: nox.Session, *arguments: str, chosen: tuple[str, ...] = SELECTION, **env: str) -> None:
    """Run the tests that are chosen, or those that stand behind ``--``."""
    # Tests for which continuous integration has no time are as good as any here.
    plain = ("-m", "not extras and not browser", *chosen)
    session.run("python", "-m", "pytest", "-q", "-n", "auto", *arguments, *(session.posargs or plain), env=env)


@nox.session(python=["3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    """Run the tests with the versions of constraints.txt."""
    session.install("--constraint", "constraints.txt", "--editable", ".", *ALL)
    run(session)


@nox.session(python="3.11")
def oldest(session: nox.Session) -> None:
    """Run the tests with the oldest versions of dependencies that pyproject.toml allows."""
    session.install(*lowest(PROJECT["dependencies"]), *ALL)
    session.install("--no-deps", "--editable", ".")
    # Old versions call what newer ones, of what they need, call deprecated.
    run(session, "-W", "ignore::DeprecationWarning")


@nox.session(python="3.13")
def newest(session: nox.Session) -> None:
    """Run the tests with the newest versions that there are today."""
    session.install("--upgrade", "--editable", ".", *ALL)
    run(session)


@nox.session(python="3.11")
def plain(session: nox.Session) -> None:
    """Run a scenario where nothing but simnet and what it depends on is installed."""
    session.install("--constraint", "constraints.txt", "--editable", ".")
    session.run("simnet", "run", "quickstart", "--force", "--out", session.create_tmp())


@nox.session(python="3.11")
@nox.parametrize("extra", list(EXTRAS))
def extra(session: nox.Session, extra: str) -> None:
    """Run the tests of one extra where it alone is installed."""
    chosen, beside = EXTRAS[extra]
    session.install("--constraint", "constraints.txt", "--editable", f".[{extra}]", *TOOLS, *beside)
    run(session, chosen=chosen)


@nox.session(python="3.11")
@nox.parametrize("count", [1, 2])
def threads(session: nox.Session, count: int) -> None:
    """Hold golden runs and clocks to their values with so many threads of the numerical libraries."""
    session.install("--constraint", "constraints.txt", "--editable", ".", *ALL)
    limits = dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), str(count)
    )
    run(session, chosen=SELECTION[:2], **limits)


@nox.session(python="3.11")
def interpreted(session: nox.Session) -> None:
    """Hold engines to each other, and to the reference, where numba is told not to compile."""
    session.install("--constraint", "constraints.txt", "--editable", ".", *ALL)
    run(session, chosen=INTERPRETED, NUMBA_DISABLE_JIT="1")
