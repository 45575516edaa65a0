# Two commands do everything on a fresh machine: `make book` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SITE   := _build/html

# What the executed notebooks and the site are made of. The last sees a file that was removed.
PAIRS    := $(shell find studies book '(' -name '*.py' -o -name '*.ipynb' ')' -not -path '*/.ipynb_checkpoints/*')
LIBRARY  := $(shell find codesign_lib -name '*.py' -o -name '*.csv' -o -name '*.json')
PAGES    := $(shell find book -type f -not -name '*.py' -not -name '*.ipynb' -not -path '*/.ipynb_checkpoints/*')
# 'book/.': the bare name is the target below
FOLDERS  := $(shell find studies/. book/. codesign_lib -type d -not -name '__pycache__' -not -name '.ipynb_checkpoints')
SETTINGS := _config.yml _toc.yml jupytext.toml

PYTEST  := $(BIN)/python -m pytest
# --dist loadscope: one notebook stays in one process
NBVAL   := -p tests.nbval_kernels --nbval --nbval-current-env --nbval-cell-timeout 120 --nbval-sanitize-with tests/nbval_sanitize.cfg
# pages that are no longer written must not stay for links to find
JUPYTER_BOOK := rm -rf $(SITE) && PYTHONPATH= $(BIN)/jupyter-book build . --all -n -W --keep-going

.DEFAULT_GOAL := help
.PHONY: help book test validate validate-packages bench lint clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "make %-18s %s\n", $$1, $$2}'

book: $(SITE)/.built  ## execute every study and build the website
	@echo "The book is at file://$(CURDIR)/$(SITE)/index.html"

test: $(VENV)/.installed  ## pairs, unit tests and doctests, every notebook compared, the site in a browser
	$(BIN)/python tools/studies.py check
	$(PYTEST) -q -n auto tests codesign_lib --ignore tests/site
	$(PYTEST) -q -n auto --dist loadscope $(NBVAL) $$($(BIN)/python tools/studies.py list)
	$(JUPYTER_BOOK)
	$(PYTEST) -q -n auto --dist loadscope tests/site

validate: $(VENV)/.validation  ## hold the committed numbers against the full measured tables (downloads 80 MB once)
	set -e; for check in tools/validate_*.py; do $(BIN)/python $$check; done

validate-packages: $(VENV)-packages/.installed  ## compare with torch, transformers and quantisation packages (gigabytes)
	set -e; for check in tools/packages_*.py; do $(VENV)-packages/bin/python $$check; done

bench: $(VENV)/.installed  ## speed, as ratios within one run
	set -e; for bench in tools/bench_*.py; do $(BIN)/python $$bench; done

lint: $(VENV)/.installed  ## ruff, the way pre-commit runs it
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

clean:  ## remove the site and the environments
	rm -rf _build $(VENV) $(VENV)-packages

$(VENV)/.installed: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Say which: make PYTHON=python3.12 ..."; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "no virtual environment could be made (Debian: apt-get install python3-venv)"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/.validation: requirements-validation.txt $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-validation.txt
	touch $@

$(VENV)-packages/.installed: requirements-packages.txt requirements-packages-alone.txt requirements.txt pyproject.toml
	test -x $(VENV)-packages/bin/python || $(PYTHON) -m venv $(VENV)-packages
	$(VENV)-packages/bin/python -m pip install --quiet --disable-pip-version-check -e . -r requirements-packages.txt
	$(VENV)-packages/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-packages-alone.txt
	touch $@

# notebooks are prerequisites and products: one that was edited is written anew
_build/.executed: $(PAIRS) $(LIBRARY) $(FOLDERS) $(SETTINGS) tools/studies.py $(VENV)/.installed
	$(BIN)/python tools/studies.py run
	@mkdir -p $(@D) && touch $@

$(SITE)/.built: _build/.executed $(PAGES) $(FOLDERS) $(SETTINGS) $(VENV)/.installed
	$(JUPYTER_BOOK)
	@touch $@
