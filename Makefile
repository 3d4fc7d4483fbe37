# Everything from a checkout, Python 3.11 and make: each target sets up .venv first when it has to.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
DEMO := build/demo

# Installing leaves byte code to the first import, which may therefore not be forbidden to keep it:
# compiling all of it at once would take a third of the time of setting up.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-gpu lint wheel release clean

# The main job on the shipped data: train, score on held-out families, predict, compile.
demo: .venv/.with-baselines
	$(BIN)/tilecast train --out $(DEMO)/model
	$(BIN)/tilecast evaluate --power robust
	@echo 'The model below has seen these problems; the tables above are of families held out.'
	$(call predict,attention output of Llama 2 7B at 4 tokens,--m 4 --n 4096 --k 4096)
	$(call predict,QKV of Llama 3 70B at 48 tokens,--m 48 --n 10240 --k 8192)
	$(call predict,MLP down of Llama 2 7B at 2048 tokens,--m 2048 --n 4096 --k 11008)
	$(call predict,MLP gate and up of Gemma 2 9B at 4096 tokens,--m 4096 --n 28672 --k 3584)
	$(BIN)/tilecast compile -k 5 --model $(DEMO)/model --cache $(DEMO)/objects \
		4x4096x4096 48x10240x8192 2048x4096x11008 4096x28672x3584

define predict
@printf '\n--- %s\n' '$(1)'
$(BIN)/tilecast predict $(2) --model $(DEMO)/model
endef

# One file stays in one worker, so that its compiled kernels are compiled once. A worker has a core,
# and numpy one thread, as those that wait for a core keep the others waiting.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile

# What a contributor runs; needs no GPU.
test: .venv/.with-dev
	$(PYTEST) tests/unit

# Ray clusters, campaigns, compiled kernels, notebooks, processes that are killed; needs no GPU.
test-slow: .venv/.with-dev
	$(PYTEST) tests/slow

# What needs the GPU; skipped without one.
test-gpu: .venv/.with-dev
	$(BIN)/pytest tests/gpu

lint: .venv/.with-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

# What `pip install` puts beside a PyTorch that is there already; nothing of an older build.
wheel:
	rm -rf build/lib build/bdist.*
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .

# The kernels that a released wheel brings, so that nobody compiles them: how many of the commonest
# of which operands. Two cores take half an hour to compile them.
SHIPPED := '2000 bf16:rcr' '1000 bf16:rcr:bias' '300 bf16:rrr' '300 bf16:crr' '200 int8:rcr>int32' \
	'200 e4m3:rcr>bf16:row-scales' '200 e4m3:rcr>bf16@fp32:row-scales'

build/shipped.zip: .venv/.with-dev Makefile $(wildcard kernels/quack_sm90/*.py models/artifacts/H200/*)
	rm -rf build/objects
	for kind in $(SHIPPED); do \
		$(BIN)/tilecast compile --common $${kind%% *} --operands "$${kind#* }" \
			--cache build/objects || exit 1; \
	done
	$(BIN)/tilecast objects ship $@ --cache build/objects

# Not left in the checkout, which compiles what it needs.
release: build/shipped.zip
	trap 'rm -f kernels/shipped.zip' EXIT INT TERM; cp $< kernels/shipped.zip && $(MAKE) wheel

# Installed again only when what is asked for has changed; the checkout itself is linked, not copied.
# By the newest pip, which takes three fifths of the time of the one that Python 3.11 brings.
.venv/.with-%: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check \
		--constraint constraints.txt --editable '.[$*]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
