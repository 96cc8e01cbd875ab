# Set-up lives in scripts/setup.sh; every target below runs it first, and it is quick when nothing changed.
# A failing recipe makes `make` itself exit 2 and print the command's own code: "Error 1" after `make chaos`
# means that loadgen exited 1 (0 pass, 1 a threshold broke, 2 interrupted, 3 the harness failed, 4 usage or
# configuration, 5 inconclusive).
.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules --no-print-directory
SHELL := /bin/sh

BIN := .venv/bin
TESTBED ?= lab
OUT ?= out/chaos-$(shell date -u +%Y%m%dT%H%M%SZ)
ARGS ?=

.PHONY: help
help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10
	@echo 'Variables: TESTBED=lab  OUT=DIR  ARGS="options of the command"  PYTHON=python3.12'

.PHONY: chaos
chaos: ## Reproduce the failure and its cure on TESTBED (default lab), write the run to OUT
	@scripts/setup.sh chaos
	@$(BIN)/loadgen chaos --testbed "$(TESTBED)" --out "$(OUT)" $(ARGS)

.PHONY: test
test: ## Run every test; those of the kernel need root and are skipped, loudly, without it
	@scripts/setup.sh test
	@$(BIN)/pytest $(ARGS)

.PHONY: e2e
e2e: ## Run the tests on real kind clusters: root; builds Kubernetes from its modules, 10 minutes the first time
	@scripts/setup.sh e2e
	@$(BIN)/python -m e2e.machine up
	@eval "$$($(BIN)/python -m e2e.machine env)"; $(BIN)/pytest e2e $(ARGS)

.PHONY: check
check: lint ## Before a commit: lint, then the tests that need no root; under a minute
	@$(BIN)/pytest -q -m "not kernel and not slow" $(ARGS)

.PHONY: lint
lint: ## Check format, style, types and import contracts
	@scripts/setup.sh build
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	@$(BIN)/lint-imports --no-logo

.PHONY: setup
setup: ## Only set up: Debian packages (as root), .venv, the C extension and the BPF object
	@scripts/setup.sh chaos

.PHONY: clean
clean: ## Remove .venv, build products and caches; runs in out/ stay
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find loadgen \( -name '*.so' -o -name '*.bpf.o' \) -delete
	rm -f loadgen/drivers/lookup-*
	find loadgen tests bench e2e -name __pycache__ -type d -prune -exec rm -rf {} +
