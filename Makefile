# Everything runs in .venv, which the first target that needs it creates. PYTHON chooses the interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUITES := .venv-suites
INSTALLED := $(VENV)/.installed
DEMO_OUT ?= runs
DEMO_ARGS ?=

.PHONY: demo test test-slow test-suites lint format type bench clean

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

# The suites of others, in an environment of their own that sees what is in $(VENV). They need Java.
test-suites: $(INSTALLED)
	java -version
	$(BIN)/python -m venv $(SUITES)
	$(BIN)/python -c "import sysconfig as s; print('import site; site.addsitedir(%r)' % s.get_path('purelib'))" > \
	  "$$($(SUITES)/bin/python -c "import sysconfig as s; print(s.get_path('purelib'))")/main.pth"
	$(SUITES)/bin/python -m pip install --quiet -c constraints.txt textworld-express==1.1.0 scikit-learn mpmath==1.3.0
	$(SUITES)/bin/python -m pip install --quiet -c constraints.txt --ignore-requires-python gem-llm==0.1.0
	$(SUITES)/bin/python -m pip install --quiet --no-deps bfcl-eval==2026.3.23
	$(SUITES)/bin/python -m pytest -n 2 --dist worksteal tests/test_suite_*.py

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
	rm -rf $(VENV) $(SUITES) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
