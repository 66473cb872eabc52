"""The matrix: Pythons, versions of dependencies, extras, threads; ``nox -l`` lists it, ``nox -s tests-3.12`` runs one.

Each session makes an environment of its own. The interpreters have to be there: sessions of others are skipped, and
said.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["tests", "oldest", "newest", "plain", "threads"]

PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
# What tests need beside simnet.
TOOLS = ("hypothesis", "pytest", "pytest-xdist", "scikit-learn", "hatchling", "hatch-fancy-pypi-readme")
EXTRAS = ("digits", "train", "mpi", "dask", "slurm")


def lowest(requirements: list[str]) -> list[str]:
    """Return requirements with the oldest versions that they allow."""
    return [re.sub(r">=([\w.]+).*", r"==\1", one) for one in requirements]


def run(session: nox.Session, *arguments: str, **env: str) -> None:
    """Run the tests, or those that stand behind ``--``."""
    session.run("python", "-m", "pytest", "-q", "-n", "auto", *arguments, *session.posargs, env=env)


@nox.session(python=["3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    """Run the tests with the versions of constraints.txt."""
    session.install("--constraint", "constraints.txt", "--editable", ".", *TOOLS)
    run(session)


@nox.session(python="3.11")
def oldest(session: nox.Session) -> None:
    """Run the tests with the oldest versions of dependencies that pyproject.toml allows."""
    session.install(*lowest(PROJECT["dependencies"]), *TOOLS)
    session.install("--no-deps", "--editable", ".")
    run(session)


@nox.session(python="3.13")
def newest(session: nox.Session) -> None:
    """Run the tests with the newest versions that there are today."""
    session.install("--upgrade", "--editable", ".", *TOOLS)
    run(session)


@nox.session(python="3.11")
def plain(session: nox.Session) -> None:
    """Run a scenario where nothing but simnet and what it depends on is installed."""
    session.install("--constraint", "constraints.txt", "--editable", ".")
    session.run("simnet", "run", "quickstart", "--out", session.create_tmp())


@nox.session(python="3.11")
@nox.parametrize("extra", EXTRAS)
def extra(session: nox.Session, extra: str) -> None:
    """Run the tests with one extra alone."""
    session.install("--constraint", "constraints.txt", "--editable", f".[{extra}]", *TOOLS)
    run(session)


@nox.session(python="3.11")
@nox.parametrize("count", [1, 2])
def threads(session: nox.Session, count: int) -> None:
    """Hold golden runs and clocks to their values with so many threads of the numerical libraries."""
    session.install("--constraint", "constraints.txt", "--editable", ".", *TOOLS)
    limits = dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), str(count)
    )
    run(session, "tests/test_published.py", "tests/test_run_in_step.py", "tests/test_clocks.py", **limits)
