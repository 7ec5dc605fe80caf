# Everything is set up in .venv, and again only where something changed. A torch that $(PYTHON) already has is used.
PYTHON ?= python3
TORCH ?= 2.13.0
TORCH_INDEX ?=
ARGS ?=
export SEQ2SEQ_FAST_BUILD ?= auto

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --retries 2
CSRC := $(shell find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu')
SANITIZERS := -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined -fno-omit-frame-pointer

TORCH_READY := $(VENV)/.torch-$(TORCH)
BUILT := $(VENV)/.built-$(SEQ2SEQ_FAST_BUILD)

.PHONY: help demo test kernels gpu bench gate sanitize lint clean
.DELETE_ON_ERROR:

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16
	@echo 'ARGS="..." passes arguments on; PYTHON=, TORCH=version, TORCH_INDEX=url, SEQ2SEQ_FAST_BUILD=auto|none|cpu|cuda choose the set-up'

demo: $(VENV)/.extra-demo ## trains the pronunciation model on torch.nn and on seq2seq_fast, side by side
	$(PY) examples/pronunciation.py $(ARGS)

# 5: nothing was selected, which with ARGS="-k ..." is no failure of either half
test: $(VENV)/.extra-test ## the tests
	$(PY) -m pytest tests $(ARGS) || [ $$? -eq 5 ]
	TRITON_INTERPRET=1 $(PY) -m pytest tests/interpreted $(ARGS) || [ $$? -eq 5 ]

kernels: $(VENV)/.extra-test ## registers, shared memory and matrix instructions of the Triton kernels, with no GPU
	$(PY) tests/ahead_of_time.py

gpu: $(VENV)/.extra-gpu-suite ## on a machine with a GPU: its tests, compute-sanitizer, then its speed table in benchmarks/results
	$(PY) -m pytest tests/gpu -m gpu $(ARGS)
	$(PY) -m benchmarks.gpu

bench: $(VENV)/.extra-bench ## measures speed and draws a page of it; on a quiet machine
	$(PY) -m benchmarks $(ARGS)

gate: $(VENV)/.extra-test ## whether a few ratios to torch.nn are still within benchmarks/bounds.json
	$(PY) -m benchmarks.gate $(ARGS)

# --capture=sys: a report goes to the file descriptor that pytest would keep to itself
sanitize: $(VENV)/.extra-test ## the tests marked `sanitize` under AddressSanitizer and UBSan, in a copy under build/sanitize
	SEQ2SEQ_FAST_BUILD=cpu CXXFLAGS="$(SANITIZERS) -g -O1" LDFLAGS="$(SANITIZERS)" \
	  $(PY) setup.py --quiet build --build-base build/sanitize --build-lib build/sanitize/lib
	rm -rf build/sanitize/lib/tests build/sanitize/lib/benchmarks
	cp -r pyproject.toml tests benchmarks build/sanitize/lib
	cd build/sanitize/lib && \
	  LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libstdc++.so.6)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  sh -c '$(CURDIR)/$(PY) -c "import sys; from seq2seq_fast import _native; sys.exit(_native.reason)" && \
	    $(CURDIR)/$(PY) -m pytest tests -m sanitize --capture=sys $(ARGS)'

lint: $(VENV)/.extra-dev ## ruff and clang-format, changing nothing
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -c "from clang_format import clang_format; clang_format()" --dry-run --Werror $(CSRC)

clean: ## removes all that make made
	rm -rf $(VENV) build dist *.egg-info seq2seq_fast/_build.py seq2seq_fast/_C*.so seq2seq_fast/cuda/_loop.so .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# .pth: where $(PYTHON) is itself a virtual environment, --system-site-packages would pass it over.
# --without-pip: the setuptools that comes with pip would hide a newer one.
$(PY):
	@if $(PYTHON) -c "import torch" 2>/dev/null; then \
	  echo "$(VENV) uses the torch that $(PYTHON) has" && \
	  $(PYTHON) -m venv --system-site-packages \
	    $$($(PYTHON) -c "import pip" 2>/dev/null && echo --without-pip) $(VENV) && \
	  $(PYTHON) -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	    > "$$($(PY) -c "import sysconfig; print(sysconfig.get_path('purelib'))")/parent.pth"; \
	else $(PYTHON) -m venv $(VENV); fi

# torch.txt holds pip to the torch that is here; torch warns on import where there is no numpy
$(TORCH_READY): | $(PY)
	$(PIP) "setuptools>=77" ninja numpy
	$(PYTHON) -c "import torch" 2>/dev/null || \
	  $(PIP) torch==$(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(PY) -c "import torch; print('torch===' + torch.__version__)" > $(VENV)/torch.txt
	@rm -f $(VENV)/.torch-* && touch $@

# without a stamp where the extension was wanted and there is none: the next run tries again
$(BUILT): setup.py pyproject.toml $(CSRC) $(TORCH_READY)
	$(PIP) --no-build-isolation --no-deps --editable .
	@rm -f $(VENV)/.built-*
	@reason=$$($(PY) -c "from seq2seq_fast import _native; print(_native.reason or '')") || exit 1; \
	  if [ -n "$$reason" ]; then echo "$$reason; everything runs on torch's own layers"; fi; \
	  if [ -z "$$reason" ] || [ $(SEQ2SEQ_FAST_BUILD) = none ]; then touch $@; fi

# the extra's list is read from the installed package, so that pip has no cause to look for another seq2seq_fast;
# each line keeps its other marker, as the platform's of triton
$(VENV)/.extra-%: pyproject.toml $(TORCH_READY) | $(BUILT)
	@$(PY) -c "import sys; from importlib.metadata import requires; \
	  extras = [r.rpartition('extra ==') for r in requires('seq2seq_fast')]; \
	  print(*(r.removesuffix(' and ').rstrip('; ') for r, _, extra in extras if sys.argv[1] in extra), sep='\n')" $* \
	  > $(VENV)/$*.txt
	@$(PIP) --constraint $(VENV)/torch.txt --requirement $(VENV)/$*.txt || \
	  { echo "make $*: pip says above which of these could not be installed:" $$(cat $(VENV)/$*.txt); exit 1; }
	@touch $@
