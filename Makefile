# All that a new machine needs is make and Python >= 3.11:
#   make plan    plan the flagship scenario        make test    every check, as CI runs it
#   make verify  errors of the published tables    make bench   start-up and plan times
#   make docs    renew what README.md and docs/ quote of pdmodel's output
#   make clean   remove what the others made
# PYTHON=python3.12 chooses the interpreter, SCENARIO=name_or_path the scenario of `make plan`.

PYTHON ?= python3
SCENARIO ?= agentic_turn_pcie
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install plan test lint types imports unit verify bench docs readme clean

help:
	@sed -n 's/^#   //p' Makefile

install: $(INSTALLED)

# The stamp is as old as the last install: a change of the dependencies, and nothing else, installs again. What pip says
# goes to a log that is shown when it fails; with V=1 it goes to the screen.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "pdmodel needs Python 3.11 or later, $(PYTHON) is " + sys.version.split()[0] + "; try PYTHON=python3.12")'
	@echo "installing into $(VENV) (once) ..." >&2
	@$(PYTHON) -m venv $(VENV)
ifdef V
	$(PIP) install -c constraints.txt -e '.[dev]'
else
	@$(PIP) install --quiet -c constraints.txt -e '.[dev]' >$(VENV)/install.log 2>&1 || { cat $(VENV)/install.log >&2; exit 1; }
endif
	@touch $@

plan: $(INSTALLED)
	@$(BIN)/pdmodel plan $(SCENARIO)

test: lint types imports unit

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

imports: $(INSTALLED)
	$(BIN)/lint-imports --no-logo

unit: $(INSTALLED)
	$(BIN)/python -m pytest

bench: $(INSTALLED)
	@for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

verify: $(INSTALLED)
	@$(BIN)/pdmodel verify

# What README.md and the pages quote of pdmodel's output, run again.
docs readme: $(INSTALLED)
	$(BIN)/python docs/refresh.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache .grimp_cache
	find pdmodel tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
