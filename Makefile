# make demo and make test are the two commands of the README; each sets up what it needs on a fresh machine.
SHELL := /bin/bash
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
BUILD := build/dev
SYSTEM_PACKAGES := python3-venv gcc g++ make libfabric-dev libfabric-bin
LINT_PACKAGES := clang-format-14
JOBS ?= $(shell nproc)

.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: system
system:
	@missing=""; for p in $(SYSTEM_PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing$$missing"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	  else echo "missing packages; type: sudo apt-get install$$missing"; exit 1; fi; fi

$(BIN)/python: | system
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

# The package itself, with its native libraries; again whenever a native or packaging file changed.
NATIVE_SOURCES := $(shell find native instrument examples -name '*.cpp' -o -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name CMakeLists.txt 2>/dev/null) CMakeLists.txt
$(VENV)/.installed: pyproject.toml $(NATIVE_SOURCES) | $(BIN)/python
	$(BIN)/pip install --quiet -e .
	@touch $@

$(VENV)/.test-tools: pyproject.toml $(VENV)/.installed
	$(BIN)/pip install --quiet -e '.[test,plot]'
	@touch $@

$(VENV)/.lint-tools: pyproject.toml $(VENV)/.test-tools
	$(BIN)/pip install --quiet -e '.[lint]'
	@touch $@

.PHONY: install
install: $(VENV)/.installed ## efaprof in .venv, its libraries built

# Test programs, outside the package.
.PHONY: native
native: $(VENV)/.installed
	@$(BIN)/python -c 'import cmake' 2>/dev/null || $(BIN)/pip install --quiet cmake ninja
	@$(BIN)/cmake -S . -B $(BUILD) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DEFAPROF_TESTS=ON >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@$(BIN)/cmake --build $(BUILD) -j$(JOBS) >>$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }

.PHONY: demo
demo: $(VENV)/.installed ## record, attribute and show the dispatch path on loopback
	@BIN=$(BIN) examples/demo.sh

.PHONY: test
test: $(VENV)/.test-tools native ## the test suite
	EFAPROF_BUILD_DIR=$(CURDIR)/$(BUILD) $(BIN)/python -m pytest -q $(ARGS)

.PHONY: test-slow
test-slow: $(VENV)/.test-tools native ## the test suite with its long forms
	EFAPROF_BUILD_DIR=$(CURDIR)/$(BUILD) $(BIN)/python -m pytest -q --slow $(ARGS)

.PHONY: bench
bench: $(VENV)/.test-tools native ## every benchmark table
	@for b in bench/*.py; do EFAPROF_BUILD_DIR=$(CURDIR)/$(BUILD) $(BIN)/python $$b || exit 1; done

CLANG_FORMAT ?= $(shell command -v clang-format-14 || command -v clang-format)
.PHONY: lint
lint: $(VENV)/.lint-tools ## ruff, mypy --strict, import-linter, clang-format
	@dpkg -s $(LINT_PACKAGES) >/dev/null 2>&1 || command -v clang-format >/dev/null || \
	  { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(LINT_PACKAGES) >/dev/null; }
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	git ls-files '*.c' '*.cpp' '*.h' '*.cu' '*.cuh' | xargs $(CLANG_FORMAT) --dry-run -Werror

.PHONY: clean
clean: ## remove what was built (not the runs)
	rm -rf build $(VENV)
