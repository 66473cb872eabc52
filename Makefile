# Commands set up everything they need in .venv and .venv-extras; they ask for Python >= 3.11, make and git only.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
EXTRAS := .venv-extras/bin
PIP := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# What make demo and make test install has the bytes that it had when it was locked; the project itself has no hash.
LOCKED := -m pip install --quiet --disable-pip-version-check --require-hashes --requirement
OURS := -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
TOOLS := .venv-tools/bin
# Tests that need nothing beside .venv.
HERE := not slow and not extras and not browser
LOCK := $(TOOLS)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--constraint constraints.txt

# Tests start Python many times: what it compiles is kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test guard guard-renew test-long test-extras lint slow slow-here slow-extras mutants docs dist clean nightly nightly-fuzz nightly-hypothesis nightly-referee nightly-audit lock

help:
	@echo "make demo         run scenarios/fluctuating_wan.yaml and say where its report lies"
	@echo "make test         linters, types, layers and the fast tests"
	@echo "make guard        whether commands say what they said, by field: tests/golden/outputs; make guard-renew freezes them anew"
	@echo "make test-long    the tests that take long"
	@echo "make test-extras  tests that need PyTorch, MPI, Dask or a browser"
	@echo "make slow         the tests for which the others have no time, the site among them; builds both environments"
	@echo "make mutants      small bugs put into the code one by one, and how many the tests see; CHANGED=HEAD: into what changed since"
	@echo "make nightly      the slow tests, fuzzing and hypothesis with fresh seeds, mutants, and an audit of dependencies"
	@echo "make lock         the versions and hashes of what make demo and make test install"
	@echo "make docs         the documentation with all evidence as a site, in build/site; ten minutes and more"
	@echo "make dist         wheel and sdist, checked, in dist"
	@echo "make clean        remove the environments and caches"

demo: .venv/.run
	$(BIN)/simnet run scenarios/fluctuating_wan.yaml --out runs/fluctuating_wan
	@echo "Open runs/fluctuating_wan/report.html in a browser, runs/fluctuating_wan/timeline.json at https://ui.perfetto.dev"

test: lint
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m 'not long and $(HERE)'

# REQUESTS='run-incast sweep' asks these only.
guard: .venv/.dev
	$(BIN)/python tests/outputs.py check $(REQUESTS)

guard-renew: .venv/.dev
	$(BIN)/python tests/outputs.py renew $(REQUESTS)

test-long: .venv/.dev
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m 'long and $(HERE)' tests

# Each test starts processes of its own, so tests go one after the other.
test-extras: .venv-extras/.dev
	$(EXTRAS)/python -m pytest -q -m '(extras or browser) and not slow' tests

lint: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy examples
	$(BIN)/mypy docs/site
	$(BIN)/lint-imports
	$(BIN)/python tests/house.py words

slow: slow-here slow-extras

slow-here: .venv/.dev
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m 'slow and not extras and not browser' tests

slow-extras: .venv-extras/.dev
	$(EXTRAS)/python -m pytest -q -m '(extras or browser) and slow' tests

# Takes days and can be stopped: it goes on where it was. MUTANTS='--sample 40 --minutes 240' takes some of each area.
mutants: .venv/.mutants
	$(BIN)/python benchmarks/mutation.py $(if $(CHANGED),--changed $(CHANGED)) $(MUTANTS)

# Fresh seeds, each printed with what repeats it; FUZZ='--reader archive --inputs 1000' and the like. A part that fails
# keeps none of the others from running.
nightly:
	$(MAKE) --keep-going slow nightly-fuzz nightly-hypothesis nightly-referee nightly-audit mutants MUTANTS='--sample 40 --minutes 240'

nightly-fuzz: .venv/.dev
	PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ)

nightly-hypothesis: .venv/.dev
	$(BIN)/python -m pytest -q -n auto --hypothesis-profile nightly -m 'hypothesis and not extras and not browser'

# SimGrid, where it is installed.
nightly-referee: .venv/.dev
	$(BIN)/python benchmarks/referee.py --count 1000 --seed $$(date +%j)000

nightly-audit: .venv-tools/.done
	$(TOOLS)/pip-audit --strict --require-hashes --disable-pip --requirement requirements/test.txt

lock: .venv-tools/.done
	$(LOCK) pyproject.toml requirements/build.in --output-file requirements/demo.txt
	$(LOCK) --extra dev pyproject.toml requirements/build.in --output-file requirements/test.txt

docs: .venv-extras/.dev
	$(EXTRAS)/python docs/site/build_site.py build
	@echo "Open build/site/index.html in a browser; searching needs a server: python3 -m http.server -b 127.0.0.1 -d build/site"

dist: .venv-extras/.dev
	rm -rf dist
	$(EXTRAS)/python -m hatchling build
	$(EXTRAS)/twine check --strict dist/*

clean:
	rm -rf dist .venv .venv-tools .venv-extras .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build

%/bin/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "simnet needs Python >= 3.11; set PYTHON=/path/to/python3.11"; exit 1; }
	"$(PYTHON)" -m venv $*

.venv/.run: .venv/bin/python pyproject.toml requirements/demo.txt
	$(BIN)/python $(LOCKED) requirements/demo.txt
	$(BIN)/python $(OURS)
	$(BIN)/python -m simnet.compile
	@touch $@

.venv/.dev: .venv/bin/python pyproject.toml requirements/test.txt
	$(BIN)/python $(LOCKED) requirements/test.txt
	$(BIN)/python $(OURS)
	$(BIN)/python -m simnet.compile
	@touch $@ .venv/.run

.venv/.mutants: .venv/.dev
	$(BIN)/python $(PIP) --editable '.[dev,mutants]'
	@touch $@

.venv-tools/.done: .venv-tools/bin/python
	$(TOOLS)/python -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.10' 'uv>=0.9'
	@touch $@

.venv-extras/.dev: .venv-extras/bin/python pyproject.toml constraints.txt
	$(EXTRAS)/python $(PIP) --editable '.[dev,train,mpi,dask,slurm,browser,docs]' mpich
	@command -v chromium > /dev/null || $(EXTRAS)/playwright install chromium
	@command -v firefox-esr > /dev/null || command -v firefox > /dev/null || $(EXTRAS)/playwright install firefox
	@touch $@
