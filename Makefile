# Needs Python 3.11+ (with venv) and make. Another interpreter: make PYTHON=python3.13 test
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
ARGS ?=

.PHONY: help setup run test check format guards wheel bench clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):[^#]*## /\1\t/p' Makefile

setup: $(VENV)/ready-dev  ## make $(VENV) with all that run, test and check need

# What a run needs; a second call is free until a dependency changes.
$(VENV)/ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[tables,images]'
	@touch $@

# pip knows dependency groups from 25.1 on; a new venv may carry an older one.
$(VENV)/ready-dev: $(VENV)/ready
	@$(PIP) --upgrade pip
	@$(PIP) --editable '.[mcp,browser,sandbox]' --group dev
	@$(PIP) --no-deps miniwob  # only its pages are needed: they are tasks for the browser's tests
	@touch $@

run: $(VENV)/ready  ## run the first scenario offline, from recorded replies
	@$(BIN)/ori run scenarios/sales_report.yaml --replay

test: $(VENV)/ready-dev  ## run the tests; more options: make test ARGS="-k plan"
	@$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/ready-dev  ## lint, format, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/ready-dev  ## mend what ruff can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

guards: $(VENV)/ready-dev  ## take out each guard of tests/guards.toml and see its test fail
	@$(BIN)/python tests/guards.py $(ARGS)

wheel: $(VENV)/ready-dev  ## build sdist and wheel into dist/
	@$(BIN)/python -m build --no-isolation

bench: $(VENV)/ready-dev  ## print the numbers of benchmarks/
	@missed=0; for file in benchmarks/[!_]*.py; do echo "== $$file"; $(BIN)/python $$file || missed=1; done; exit $$missed

clean:  ## remove the environment, builds and caches
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
