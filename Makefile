# make demo | test | test-node | checks | mutants | lint | docs | wheels | test-gpu | setup | clean.
# pytest's own arguments: make test ARGS="-k rm -x"
PYTHON ?= python3
ARGS ?=
# Three times as many as cores, since tests wait for half of their time.
WORKERS ?= $(shell echo $$((3 * $$(nproc 2>/dev/null || echo 1))))
# Thousands of interpreters are started: what one has compiled the others need not.
export PYTHONDONTWRITEBYTECODE :=

READY := .venv/.ready
BIN := .venv/bin
CPP := $(shell find emulator native protocol src/runlist/blocks -name "*.[ch]pp" -o -name "*.cuh" -o -name "*.h")
BUILD := pyproject.toml tools/setup tools/cuda_headers.py $(shell find CMakeLists.txt emulator native protocol -type f)

.PHONY: demo test test-node checks mutants test-gpu lint lint-generated lint-docs lint-repository docs wheels setup clean

demo: setup
	@$(BIN)/runlist demo $(ARGS)

# A file's tests stay in one process, which has an emulated GPU of its own. The files that take longest come first, so that
# none is left over when all others are done, and those that compute are among those that wait (tests/conftest.py).
test: setup
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder $(ARGS)

# With the real programs of a node, one test after another: it installs them where it may, and says what it could not.
test-node: setup
	@$(BIN)/python tools/setup-node
	@$(BIN)/python -m pytest tests/node tests/kernel $(ARGS)

# Sanitizers, fuzzing, kills, attacks and random programs as in `make test`, for longer; some four hours.
checks: setup
	@RUNLIST_CHECKS_TIMES=20 RUNLIST_KILLS=1000 RUNLIST_SOAK_S=3600 $(BIN)/python -m pytest -rs \
	  tests/native/test_sanitizers.py tests/native/test_aarch64.py tests/native/test_preload_kills.py tests/hostile \
	  tests/blocks/test_graphs.py tests/emulated/test_hostile.py tests/emulated/test_keeper.py \
	  tests/integrations/test_plugin_restarts.py \
	  tests/node/test_pods_come_and_go.py tests/node/test_containerd.py \
	  tests/unit/test_hosts.py tests/unit/test_policies_any.py tests/native/test_operations_random.py $(ARGS)

# Single mistakes put into a copy of the sources: how many of them the tests find.
mutants: setup
	@$(BIN)/python tools/mutants $(ARGS)

test-gpu: setup
	@RUNLIST_DEVICE=nvidia $(BIN)/python -m pytest $(ARGS)

lint: setup lint-generated lint-docs lint-repository
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run --Werror $(CPP)

lint-generated: setup
	@tools/make_ptx --check
	@$(BIN)/python tools/make_protocol --check
	@$(BIN)/python tools/make_grpc --check
	@$(BIN)/python tools/make_guide --check
	@$(BIN)/python tools/make_metrics --check
	@$(BIN)/python tools/make_timelines --check
	@$(BIN)/python tools/make_performance --check
	@$(BIN)/python tools/make_functions --check
	@$(BIN)/python tools/make_man --check

# Links and anchors that lead nowhere, and pages that the navigation of mkdocs.yml does not have.
# (mkdocs' own --quiet would not count them.)
lint-docs docs: setup
	@said=$$(NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build 2>&1) || { printf '%s\n' "$$said" >&2; exit 1; }

# Workflows, templates, CITATION.cff: as their schemas say.
lint-repository: setup
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.citation-file-format CITATION.cff

# dist/: the source distribution and a wheel for each processor. Needs no compiler and no container.
wheels: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group release
	@$(BIN)/python tools/make_wheels $(ARGS)

setup: $(READY)

$(READY): $(BUILD)
	@PYTHON='$(PYTHON)' tools/setup
	@touch $@

clean:
	rm -rf .venv build
