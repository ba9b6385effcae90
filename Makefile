# make demo | test | conformance | bench-guard | test-slow | browser | test-slurm | test-distributed | fuzz | faults | check | audit | docs | lock.  ACCELERATOR=cpu (default), cuda13 or tpu; PYTHON=python3.12 for another one.
ACCELERATOR ?= cpu
# The newest tested Python that can make a virtual environment, on PATH or of pyenv's (whose shims may run nothing).
PYTHON ?= $(shell for version in 3.13 3.12; do \
  for python in python$$version $$(pyenv root 2>/dev/null)/versions/$$version.*[0-9]/bin/python; do \
    $$python -c 'import venv, ensurepip' 2>/dev/null && echo $$python && exit; done; done; echo python3)
PYTHON := $(PYTHON)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready-$(ACCELERATOR)-$(shell $(PYTHON) -c 'import platform; print(platform.python_version())')
TESTS ?= tests
ACCELERATORS := cpu cuda13 tpu

SLURM ?= /tmp/attention_jax_slurm
KILLS ?= 100

.PHONY: demo test test-slow browser test-slurm test-distributed fuzz faults check audit conformance bench-guard results docs lock clean
.DELETE_ON_ERROR:

demo: $(READY)  ## train the default experiment on embedded data, in a few minutes
	$(BIN)/python launch.py --config=configs/nmt.py --workdir=runs/demo

test: $(READY)  ## all but what takes long
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(TESTS)

test-slow: $(READY)  ## what takes long: runs killed again and again, real and large corpora, full disks
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow --ignore=tests/distributed

browser:  ## what tests of pages skip without: installs Debian's chromium where there is no browser (root)
	command -v chromium || command -v chromium-browser || command -v google-chrome || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

test-slurm: $(READY)  ## sweeps on a real SLURM of one node on this machine; installs Debian's where it is missing (root)
	command -v slurmctld munged sbatch >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge; }
	tests/slurm/cluster.sh start $(SLURM)
	SLURM_CONF=$(SLURM)/slurm.conf $(BIN)/python -m pytest tests/slurm || status=$$?; tests/slurm/cluster.sh stop $(SLURM); exit $${status:-0}

fuzz: $(READY)  ## bad input of every kind, a thousand examples a test, others each time
	ATTENTION_JAX_FUZZ=1000 $(BIN)/python -m pytest -n 2 tests/faults/test_fuzz.py

test-distributed: $(READY)  ## runs over meshes of devices, and in several processes that are killed and stalled
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/distributed

faults: $(READY)  ## real runs and sweeps killed, stopped, starved of disk and left to run for long: what was survived
	status=0; for script in "kills.py $(KILLS)" stops.py $(notdir $(wildcard tests/faults/soak.py)); do \
	  $(BIN)/python tests/faults/$$script || status=1; \
	done; $(BIN)/python -m pytest -n 0 -m slow tests/faults tests/distributed && exit $$status

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

audit:  ## known vulnerabilities of what the locks name; asks pypi.org, in an environment of its own
	$(PYTHON) -m venv $(VENV)-audit && $(VENV)-audit/bin/python -m pip install --quiet pip-audit
	status=0; for name in $(ACCELERATORS); do \
	  $(VENV)-audit/bin/pip-audit --disable-pip --require-hashes --requirement locks/$$name.txt || status=1; \
	done; exit $$status

conformance: $(READY)  ## every backend against a float64 oracle: scores, normalizers, masks, encodings, …: the matrix
	$(BIN)/python tests/backends/matrix.py

bench-guard: $(READY)  ## FLOPs, bytes, memory and instructions of key programs, against those stored; STORE=1 stores them
	$(BIN)/python tests/guard/check.py $(if $(STORE),--store)

results: $(READY)  ## the kept answers, and which of them are of code that has changed since
	$(BIN)/python -m experiments._results

docs: $(READY)  ## the API of every room, out of its docstrings: docs/api/attention_jax.html
	$(BIN)/python -W error::UserWarning -m pdoc attention_jax '!attention_jax._jaxlib' --no-show-source --output-directory docs/api

$(READY): locks/$(ACCELERATOR).txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 …")'
	@$(PYTHON) -c 'import sys; print("$(VENV): Python", sys.version.split()[0], "from", sys.executable)'
	$(PYTHON) -m venv $(if $(wildcard $(VENV)/pyvenv.cfg),--clear) $(VENV)
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
	rm -rf $(VENV) $(VENV)-audit
