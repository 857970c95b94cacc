# make demo | test | lint | test-gpu | setup | clean.  pytest's own arguments: make test ARGS="-k rm -x"
PYTHON ?= python3
ARGS ?=

READY := .venv/.ready
BIN := .venv/bin
CPP := $(shell find emulator native -name "*.[ch]pp" -o -name "*.h")
BUILD := pyproject.toml tools/setup tools/cuda_headers.py $(shell find CMakeLists.txt emulator native -type f)

.PHONY: demo test test-gpu lint setup clean

demo: setup
	@$(BIN)/runlist demo $(ARGS)

test: setup
	@$(BIN)/python -m pytest $(ARGS)

test-gpu: setup
	@RUNLIST_DEVICE=nvidia $(BIN)/python -m pytest $(ARGS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run --Werror $(CPP)
	@tools/make_ptx --check

setup: $(READY)

$(READY): $(BUILD)
	@PYTHON='$(PYTHON)' tools/setup
	@touch $@

clean:
	rm -rf .venv build
