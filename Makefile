# make demo | test | checks | mutants | lint | test-gpu | setup | clean.  pytest's own arguments: make test ARGS="-k rm -x"
PYTHON ?= python3
ARGS ?=

READY := .venv/.ready
BIN := .venv/bin
CPP := $(shell find emulator native protocol -name "*.[ch]pp" -o -name "*.h")
BUILD := pyproject.toml tools/setup tools/cuda_headers.py $(shell find CMakeLists.txt emulator native protocol -type f)

.PHONY: demo test checks mutants test-gpu lint setup clean

demo: setup
	@$(BIN)/runlist demo $(ARGS)

# A file's tests stay in one process, which has an emulated GPU of its own.
test: setup
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile $(ARGS)

# Sanitizers, fuzzing, kills and attacks as in `make test`, for longer; some three hours.
checks: setup
	@RUNLIST_CHECKS_TIMES=20 RUNLIST_KILLS=1000 RUNLIST_SOAK_S=3600 $(BIN)/python -m pytest -rs \
	  tests/native/test_sanitizers.py tests/native/test_aarch64.py tests/native/test_preload_kills.py tests/hostile \
	  tests/emulated/test_keeper.py tests/unit/test_hosts.py tests/unit/test_policies_any.py $(ARGS)

# Single mistakes put into a copy of the sources: how many of them the tests find.
mutants: setup
	@$(BIN)/python tools/mutants $(ARGS)

test-gpu: setup
	@RUNLIST_DEVICE=nvidia $(BIN)/python -m pytest $(ARGS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run --Werror $(CPP)
	@tools/make_ptx --check
	@$(BIN)/python tools/make_protocol --check
	@$(BIN)/python tools/make_guide --check
	@$(BIN)/python tools/make_timelines --check
	@$(BIN)/python tools/make_performance --check
	@$(BIN)/python tools/make_functions --check
	@$(BIN)/python tools/make_man --check

setup: $(READY)

$(READY): $(BUILD)
	@PYTHON='$(PYTHON)' tools/setup
	@touch $@

clean:
	rm -rf .venv build
