# One target a habit; .ci/run calls the same ones.
PYTHON ?= python3
VENV ?= .venv
VLLM ?= .vllm
OLDEST ?= .oldest
PYTHONS ?= $(PYTHON)
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# One worker more than cores, because many tests wait; at most five. The tests of a file share a worker and its fixtures.
WORKERS := $(shell $(PYTHON) -c 'import os; print(min(5, 1 + len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))))')
PARALLEL := -n $(WORKERS) --dist=loadfile --no-loadscope-reorder
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Programs that tests start, and the tests themselves, are compiled once.
unexport PYTHONDONTWRITEBYTECODE

SDK := tests/client tests/core tests/endpoints tests/policies tests/profiles tests/wire tests/test_config.py tests/test_errors.py \
	tests/test_events.py tests/test_import.py tests/test_machine_driver.py tests/test_openai_types.py \
	$(addprefix --ignore=tests/,client/modes/speculation client/modes/split core/speculation core/split core/verifier endpoints/split \
	endpoints/verifiers policies/drafts policies/serving wire/split wire/verify) \
	$(addprefix --ignore-glob=*/,test_speculation*.py test_split*.py test_verifier*.py test_device_drafter*.py)

CASES ?= 10000000
STREAMS ?= 1000000
# What the tests cover of the optional parts.
EXTRAS := demo,cli,split,models,tokens,otel,cluster
COMMA := ,

.PHONY: demo models draft-layer test test-sdk test-all thorough oldest picture fuzz fuzz-streams attack pure style types imports sanitize bench docs site first-word vllm recipes native sources wheels clean
.DEFAULT_GOAL := test

# What `make demo` needs: the package, a prebuilt llama.cpp, the terminal parts and the packaged model. Nothing is compiled: the pure twins of
# the compiled parts are fast enough for a person.
$(VENV)/.demo: pyproject.toml setup.py
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	STREAMCO_BUILD_NATIVE=no $(BIN)/python -m pip install --editable ".[demo]"
	$(BIN)/streamco models get packaged --yes
	@touch $@

# What the tests and the other habits need on top.
$(VENV)/.dev: $(VENV)/.demo $(wildcard streamco/_native/*.pyx)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]" --group dev
	touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]" --group bench
	touch $@

# PAIR=1: with the pair of larger models, which `make models` fetches.
demo: $(VENV)/.demo
ifneq ($(filter-out 0 no,$(PAIR)),)
	device=$$(PYTHONPATH=. $(BIN)/python -m bench.fetch_models --find 0.5B) && \
	server=$$(PYTHONPATH=. $(BIN)/python -m bench.fetch_models --find 1.5B) && \
	$(BIN)/streamco demo --device "$$device" --server "$$server"
else
	$(BIN)/streamco demo
endif

# A pair of larger models from the package index, 1.6 GB, for benches, tests and `make demo PAIR=1`: nothing else needs it.
models: $(VENV)/.demo
	PYTHONPATH=. $(BIN)/python -m bench.fetch_models

# The draft layer of the larger one, trained here in an hour or two, with PyTorch. STREAMCO_DATA: folder of the prompts.
draft-layer: models
	$(BIN)/python -m pip install --quiet --editable ".[train,split]"
	PYTHONPATH=. $(BIN)/python -m bench.data.make_draft_layer

native: $(VENV)/.dev
	$(BIN)/python setup.py --quiet build_ext --inplace

# What a change must pass: the whole package, without the tests marked `long`.
test: $(VENV)/.dev
	$(PYTEST) -q $(PARALLEL) -m "not long"

# What the default mode of a client needs: no model, no speculation, no split model, no server or proxy of ours.
test-sdk: $(VENV)/.dev
	$(PYTEST) -q $(PARALLEL) -m "not long and not model and not peer" $(SDK)

# The rest, before a release: the long tests, those of front ends and agents (1 GB of downloads, once), and each bench in short.
test-all: test
	$(PYTEST) -q $(PARALLEL) -m long --ignore=tests/recipes
	$(MAKE) bench recipes

# The same with many more random examples.
thorough: $(VENV)/.dev
	HYPOTHESIS_PROFILE=thorough $(PYTEST) -q $(PARALLEL)

# The oldest versions that pyproject.toml allows, in an environment of its own: uv chooses them, and pip installs them.
$(OLDEST)/.ready: pyproject.toml setup.py $(wildcard streamco/_native/*.pyx)
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --upgrade "pip>=25.1" uv
	$(OLDEST)/bin/python -m uv pip compile --quiet --python $(OLDEST)/bin/python --resolution lowest-direct \
		$(addprefix --extra ,$(subst $(COMMA), ,$(EXTRAS))) --group dev --output-file $(OLDEST)/requirements.txt pyproject.toml
	$(OLDEST)/bin/python -m pip install --quiet --no-deps --requirement $(OLDEST)/requirements.txt
	$(OLDEST)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

oldest: $(OLDEST)/.ready
	$(OLDEST)/bin/python -m pytest -q $(PARALLEL)

# Ten million hostile messages against each protocol, and calls on both twins: half an hour.
fuzz: $(VENV)/.dev
	PYTHONPATH=. $(BIN)/python -m tests.fuzz.verify --cases $(CASES)
	PYTHONPATH=. $(BIN)/python -m tests.fuzz.split --cases $(CASES)

# A million streams as real servers break them, read in three ways and compared with an oracle: an hour and a quarter on two cores. Ctrl-C ends it early.
# One in fifty goes over TCP, too: through the SDK, the proxy and hand-overs.
fuzz-streams: $(VENV)/.dev
	PYTHONPATH=. $(BIN)/python -m tests.mutants --count $(STREAMS)
	PYTHONPATH=. $(BIN)/python -m tests.mutants --tcp --count $$(($(STREAMS) / 50))

# Attacks on real processes of serve, verifier, split server, proxy, its callers and client: some eight minutes, a table, and exit status 1 if one does harm.
attack: $(VENV)/.dev
	PYTHONPATH=. $(BIN)/python -m tests.attack

# What stands on native code, on the pure twins; and the asyncio tests in debug mode.
pure: $(VENV)/.dev
	STREAMCO_NO_NATIVE=1 $(PYTEST) -q $(PARALLEL) tests/native tests/core/test_pacer.py tests/core/test_smooth_schedule.py tests/core/test_delivery.py tests/wire tests/engines tests/endpoints tests/server -m "not long and not model and not peer"
	PYTHONASYNCIODEBUG=1 $(PYTEST) -q $(PARALLEL) tests/client tests/endpoints tests/contract -m "not long and not model and not peer"

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

picture: $(VENV)/.dev
	$(BIN)/python -m bench.release.draw_architecture

sanitize: $(VENV)/.dev
	sh tests/native/sanitize.sh $(BIN)/python

bench: $(VENV)/.bench
	$(BIN)/mypy --exclude draft_agreement bench/*.py bench/timed bench/counted  # that one needs PyTorch
	$(BIN)/python -m bench --quick

# vLLM on the processor, in an environment of its own (some 4 GB), with the packaged model converted for it; the tests run it as a server.
$(VLLM)/.ready: tests/vllm/prepare.py $(VENV)/.dev
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python tests/vllm/prepare.py install
	HF_HUB_OFFLINE=1 $(VLLM)/bin/python tests/vllm/prepare.py convert \
		"$$($(BIN)/python -c 'from streamco.engines.llamacpp.bundled_model import packaged_model; print(packaged_model())')" $(VLLM)/smollm2
	touch $@

vllm: $(VLLM)/.ready
	STREAMCO_VLLM=$(abspath $(VLLM)) $(PYTEST) -q tests/vllm

# The front ends of docs/frontends.md at pinned versions, in the user's cache folder (1 GB), and the tests that drive them. LARGE=1: Open WebUI,
# too (2.9 GB).
recipes: $(VENV)/.dev
	PYTHONPATH=. $(BIN)/python -m tests.support.programs
ifneq ($(filter-out 0 no,$(LARGE)),)
	PYTHONPATH=. $(BIN)/python -m tests.support.programs "Open WebUI"
endif
	$(PYTEST) -q tests/recipes

docs: $(VENV)/.dev
	$(PYTEST) -q tests/test_docs.py tests/test_examples.py

# What a release uploads, except the wheels of other systems, which .github/workflows/wheels.yml builds: the sources, and the wheel without
# compiled parts, which pip takes where no other fits.
sources: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --group release
	rm -rf build dist
	$(BIN)/python -m build --quiet --sdist
	STREAMCO_BUILD_NATIVE=no $(BIN)/python -m build --quiet --wheel
	$(BIN)/python -m bench.release.embed_sbom dist/*.whl
	$(BIN)/python -m twine check --strict dist/*

# The same with this machine's wheels for each of PYTHONS, and each wheel tried in an empty environment.
wheels: sources
	for python in $(PYTHONS); do STREAMCO_BUILD_NATIVE=yes $$python -m pip wheel --quiet --no-deps --wheel-dir build/own . || exit 1; done
	for wheel in build/own/*.whl; do PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist $$wheel || exit 1; done
	$(BIN)/python -m bench.release.embed_sbom dist/*linux*.whl
	$(BIN)/python -m bench.release.try_wheels dist $(PYTHONS)

# Seconds from an empty folder to the first streamed word, on the ways that compile no llama.cpp.
first-word: $(VENV)/.dev
	PYTHONPATH=. $(BIN)/python -m bench.release.first_word --runs 1 demo prebuilt server

# What the site needs: the package, uncompiled, and Sphinx with its theme. The optional packages that its reference imports are mocked.
$(VENV)/.site: pyproject.toml setup.py
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	STREAMCO_BUILD_NATIVE=no $(BIN)/python -m pip install --quiet --editable . --group site
	@touch $@

# The documentation as a site, in docs/_build; a warning is an error.
site: $(VENV)/.site
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build

clean:
	rm -rf build dist streamco.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis streamco/_native/*.so streamco/_native/*.c
