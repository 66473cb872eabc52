# Both commands set up everything they need in .venv; they ask for Python >= 3.11, make and git only.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Tests start Python many times: what it compiles is kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test lint slow clean

help:
	@echo "make demo   run scenarios/fluctuating_wan.yaml and say where its report lies"
	@echo "make test   linters, types, layers and the fast tests"
	@echo "make slow   the slow tests"
	@echo "make clean  remove the environment and caches"

demo: .venv/.run
	$(BIN)/simnet run scenarios/fluctuating_wan.yaml --out runs/fluctuating_wan
	@echo "Open runs/fluctuating_wan/report.html in a browser, runs/fluctuating_wan/timeline.json at https://ui.perfetto.dev"

test: lint
	$(BIN)/python -m pytest -q -n auto --dist worksteal

lint: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy examples/plugins
	$(BIN)/lint-imports

slow: .venv/.dev
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m slow

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

.venv/bin/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "simnet needs Python >= 3.11; set PYTHON=/path/to/python3.11"; exit 1; }
	"$(PYTHON)" -m venv .venv

.venv/.run: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

.venv/.dev: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	@touch $@ .venv/.run
