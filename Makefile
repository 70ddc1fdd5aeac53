# Every target works on a fresh machine that has Python 3.11, Java 17 and Maven. Nothing is installed outside .venv.
PYTHON ?= python3.11
BIN := .venv/bin
EXTRAS := spark,petastorm,keras,torch,hyperopt,optuna,trackers,hdfs,s3,images,plot,examples,dev
READY := .venv/.ready
FAST := not jvm and not hadoop and not slow

.PHONY: demo test test-fast lint format bench hadoop clean java maven

demo: java $(READY)
	$(BIN)/python examples/flights.py

test: java $(READY)
	CEREBRO_STATEFUL_EXAMPLES=2000 $(BIN)/python -m pytest --durations=30

test-fast: $(READY)
	$(BIN)/python -m pytest -m "$(FAST)"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: java $(READY)
	$(BIN)/python -m benchmarks

hadoop: java maven $(READY)
	PYTHONPATH=python/tests $(BIN)/python -m hadoop

clean:
	rm -rf .venv .hadoop build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

java:
	@command -v java >/dev/null || { echo "Java is missing: install version 17, for example with 'apt-get install openjdk-17-jre-headless'"; exit 1; }

maven:
	@command -v mvn >/dev/null || { echo "Maven is missing: install it, for example with 'apt-get install maven'"; exit 1; }

$(READY): setup.cfg setup.py pyproject.toml constraints/classic.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11, or say 'make PYTHON=/path/to/python3.11 ...'"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip "setuptools<70" wheel
	$(BIN)/python -m pip install --quiet --constraint constraints/classic.txt --editable ".[$(EXTRAS)]"
	touch $@
