# make demo | test | check | lock.  ACCELERATOR=cpu (default), cuda13 or tpu; PYTHON=python3.12 for another one.
ACCELERATOR ?= cpu
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready-$(ACCELERATOR)
ACCELERATORS := cpu cuda13 tpu

.PHONY: demo test test-fast check lock clean
.DELETE_ON_ERROR:

demo: $(READY)  ## train the default experiment on embedded data, in a few minutes
	$(BIN)/python launch.py --config=configs/nmt.py --workdir=runs/demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-fast: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(READY): locks/$(ACCELERATOR).txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r $<
	touch $@

# Needs uv. Newest versions for Python 3.11 and later on every platform, with hashes and without addresses.
lock:
	for name in $(ACCELERATORS); do \
	  case $$name in cpu) jax=jax ;; *) jax="jax[$$name]" ;; esac; \
	  echo "$$jax" | uv pip compile requirements.txt - --group dev --universal --python-version 3.11 --upgrade --quiet \
	    --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --output-file locks/$$name.txt || exit 1; \
	done

clean:
	rm -rf $(VENV)
