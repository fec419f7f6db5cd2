# Everything runs in .venv, which the first target that needs it creates. PYTHON chooses the interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO_OUT ?= runs
DEMO_ARGS ?=

.PHONY: demo test test-slow lint format type bench clean

# One stamp for all targets: pinned versions, the package in editable mode, the extras of the tests and the plots.
$(INSTALLED): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[plots,test]"
	touch $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/seeupo-gym benchmark --preset demo --out $(DEMO_OUT) $(DEMO_ARGS)

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: $(INSTALLED)
	$(BIN)/mypy

bench: $(INSTALLED)
	$(BIN)/python benchmarks/throughput.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
