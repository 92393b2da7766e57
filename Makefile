# `make up` starts the whole system here; `make test` proves it. Both set up first, once. Needs Python 3.11+ and make.
SHELL := /bin/bash
VENV ?= .venv
ARGS ?=
.DEFAULT_GOAL := help
# Without bytecode, each of some hundred processes of the tests would compile this project again.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help web up test faults check fix docs bench soak gpu clean

help: ## say what there is
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '  make %-6s %s\n' "$$name" "$$text"; done
	@echo '  More arguments: make up ARGS="--nodes 2", make test ARGS="-k pause"'

# `make up ARGS="--extras hf,recipes"` installs these extras first.
COMMA := ,
EXTRAS := $(word 2,$(subst =, ,$(filter --extras=%,$(subst --extras ,--extras=,$(ARGS)))))
up: $(VENV)/.ready $(if $(EXTRAS),$(VENV)/.extras-$(EXTRAS)) ## start everything on this machine: Redis, service, one node, dashboard and API on localhost
	@exec $(VENV)/bin/footplate up $(filter-out --extras=%,$(subst --extras ,--extras=,$(ARGS)))

# Two more at once than there are CPUs, because most of a test is waiting for processes that it started.
test: $(VENV)/.dev ## every test, against real Redis, PostgreSQL and processes
	@$(VENV)/bin/pytest --numprocesses $$(($$(nproc) + 2)) --maxprocesses 4 --dist worksteal $(ARGS)

faults: $(VENV)/.dev ## every fault on both databases and without its protection, and the long stories; ARGS="--eighth 3" runs a part
	@$(VENV)/bin/pytest --numprocesses $$(($$(nproc) + 1)) --maxprocesses 4 --dist worksteal --matrix $(ARGS)

check: $(VENV)/.dev ## format, lint, types, import rules and plain English
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python docs/prose.py

fix: $(VENV)/.dev ## format, fix what the linter can, and write the pages that are made from code
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	PYTHONPATH=. $(VENV)/bin/python docs/generate.py

docs: $(VENV)/.docs ## build the docs site from docs/ into build/docs; a broken link stops it
	@$(VENV)/bin/sphinx-build -q -W --keep-going -b html docs build/docs
	@echo 'Open build/docs/index.html in a browser.'

bench: $(VENV)/.dev ## our figures beside our peers', in one run
	@$(VENV)/bin/python -m bench $(ARGS)

soak: $(VENV)/.dev ## the long forms: outages of minutes, hundreds of kills
	@$(VENV)/bin/pytest -m soak --timeout 3600 $(ARGS)

gpu: $(VENV)/.extras-bitsandbytes,liger $(VENV)/.dev ## the tests that need a real GPU
	@$(VENV)/bin/pytest -m gpu --timeout 600 $(ARGS)

web: ## check, test and build the dashboard from web/ into service/dashboard (needs Node 20 or newer)
	@cd web && npm ci --silent && npm run --silent build && npm test --silent

clean: ## forget set-up and caches; the state in .footplate stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -not -path './.footplate/*' -prune -exec rm -rf {} +

# Installs once, stamped: what runs, and for all but `make up` what tests. uv reads neither pip's configuration nor its
# cache, so where it fails pip has its turn. Compiled once here, because a first start that compiles torch's Python
# takes twice as long.
define install
	@set -eu; \
	echo 'Installing $(1). This happens once and may take minutes.' >&2; \
	if [ -x $(VENV)/bin/uv ] && VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/uv pip install $$([ -t 2 ] || echo --quiet) --compile-bytecode \
	    $${PIP_FIND_LINKS:+--find-links "$${PIP_FIND_LINKS// /,}"} -c constraints.txt $(2); then :; else \
	  echo 'uv could not install it; trying pip.' >&2; \
	  $(VENV)/bin/python -m pip install --quiet -c constraints.txt $(2); \
	fi; \
	touch $@
endef

$(VENV)/.ready: $(VENV)/bin/python constraints.txt pyproject.toml
	$(call install,what runs,-e '.[embedded]')

$(VENV)/.dev: $(VENV)/.ready
	$(call install,what tests,-e '.[embedded]' --group dev)
	$(call install,the libraries of some tests,--no-deps --target $(VENV)/libraries --group libraries)

# Checked first, because uv and pip only warn about an extra that does not exist.
$(VENV)/.extras-%: $(VENV)/.ready
	@$(VENV)/bin/python -c 'import sys; from importlib.metadata import metadata; known = metadata("footplate").get_all("Provides-Extra"); \
	  wrong = sorted(set(sys.argv[1].split(",")) - set(known)); \
	  sys.exit(f"There is no extra {wrong[0]!r}. The extras are: " + ", ".join(known) if wrong else 0)' '$*'
	$(call install,the extras $*,-e '.[embedded$(COMMA)$*]')

$(VENV)/.docs: $(VENV)/bin/python constraints.txt pyproject.toml
	$(call install,what builds the docs,--group docs)

$(VENV)/bin/python:
	@set -eu; \
	for python in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3 ''; do \
	  [ -n "$$python" ] || { echo 'Footplate needs Python 3.11 or newer, and found none. Install it, or say where: make up PYTHON=/path/to/python3' >&2; exit 1; }; \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then break; fi; \
	done; \
	echo "Making $(VENV) with $$("$$python" --version)." >&2; \
	"$$python" -m venv $(VENV); \
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt uv >/dev/null 2>&1 || $(VENV)/bin/python -m pip install --quiet -c constraints.txt pip
