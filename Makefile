# Every target works from a fresh clone: it makes .venv first. Needs Python 3.11 or later, git, make and a package index.

.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV   := .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.installed
READY  := $(VENV)/.installed-dev
XLA    := .venv-xla
PYTHON ?= $(shell for name in python3.11 python3 python; do \
            $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
UV     := $(shell command -v uv)
WEB    := recipes/web
SITE   ?= build/web/site

# Build dependencies of source packages are pinned too: pip and uv each read their own names.
export PIP_CONSTRAINT       := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export UV_BUILD_CONSTRAINT  := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM ?= false
# Many containers set it, and Python would compile torch and transformers at each start, which takes longer than both.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help quickstart test test-slow test-xla test-upstream test-tensorflow test-lowest test-versions test-python web test-web sbom audit check format docs docs-site bench bench-cpu card report wheel clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# An installation that was interrupted may leave packages that pip can neither use nor replace, so it begins afresh.
define begin
	@test -n "$(PYTHON)" \
	  || { echo "Python 3.11 or later is needed; name one with: make PYTHON=/path/to/python" >&2; exit 2; }
	@test ! -e $(@D)/.installing || rm -rf $(@D)
	@echo "installing into $(@D), which takes minutes; after an interruption the next call starts again" >&2
	@rm -f $@
	@mkdir -p $(@D) && touch $(@D)/.installing
endef
define end
	@touch $@ && rm $(@D)/.installing
endef

# torch is installed first and through pip even where uv does the rest: pip knows the machine's own wheels and indexes
# (pip config), where a CPU build may lie; uv reads none of that and would bring gigabytes of CUDA packages. Python compiles
# a module when it is first imported; compiling all of them here, most for nothing, is what --no-compile leaves out.
PIP := $(BIN)/python -m pip install --quiet --no-compile -c constraints.txt
ifneq ($(UV),)
CREATE  := uv venv --quiet --seed --allow-existing --python $(PYTHON) $(VENV)
INSTALL := uv pip install --quiet --python $(BIN)/python -c constraints.txt
else
CREATE  := $(PYTHON) -m venv $(VENV)
INSTALL := $(PIP)
endif

$(BASE): constraints.txt pyproject.toml
	$(begin)
	@$(CREATE)
	@echo "1 of 2: PyTorch" >&2
	@$(PIP) torch
	@echo "2 of 2: transformers, datasets and the rest" >&2
	@$(INSTALL) -e .
	$(end)

$(READY): $(BASE)
	@echo "installing the tools of development into $(@D)" >&2
	@touch $(@D)/.installing && rm $(BASE)
	@$(INSTALL) -e '.[dev]'
	@touch $(BASE)
	$(end)

quickstart: $(BASE) ## The whole product in miniature: corpus, vocabulary, pre-training, fine-tuning, publishing
	$(BIN)/python recipes/quickstart.py

test: $(READY) ## The default tests: offline, CPU, at most 4 minutes on 2 cores
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(READY) ## The tests marked slow
	$(BIN)/python -m pytest -m slow

check: $(READY) ## Lint, format, types and the workflow files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml

test-upstream: $(READY) ## Every head's published folder in an environment of upstream transformers alone
	$(PYTHON) -m venv .venv-upstream
	.venv-upstream/bin/python -m pip install --quiet torch transformers -c constraints.txt
	rm -rf .venv-upstream/published
	$(BIN)/python tests/hub/upstream_environment.py write .venv-upstream/published
	cd .venv-upstream && HF_HUB_OFFLINE=1 bin/python -I ../tests/hub/upstream_environment.py read published

TENSORFLOW := .venv-tensorflow
ORIGINAL   ?= $(TENSORFLOW)/original

$(TENSORFLOW)/.installed:
	$(begin)
	$(PYTHON) -m venv $(TENSORFLOW)
	PIP_CONSTRAINT= $(TENSORFLOW)/bin/python -m pip install --quiet tensorflow-cpu==2.21.0
	$(end)

$(TENSORFLOW)/original:
	git clone --quiet https://github.com/google-research/bert $@

test-tensorflow: $(READY) $(TENSORFLOW)/.installed $(ORIGINAL) ## The original code in TensorFlow, side by side, in an environment of its own (1 GB)
	rm -rf $(TENSORFLOW)/runs
	$(TENSORFLOW)/bin/python -I tests/conversion/original_environment.py write $(ORIGINAL) $(TENSORFLOW)/runs
	$(BIN)/python tests/conversion/compare_with_original.py $(TENSORFLOW)/runs

test-versions: $(READY) ## Published folders with nine versions of transformers, 4.30 to the newest, each in an environment of its own
	$(BIN)/python tests/hub/versions_of_transformers.py

# Another Python, with the pinned versions and torch's CPU build. uv knows where PyTorch keeps those of every Python; pip takes
# what its own settings name, or an index of CPU builds in TORCH_INDEX as well. A CUDA build, where there is nothing else, runs on
# the CPU as well. All pinned packages have wheels for Python 3.11 to 3.14.
TORCH_INDEX ?=
TESTS       ?= -n 2 --dist loadfile
ifneq ($(UV),)
PYTHON_PIP  := uv pip install --quiet --python .venv-python/bin/python
PYTHON_TORCH := $(if $(TORCH_INDEX),--index $(TORCH_INDEX) --index-strategy unsafe-best-match,--torch-backend cpu)
else
PYTHON_PIP  := $(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL=$(TORCH_INDEX)) .venv-python/bin/python -m pip install --quiet
endif

test-python: ## The default tests under another Python: make test-python PYTHON=python3.13 [TORCH_INDEX=URL] [TESTS=tests/hub]
	$(PYTHON) -c 'import sys; print(sys.version); sys.exit(sys.version_info < (3, 11))'
ifneq ($(UV),)
	uv venv --quiet --seed --clear --python $(PYTHON) .venv-python
else
	$(PYTHON) -m venv --clear .venv-python
endif
	$(PYTHON_PIP) $(PYTHON_TORCH) -c constraints.txt torch
	$(PYTHON_PIP) -c constraints.txt -e '.[dev]'
	.venv-python/bin/python -c 'import torch; print("torch", torch.__version__, "for", torch.version.cuda or "the CPU")'
	CUDA_VISIBLE_DEVICES= .venv-python/bin/python -m pytest $(TESTS)

# The lists below are complete, so pip takes them alone; the package is installed without checking its bounds.
.venv-lowest/.installed: constraints-lowest.txt
	$(begin)
	$(PYTHON) -m venv .venv-lowest
	PIP_CONSTRAINT= .venv-lowest/bin/python -m pip install --quiet -r constraints-lowest.txt
	PIP_CONSTRAINT= .venv-lowest/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	$(end)

test-lowest: .venv-lowest/.installed ## The default tests at the lowest versions that pyproject.toml declares (6 GB)
	.venv-lowest/bin/python -m pytest

$(WEB)/node_modules/.package-lock.json: $(WEB)/package.json $(WEB)/package-lock.json
	cd $(WEB) && npm ci
	@touch $@

web: $(WEB)/node_modules/.package-lock.json ## The page for browsers: make web MODELS="runs/bert runs/sst2" (needs Node 20)
	node $(WEB)/build.mjs $(SITE) $(MODELS)

test-web: $(READY) $(WEB)/node_modules/.package-lock.json ## The page in headless Chromium (Debian's), its models in Node
	rm -rf build/web-test
	$(BIN)/python tests/inference/web_models.py build/web-test/models
	node $(WEB)/tests/node.mjs build/web-test/models
	node $(WEB)/build.mjs build/web-test/site build/web-test/models/*
	node $(WEB)/tests/browser.mjs build/web-test/site build/web-test/screenshots build/web-test/models

# torch_xla belongs to an older torch, so the package is installed without checking its bounds, and pip takes this list alone.
$(XLA)/.installed: constraints-xla.txt pyproject.toml
	$(begin)
	$(PYTHON) -m venv $(XLA)
	PIP_CONSTRAINT= $(XLA)/bin/python -m pip install --quiet -r constraints-xla.txt
	PIP_CONSTRAINT= $(XLA)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	$(end)

test-xla: $(XLA)/.installed ## The XLA path on the CPU, in an environment of its own (8 GB, minutes)
	$(XLA)/bin/python -m pytest -m xla tests/training/test_xla.py

format: $(READY) ## Let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## Write docs/CONFIGURATION.md and docs/reference/api.md from settings and docstrings
	$(BIN)/python docs/make_reference.py

docs-site: $(READY) ## Build the documentation as a website into site/, offline
	$(BIN)/mkdocs build --strict

bench-cpu: $(READY) ## The speeds quoted for a CPU, with nothing else running: some twenty minutes on two cores
	$(BIN)/python benchmarks/two_cores.py

bench: $(READY) ## The steps side by side with transformers
	$(BIN)/python benchmarks/pretraining_step.py
	$(BIN)/python benchmarks/finetuning_step.py

card: $(READY) ## Write a run's card: make card RUN=runs/mrpc ARGS='--base_model org/bert'
	$(BIN)/python recipes/make_card.py --folder $(RUN) $(ARGS)

report: $(READY) ## Write docs/report from the results of finished runs: ours next to the paper's numbers
	$(BIN)/python recipes/report.py --runs_dir docs/report/runs --report_dir docs/report
	cp docs/report/verdicts.json bert_repro/reproduction/verdicts.json
	$(BIN)/python docs/make_reference.py

.venv-supply-chain/.installed:
	$(begin)
	$(PYTHON) -m venv .venv-supply-chain
	PIP_CONSTRAINT= .venv-supply-chain/bin/python -m pip install --quiet cyclonedx-bom==7.5.0 pip-audit==2.10.1
	$(end)

sbom: $(READY) .venv-supply-chain/.installed ## List every installed package as CycloneDX: dist/sbom.json
	@mkdir -p dist
	.venv-supply-chain/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-reproducible \
	  --output-format JSON --output-file dist/sbom.json
	@echo "dist/sbom.json: $$(grep -c '"purl"' dist/sbom.json) packages"

audit: .venv-supply-chain/.installed ## Ask a public service for known vulnerabilities of the pinned versions
	@.ci/audit .venv-supply-chain/bin/pip-audit

wheel: $(READY) ## Build the wheel and the source archive into dist/
	$(BIN)/python -m build --no-isolation --outdir dist .

clean: ## Remove the environment, builds and caches; runs/ stays
	rm -rf $(VENV) $(XLA) .venv-* $(WEB)/node_modules build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
