# All targets set up what they need; only Python 3.11 or newer, git and make must be installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# pytest rewrites the assertions of plugins, too, and would do so again in every process
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test lint types browser unit slow wheel bench notebook docs clean

help:
	@echo "make demo    set up, train a small model and draw its trees"
	@echo "make test    set up, lint, type-check, test, build and try the wheel"
	@echo "make slow    run the slow tests, which must pass before a release"
	@echo "make bench   measure speed and memory on the CPU (takes several minutes)"
	@echo "make notebook  run the notebook of the documentation and store its outputs (takes minutes)"
	@echo "make docs    build the documentation; then open site/index.html in a browser"
	@echo "make clean   remove environments and build outputs"

# modules are compiled when they are first imported, which most never are
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"gumbeltree needs Python 3.11 or newer, found {v[0]}.{v[1]}; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/gumbeltree demo --out demo

# the unit tests use two cores, the others one each
test:
	$(MAKE) --jobs 2 $(READY) browser
	$(MAKE) --jobs 2 lint types wheel
	$(MAKE) unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# the tests of the explorer's page need chromium and are skipped without it
browser:
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
	  --no-install-recommends chromium fonts-dejavu-core > /dev/null; } \
	  || echo "chromium not found and could not be installed: skipping the tests of the explorer's page"

unit: $(READY) browser
	$(BIN)/python -m pytest -n 2 --dist worksteal

slow: $(READY) browser
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

wheel: $(READY)
	bash tests/wheel.sh $(BIN)/python

bench: $(READY)
	$(BIN)/gumbeltree bench --device cpu --json benchmarks/results/cpu.json --plot docs/images/growth.png

notebook: $(READY)
	$(BIN)/python docs/notebook.py

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir site

clean:
	rm -rf $(VENV) .venv-wheel build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis demo site
