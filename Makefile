# Everything happens inside the project: the environment is .venv, nothing is written elsewhere.
# Two stamps keep the second time quick, and spare `make demo` the tools that only the tests need.

VENV   := .venv
BIN    := $(VENV)/bin
PYTHON ?=
PIP    := $(BIN)/python -m pip --disable-pip-version-check --no-cache-dir
UV     := uv==0.13.7

# The lock names everything, extras included, so pip has nothing to resolve. Its names of packages as they come, without
# its chatter; errors still show.
INSTALL = set -o pipefail; $(PIP) install --no-deps --require-hashes --progress-bar off -r $(1) \
	| awk '/^Collecting/ { print "    " $$2; fflush() } /^Installing/ { print "    unpacking"; fflush() }'
STEP    = @printf '\n==> %s\n'

# Tests start hundreds of interpreters, and without compiled modules each start takes twice as long.
unexport PYTHONDONTWRITEBYTECODE

SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test check torture bench lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.run ## See it work: real workers on SQLite, one of them killed half-way (under 30 seconds)
	@$(BIN)/taskharbor demo

test: check ## Run the checks and all tests; the core must be covered to the last branch
	$(STEP) 'Tests of the core, with branch coverage'
	@$(BIN)/python -m coverage erase
	@$(BIN)/python -m coverage run -m pytest -n auto tests/core
	@$(BIN)/python -m coverage combine -q
	@$(BIN)/python -m coverage report --fail-under=100
	$(STEP) 'All other tests'
	@$(BIN)/python -m pytest -n $$($(BIN)/python -c 'import os; print(os.cpu_count() * 2)') --dist worksteal --ignore=tests/core --time-report

check: $(VENV)/.dev ## Lint, formatting, types (mypy and pyright), import rules
	$(STEP) 'Lint (ruff)'
	@$(BIN)/ruff check
	$(STEP) 'Formatting (ruff)'
	@$(BIN)/ruff format --check
	$(STEP) 'Types (mypy --strict, and beside it pyright, strict)'
	@$(BIN)/basedpyright >$(VENV)/pyright.txt 2>&1 & pyright=$$!; trap "kill $$pyright" INT TERM; \
	$(BIN)/python -m mypy; mypy=$$?; wait $$pyright; found=$$?; cat $(VENV)/pyright.txt; exit $$((mypy + found))
	$(STEP) 'Import rules (import-linter)'
	@$(BIN)/lint-imports --no-logo

SEEDS  ?= 5000
DRIVER ?= memory

torture: $(VENV)/.dev ## Go on where the tests stop: SEEDS=5000 DRIVER=memory, all mutants, power cuts, kills at every step, cron in all zones
	$(STEP) 'Simulation: $(SEEDS) seeds on $(DRIVER)'
	@$(BIN)/python -m taskharbor.testing.simulation --seeds $(SEEDS) --driver '$(DRIVER)' --keep tests/sim/regressions
	$(STEP) 'Mutants: everyone before every catcher'
	@PYTHONPATH=tests $(BIN)/python -m mutants
	$(STEP) 'Tests that make test leaves out'
	@$(BIN)/python -m pytest -n auto -m thorough
	$(STEP) 'Real processes, real faults: what needs root says so'
	@$(BIN)/python -m torture

bench: $(VENV)/.bench ## Measure speed against the limit and others (three quarters of an hour; QUICK=1, ONLY=drain, ENGINE=postgres, redis or nats less; AGAINST=main~9 with an earlier revision)
	@$(VENV)/bench/bin/python -m benchmarks $(if $(QUICK),--quick) $(if $(ONLY),--only '$(ONLY)') \
		$(if $(ENGINE),--engine '$(ENGINE)') $(if $(AGAINST),--against '$(AGAINST)')

lock: $(BIN)/python ## Pin the newest versions again, with hashes, into requirements/*.txt
	$(STEP) 'Pinning the dependencies for Python 3.11 and newer'
	@test -x $(VENV)/lock/bin/python || $(BIN)/python -m venv $(VENV)/lock
	@$(VENV)/lock/bin/python -m pip --disable-pip-version-check --no-cache-dir install --quiet '$(UV)'
	@lock() { $(VENV)/lock/bin/uv --no-config --no-cache --quiet pip compile --universal --python-version 3.11 \
		--generate-hashes --strip-extras --upgrade --custom-compile-command 'make lock' "$$@" >/dev/null; } \
	&& lock pyproject.toml requirements/run.in requirements/dev.in -o requirements/dev.txt \
	&& lock pyproject.toml requirements/run.in -c requirements/dev.txt -o requirements/run.txt \
	&& lock pyproject.toml requirements/run.in requirements/bench.in -c requirements/dev.txt -o requirements/bench.txt \
	&& lock requirements/bench-older.in -o requirements/bench-older.txt \
	&& lock requirements/bench-honker.in --only-binary :all: -o requirements/bench-honker.txt
	@echo 'Wrote requirements/dev.txt, run.txt, bench.txt, bench-older.txt and bench-honker.txt.'

clean: ## Remove the environment, caches and build products
	@rm -rf $(VENV) build dist src/*.egg-info .coverage .coverage.* \
		.hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python); do \
		if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			printf '==> Making %s with %s\n' '$(VENV)' "$$("$$python" --version)"; \
			exec "$$python" -m venv --clear $(VENV); \
		fi; \
	done; \
	echo 'TaskHarbor needs Python 3.11 or newer with its venv module: install it, or name it with make PYTHON=/path/to/python3.' >&2; \
	exit 1

$(VENV)/.run: $(BIN)/python requirements/run.txt pyproject.toml
	$(STEP) 'Installing what TaskHarbor needs to run (once)'
	@$(call INSTALL,requirements/run.txt)
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	$(STEP) 'Installing what the checks and tests need (once; a minute or two)'
	@$(call INSTALL,requirements/dev.txt)
	@touch $@

# The rivals get an environment of their own. One that has no wheel for this machine is named in the results.
$(VENV)/.bench: PIP := $(VENV)/bench/bin/python -m pip --disable-pip-version-check --no-cache-dir
$(VENV)/.bench: $(BIN)/python requirements/bench.txt requirements/bench-older.txt requirements/bench-honker.txt pyproject.toml
	$(STEP) 'Installing what the benchmarks compare with, in an environment of its own (once)'
	@$(BIN)/python -m venv --clear $(VENV)/bench
	@$(call INSTALL,requirements/bench.txt)
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@$(PIP) install --quiet --no-deps --require-hashes --target $(VENV)/bench/older -r requirements/bench-older.txt
	@$(PIP) install --quiet --only-binary :all: --require-hashes -r requirements/bench-honker.txt 2>/dev/null \
		|| echo '    honker has no wheel for this machine: measuring without it'
	@touch $@
