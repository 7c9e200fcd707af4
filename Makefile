# Each target sets up what it needs. `make demo` and `make test` are the two that a newcomer wants.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NATIVE := setup.py setup.cfg pyproject.toml $(wildcard state/*.hpp state/*.cc state/*.pyx)

SANITIZED := ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)"

.PHONY: demo picture test faults faults-spark lint simulate bench bench-choice bench-engine bench-recovery bench-spark bench-state bench-claims sanitize fuzz clean

demo: $(VENV)/.ready
	$(BIN)/python examples/spark_power.py

# The same as a picture: writes docs/demo.svg.
picture: $(VENV)/.ready
	$(BIN)/python -m tests.bench.demo

test: $(VENV)/.ready
	$(BIN)/python -m pytest tests -n 2 --dist loadgroup

# Faults in real processes: kills, stops, crashes, full disks, at every point of the protocol, with a table at the end.
# `make test` has a few of them; all take some twenty minutes on two cores.
faults: $(VENV)/.ready
	DOVETAIL_FAULTS=all $(BIN)/python -m pytest tests/faults -n 2

# The same of Spark's, of which each takes half a minute: twenty minutes in all.
faults-spark: $(VENV)/.ready
	DOVETAIL_FAULTS=all $(BIN)/python -m pytest tests/test_spark.py -k kill

lint: $(VENV)/.ready
	$(BIN)/python -m pytest tests/test_house.py -q -k "ruff or mypy or arrows"

# Simulated lives of a flow under faults, besides those of the tests; a minute for two to four thousand.
SEEDS ?= 50000
simulate: $(VENV)/.ready
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

bench: $(VENV)/.ready
	$(BIN)/python -m tests.bench

# The native code under AddressSanitizer and UBSan, with Cython's own checks, in an environment of its own.
# libstdc++ is loaded first as well: else the sanitizer does not find what it wraps (exceptions of other libraries).
# Without the tests of Spark, which start a Java that does not live with it, and have no native code of ours to run that
# others do not run. Some forty minutes on two cores.
sanitize: $(VENV)-sanitize/.ready
	DOVETAIL_DEBUG=1 $(VENV)-sanitize/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    --force-reinstall .
	DOVETAIL_EXAMPLES=60 $(SANITIZED) $(VENV)-sanitize/bin/python -m pytest tests -q -n 2 --dist loadgroup -m "not slow" \
	    --ignore tests/test_house.py --ignore tests/test_spark.py -p no:cacheprovider

# Window indexes on random streams with failing allocations, in the same build, for MINUTES.
MINUTES ?= 5
fuzz: $(VENV)-sanitize/.ready
	DOVETAIL_DEBUG=1 $(VENV)-sanitize/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    --force-reinstall .
	$(SANITIZED) $(VENV)-sanitize/bin/python tests/fuzz_stores.py --minutes $(MINUTES)

# Joins on several processes, in some ten minutes.
bench-engine: $(VENV)/.ready
	$(BIN)/python -m tests.bench.engine

# Checkpoints, kills and savepoints, in some twenty minutes; writes docs/recovery.svg.
bench-recovery: $(VENV)/.ready
	$(BIN)/python -m tests.bench.recovery

# Rows through Spark, and what Spark does by itself, in some fifteen minutes.
bench-spark: $(VENV)/.ready
	$(BIN)/python -m tests.bench.spark

# Needs Abseil for comparison (Debian: libabsl-dev).
bench-state: $(VENV)/.ready
	$(BIN)/python -m tests.bench.state --save docs/index-figures.json
	$(BIN)/python -m tests.bench.report

# Joins on several inequalities, and which index serves them.
bench-choice: $(VENV)/.ready
	$(BIN)/python -m tests.bench.choice

# What the papers claim, in some twenty minutes; wants Abseil, too.
bench-claims: $(VENV)/.ready
	$(BIN)/python -m tests.bench.claims --save docs/claims.json
	$(BIN)/python -m tests.bench.report

clean:
	rm -rf $(VENV) $(VENV)-sanitize build dist *.egg-info state/*.so state/_native.cpp .pytest_cache .mypy_cache \
	       .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installed in place, so that an edit of a Python file needs nothing; native code is built again when it changes.
$(VENV)/.ready: $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

$(VENV)-sanitize/.ready: setup.cfg
	$(PYTHON) -m venv $(VENV)-sanitize
	DOVETAIL_DEBUG=1 $(VENV)-sanitize/bin/python -m pip install --quiet --disable-pip-version-check ".[dev]"
	touch $@
