# make setup   the virtual environment, with everything in it
# make test    checks, then the tests that a change must pass
# make help    the rest

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup java lint format test test-all test-unit test-servers test-spark test-airflow matrix demo docs simulate edges bench build clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.pgetl-installed
EXTRAS := dev
N ?=
ARGS ?=
PYTEST_OPTIONS ?=
# Two files at a time, four where most tests wait for a server more than they compute. Of Spark's and Airflow's tests,
# which wait for their processes in turn, each kind has one process.
BESIDE := -n 2 --dist loadfile --no-loadscope-reorder
SERVERS_BESIDE := -n 4 --dist loadfile --no-loadscope-reorder
SPARK_BESIDE_AIRFLOW := -n 2 --dist loadgroup

export PATH := $(CURDIR)/$(BIN):$(PATH)
# Tests start hundreds of processes. Where bytecode is not kept, each compiles all that it imports: half of the time.
unexport PYTHONDONTWRITEBYTECODE
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python

# A kind of test that has no test yet is no failure (pytest's exit status 5).
pytest = $(BIN)/python -m pytest $(PYTEST_OPTIONS) $(1) || [ $$? -eq 5 ]

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) java ## create .venv where there is none, install the project and its tools into it

$(STAMP): pyproject.toml setup.py constraints.txt
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	if $(BIN)/python -m uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet uv; then \
	    $(BIN)/python -m uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[$(EXTRAS)]' \
	    || $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'; \
	else \
	    $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'; \
	fi
	touch $@

java:
	@scripts/java.sh

lint: setup ## style, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## let ruff put the code into its shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint ## what a change must pass: lint, then unit, server, Spark and Airflow tests that are not slow
	$(call pytest,$(BESIDE) -m "not servers and not spark and not airflow and not slow")
	$(call pytest,$(SERVERS_BESIDE) -m "servers and not spark and not airflow and not slow")
	$(call pytest,$(SPARK_BESIDE_AIRFLOW) -o faulthandler_timeout=1700 -m "(spark or airflow) and not slow")

test-all: lint ## every test, the slow ones too, and the matrix
	$(call pytest,)
	$(BIN)/python -m tests.matrix

test-unit: setup ## only the tests that need neither a server nor Spark
	$(call pytest,$(BESIDE) -m "not servers and not spark and not airflow and not slow")

test-servers: setup ## only the tests on real PostgreSQL servers
	$(call pytest,$(SERVERS_BESIDE) -m "servers and not spark and not airflow and not slow")

test-spark: setup ## only the tests that start Spark
	$(call pytest,-m "spark and not airflow and not slow")

test-airflow: setup ## only the tests that start Airflow's processes
	$(call pytest,-o faulthandler_timeout=1700 -m "airflow and not slow")

matrix: setup ## releases of Airflow x Pythons x executors x databases; ARGS="--only 3.1 --only celery", --list
	$(BIN)/python -m tests.matrix $(ARGS)

demo: setup ## a shop, a lake, and Airflow in between; ARGS="--once --destination postgres", one or both, to vary
	@$(BIN)/pgetl demo $(ARGS)

docs: setup ## the reference from the code, and the documentation as a site, in site/; ARGS=serve shows it while you write
	$(BIN)/python scripts/generate_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build)

simulate: setup ## N=1000: that many simulated schedules of copy, apply, hand-over and crashes
	$(BIN)/python -m tests.simulation --schedules $(or $(N),1000)

edges: setup ## N=20: that many random plans of tables, ALTERs and failing servers; ARGS="--seed 7 --lake" to vary
	$(BIN)/python -m tests.edges --count $(or $(N),20) $(ARGS)

bench: setup ## the benchmarks
	$(BIN)/python -m tests.benchmarks

build: setup ## the wheel and the source distribution, in dist/
	$(BIN)/python -m build

clean: ## remove what builds, tools and tests left; .venv stays
	rm -rf build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .matrix .third-party
	rm -rf spark-warehouse metastore_db derby.log
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
