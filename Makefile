# Every target sets up what it needs in .venv.  PYTHON=python3.12 make test chooses another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT := demo-output

.PHONY: demo test coverage test-frameworks test-clients lint docs bench gpu clean
.DELETE_ON_ERROR:

$(VENV)/ready: pyproject.toml constraints.txt packaging/tlkit_build.py $(wildcard runtime/instrument/code/*.[ch] timeline/scanning/*.[ch] timeline/record/queue/*.[ch] runtime/torch/data_plane/transports/*/*.[ch])
	@echo "Setting up $(VENV) (a minute or two the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint,docs]' 2>&1 | grep -v 'is ignored: it is neither' || true
	@$(BIN)/python -c 'import torch, tlkit'
	@touch $@

demo: $(VENV)/ready
	@PATH="$(abspath $(BIN)):$$PATH" samples/demo.sh $(OUT)

# Two at a time, and three of those with real ranks, which wait for half of the time.  A file's tests stay together, since they
# share what they set up; the files with the longest tests are not the ones with the most, so that sorting by number is of no use.
TWO := -n 2 --dist loadfile
THREE := -n 3 --dist loadfile --no-loadscope-reorder
# Real processes on a machine that does something else can miss what they wait for.  Those tests get a second chance, alone, and it is
# said; a fault that is there fails again.  Unit tests get none.
AGAIN := --last-failed --last-failed-no-failures none -p no:xdist
AGAIN_SAYS := Again, one at a time, what has failed:
REAL := tests/integration tests/attack
test: $(VENV)/ready
	@unit=0; $(BIN)/python -m pytest -q $(TWO) tests/unit || unit=$$?; \
	$(BIN)/python -m pytest -q $(THREE) $(REAL) || { \
	    echo "$(AGAIN_SAYS)"; $(BIN)/python -m pytest -q $(AGAIN) $(REAL); \
	} && exit $$unit

# Measured are the branches of timeline/ and collector/: by the unit tests, and by those of what runs between processes (servers,
# senders, remote files) or reads damaged files.  Tests with ranks that train are left out: the trace function of coverage would be
# a finding in what they record.
COVERED := 95
MEASURE := --cov --cov-append --cov-report=
BETWEEN := tests/attack/test_readers.py $(patsubst %,tests/integration/test_%.py,apart collector nvtx pushing remote scale_out)
coverage: $(VENV)/ready
	@rm -f .coverage; failed=0; \
	$(BIN)/python -m pytest -q $(TWO) $(MEASURE) tests/unit || failed=1; \
	$(BIN)/python -m pytest -q $(TWO) $(MEASURE) $(BETWEEN) || failed=1; \
	for folder in timeline collector; do \
	    $(BIN)/coverage report --skip-covered --include="$$folder/*" --fail-under=$(COVERED) || failed=1; \
	done; exit $$failed

# TensorFlow, Keras and JAX are gigabytes, and nothing else needs them: an environment of their own.
FRAMEWORKS := .venv-frameworks
$(FRAMEWORKS)/ready: pyproject.toml constraints-frameworks.txt constraints.txt
	@echo "Setting up $(FRAMEWORKS) (a few minutes the first time)"
	@$(PYTHON) -m venv $(FRAMEWORKS)
	@$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c constraints-frameworks.txt tensorflow-cpu keras jax jaxlib optax 2>&1 | grep -v 'is ignored: it is neither' || true
	@# It asks for tensorflow, which tensorflow-cpu is by another name.
	@$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints-frameworks.txt tf-keras 2>&1 | grep -v 'is ignored: it is neither' || true
	@$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c constraints-frameworks.txt -e '.[runtime,mpi]' pytest pytest-timeout hypothesis rich 2>&1 | grep -v 'is ignored: it is neither' || true
	@$(FRAMEWORKS)/bin/python -c 'import importlib.util as u; assert all(map(u.find_spec, ("torch", "tensorflow", "keras", "tf_keras", "jax", "optax", "tlkit")))'
	@touch $@

test-frameworks: $(FRAMEWORKS)/ready
	@$(FRAMEWORKS)/bin/python -m pytest -q tests/frameworks || { \
	    echo "$(AGAIN_SAYS)"; $(FRAMEWORKS)/bin/python -m pytest -q $(AGAIN) tests/frameworks; \
	}

# Lightning, Transformers, Accelerate and Ray: likewise.
CLIENTS := .venv-clients
$(CLIENTS)/ready: pyproject.toml constraints-clients.txt constraints.txt
	@echo "Setting up $(CLIENTS) (a few minutes the first time)"
	@$(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c constraints-clients.txt torch==2.13.0 lightning pytorch-lightning transformers accelerate 'ray[train]' -e '.[runtime]' pytest pytest-timeout hypothesis setuptools 2>&1 | grep -v 'is ignored: it is neither' || true
	@$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c constraints-clients.txt --no-build-isolation deepspeed >/dev/null 2>&1 || echo "DeepSpeed could not be built: its test is skipped"
	@$(CLIENTS)/bin/python -c 'import importlib.util as u; assert all(map(u.find_spec, ("torch", "lightning", "transformers", "accelerate", "ray", "tlkit")))'
	@touch $@

test-clients: $(CLIENTS)/ready
	@$(CLIENTS)/bin/python -m pytest -q tests/clients

lint: $(VENV)/ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "run .venv/bin/ruff format ."; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/hadolint packaging/Dockerfile

docs: $(VENV)/ready
	@$(BIN)/python packaging/commands_reference.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

docs-images: $(VENV)/ready
	@$(BIN)/python packaging/docs_images.py

bench: $(VENV)/ready
	@$(BIN)/python benchmarks/everything.py $(BENCH)

gpu: $(VENV)/ready
	@$(BIN)/python benchmarks/gpu.py $(GPU)

clean:
	rm -rf $(VENV) $(FRAMEWORKS) $(CLIENTS) $(OUT) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
