# Everything from a checkout, Python 3.11 and make: each target sets up .venv first when it has to.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
DEMO := build/demo
# A tenth of the problems that were measured on the H200, so that a demonstration takes minutes.
DEMO_DATA := data_collection/data/h100.parquet

# Python compiles byte code on the first import and has to be allowed to keep it: pip would take a
# third of the set-up time to compile all of it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-newest test-gpu lint docs wheel sdist release clean

# The whole way on shipped data: train, score on held-out problems, predict, compile. Scoring
# trains on the other problems itself, so that it runs beside the training.
demo: .venv/.with-baselines
	mkdir -p $(DEMO)
	$(BIN)/tilecast evaluate --data $(DEMO_DATA) --power robust --folds 1 --jobs 1 \
		> $(DEMO)/scores.txt & scoring=$$!; \
	$(BIN)/tilecast train --data $(DEMO_DATA) --out $(DEMO)/model && wait $$scoring
	@cat $(DEMO)/scores.txt
	@echo 'The model below was trained on these problems. The tables above are of held-out problems.'
	$(call predict,attention output of Llama 2 7B at 4 tokens,4x4096x4096)
	$(call predict,QKV of Llama 3 70B at 48 tokens,48x10240x8192)
	$(call predict,MLP down of Llama 2 7B at 2048 tokens,2048x4096x11008)
	$(call predict,MLP gate and up of Gemma 2 9B at 4096 tokens,4096x28672x3584)
	$(BIN)/tilecast compile -k 2 --model $(DEMO)/model --cache $(DEMO)/objects \
		4x4096x4096 48x10240x8192 2048x4096x11008 4096x28672x3584

define predict
@printf '\n--- %s\n' '$(1)'
$(BIN)/tilecast predict $(2) --model $(DEMO)/model
endef

# All tests of a file run in one worker, which compiles their kernels once. numpy has one thread per
# worker, so that two workers share two cores.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile

# What a contributor runs. Needs no GPU.
test: .venv/.with-dev
	$(PYTEST) tests/unit

# Ray clusters, campaigns, compiled kernels, notebooks, killed processes. Needs no GPU.
test-slow: .venv/.with-dev
	$(PYTEST) tests/slow

# Kernels compiled by the newest versions that the ranges of pyproject.toml allow. All other tests run
# with the oldest, which vLLM and SGLang pin.
test-newest: .venv/newest
	PYTHONPATH=$(CURDIR)/.venv/newest $(PYTEST) tests/slow/kernels/test_quack_contract.py \
		tests/slow/kernels/test_builder.py

# Tests of a GPU. They are skipped without one.
test-gpu: .venv/.with-dev
	$(BIN)/pytest tests/gpu

lint: .venv/.with-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

# The pages and the docstrings as one site that needs no server: build/site/index.html.
docs: .venv/.with-dev
	$(BIN)/sphinx-build --fail-on-warning --quiet -c docs . build/site

# A wheel that pip installs beside the PyTorch that is there. Files of an older build are removed first.
wheel:
	rm -rf build/lib build/bdist.*
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .

# The whole project in one file: packages, tests, documentation and examples.
sdist: .venv/.with-dev
	$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")'

# The kernels in a released wheel: how many of the most frequent ones, for which operands. Two cores
# compile them in half an hour.
SHIPPED := '2000 bf16:rcr' '1000 bf16:rcr:bias' '300 bf16:rrr' '300 bf16:crr' '200 int8:rcr>int32' \
	'200 e4m3:rcr>bf16:row-scales' '200 e4m3:rcr>bf16@fp32:row-scales' \
	'200 bf16:rcr:row-groups' '80 bf16:rrr:row-groups' '80 bf16:crr:k-groups'

build/shipped.zip: .venv/.with-dev Makefile $(wildcard kernels/quack*/*.py models/artifacts/H200/* models/artifacts/H200/*/*)
	rm -rf build/objects
	for kind in $(SHIPPED); do \
		$(BIN)/tilecast compile --common $${kind%% *} --operands "$${kind#* }" \
			--cache build/objects || exit 1; \
	done
	$(BIN)/tilecast objects ship $@ --cache build/objects

# The kernels are removed from the checkout again, which compiles what it needs.
release: build/shipped.zip
	trap 'rm -f kernels/shipped.zip' EXIT INT TERM; cp $< kernels/shipped.zip && $(MAKE) wheel

# Installs again only when the requirements change; the checkout itself is linked. The newest pip takes
# three fifths of the time of the one that Python 3.11 brings.
.venv/.with-%: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check \
		--constraint constraints.txt --editable '.[$*]'
	touch $@

DSL := nvidia-cutlass-dsl
.venv/newest: .venv/.with-dev Makefile
	rm -rf $@
	$(BIN)/pip install --quiet --no-deps --disable-pip-version-check --target $@ \
		apache-tvm-ffi==0.1.15.post2 $(addsuffix ==4.8.1,$(DSL) $(addprefix $(DSL)-libs-,base core cu12 cu13))

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
