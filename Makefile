# Everything that a fresh machine needs, from Python 3.11+, a C++ compiler and git alone.
# make demo | test | check | lab | format | test-torch211 | clean

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?= -n 2 -m "not gpu"

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INSTALL_INPUTS := pyproject.toml constraints.txt hatch_build.py
VIEW_SOURCES := $(shell find labextension/src -name '*.ts' -o -name '*.tsx' -o -name '*.css')

.PHONY: demo test check format lab view preflight test-torch211 clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.installed-models
	$(BIN)/python scripts/demo.py

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/npm --prefix labextension run --silent check

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lab: $(VENV)/.installed-models
	$(BIN)/jupyter lab --ServerApp.root_dir=. $(if $(filter 0,$(shell id -u)),--allow-root)

# The view's one built file; the build hook makes it at install, this remakes it after an edit.
view: $(VENV)/.installed-dev
	$(BIN)/python hatch_build.py --force

# Also on torch 2.11, which GPU machines have. By hand only: its wheel is several GB.
test-torch211: preflight
	test -x .venv-torch211/bin/python || $(PYTHON) -m venv .venv-torch211
	.venv-torch211/bin/python -m pip install --quiet "torch==2.11.*" -e ".[models,dev]"
	.venv-torch211/bin/python -m pytest $(PYTEST_ARGS) tests/guard tests/targets tests/workload

preflight:
	@scripts/preflight $(PYTHON)

$(BIN)/python: | preflight
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-models: $(INSTALL_INPUTS) $(VIEW_SOURCES) | preflight $(BIN)/python
	$(PIP) install -c constraints.txt -e ".[models]"
	@touch $@

$(VENV)/.installed-dev: $(INSTALL_INPUTS) $(VIEW_SOURCES) labextension/package-lock.json | preflight $(BIN)/python
	$(PIP) install -c constraints.txt -e ".[models,openai,dev]"
	$(BIN)/python hatch_build.py --dev
	@touch $@ $(VENV)/.installed-models

clean:
	rm -rf .venv-ci kforge_nb/static labextension/node_modules .pytest_cache .mypy_cache .ruff_cache
