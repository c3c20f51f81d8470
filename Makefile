# make demo    install, then run few-shot class-incremental learning on the built-in benchmark
# make test    install the test tools, then check lint, types and layers, and run the tests
# make soak    run the long forms of the tests: a thousand kills, thousands of cases
# make coverage  run the tests, and record the share of lines that they run, for docs/quality.md
# make bench   measure speed and memory on this machine, as far as no dataset is needed
# make docs    fill in the generated parts of README.md and docs, and build the site in build/site
# make notebooks  execute the notebooks in examples/ and write their outputs

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test soak coverage bench docs notebooks clean

demo: .venv/installed
	$(BIN)/fewmore run glyphs --method decoupled-cosine --method cec

test: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy examples/sort_photos.py examples/service_client.py examples/shapes.py
	$(BIN)/lint-imports --config pyproject.toml
	$(BIN)/codespell .github benchmarks docs examples src tests *.md *.toml
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

soak: .venv/installed-test
	$(PIP) -e '.[test,cluster]' pip-audit
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m soak
	$(BIN)/pip-audit --skip-editable --progress-spinner off

coverage: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/line_coverage.py --record results

bench: .venv/installed-test
	for name in scoring transport serving; do $(BIN)/python benchmarks/$$name.py || exit 1; done

docs: .venv/installed-docs
	$(BIN)/python docs/make.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

notebooks: .venv/installed-docs
	$(BIN)/python docs/notebook.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("fewmore needs Python 3.10 or later, and $(PYTHON) is " + sys.version.split()[0] if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing fewmore into .venv (PyTorch is large: this takes a minute or two, once)"
	$(PIP) -e .
	@touch $@

.venv/installed-docs: .venv/installed
	@echo "installing what the site needs into .venv"
	$(PIP) -e '.[docs]'
	@touch $@

.venv/installed-test: .venv/installed
	@echo "installing the test tools into .venv"
	$(PIP) -e '.[test]'
	@touch $@
