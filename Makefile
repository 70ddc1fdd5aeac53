# Every target works on a fresh machine that has Python 3.11, Java 17 and Maven. Nothing is installed outside .venv*.
PYTHON ?= python3.11
BIN := .venv/bin
EXTRAS := spark,petastorm,keras,torch,hyperopt,optuna,trackers,hdfs,s3,images,plot,dashboard,examples,docs,zoo,dev
READY := .venv/.ready
# Container images like to switch bytecode off: each of some hundred processes would then compile the package anew.
export PYTHONDONTWRITEBYTECODE :=
FAST := not jvm and not hadoop and not slow
# Two processes: most tests wait for a JVM, a daemon or a worker to start, and two cores have time for both.
PROCESSES ?= 2
SIDE_BY_SIDE := -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder
# The modern stack has an environment of its own, and the suite's core is what must hold there.
MODERN_BIN := .venv-modern/bin
MODERN_EXTRAS := spark,keras,torch,hyperopt,optuna,trackers,hdfs,s3,images,plot,dashboard,dev
MODERN_READY := .venv-modern/.ready
MODERN_TESTS := $(addprefix python/tests/,data test_engine.py test_engine_faults.py test_engine_logs.py test_scheduler_stateful.py test_doctor.py \
	trainer/test_trainer_law.py trainer/test_torch_trainer.py \
	tune/test_space.py tune/test_search_contract.py tune/test_tpe.py tune/test_bad_inputs.py tune/test_fit.py \
	result/test_record.py result/test_spark_scoring.py integration/test_end_to_end.py::test_on_spark_executors)

.PHONY: demo test test-fast test-rare test-modern test-zoo test-schedules test-bundles test-deep mutants fuzz fuzz-wire soak coverage lint format hooks docs bench audit hadoop clean java maven

# It prints the link of a dashboard while it trains; `make demo DASHBOARD=1` keeps that open afterwards.
demo: java $(READY)
	$(BIN)/python examples/flights.py --dashboard $(if $(DASHBOARD),keep,on)

test: java $(READY)
	CEREBRO_STATEFUL_EXAMPLES=500 CEREBRO_RACES=600 $(BIN)/python -m pytest $(SIDE_BY_SIDE) --durations=30 -m "not rare"

test-fast: $(READY)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "$(FAST)"

# Of the fast tier and of its own processes only: measuring all would lengthen the suite by minutes.
coverage: $(READY)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "$(FAST)" --cov --cov-report=term

# What takes long and breaks rarely.
test-rare: java $(READY)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --durations=30 -m rare

test-modern: java $(MODERN_READY)
	$(MODERN_BIN)/python -m pytest $(SIDE_BY_SIDE) --durations=20 -m "not hadoop" $(MODERN_TESTS)

# Two processes a model already, so pytest itself runs in one.
test-zoo: $(READY)
	CEREBRO_ZOO=all $(BIN)/python -m pytest --durations=20 python/tests/zoo

test-schedules: $(READY)
	CEREBRO_SCHEDULES=all $(BIN)/python -m pytest -n 2 python/tests/test_simulation_fused.py

test-bundles: $(READY)
	CEREBRO_BUNDLES=all $(BIN)/python -m pytest $(SIDE_BY_SIDE) $(addprefix python/tests/trainer/,test_train_together.py test_stacked_parts.py)

# What is drawn at random, far more often than in `make test`, and the run with every failure.
test-deep: java $(READY)
	CEREBRO_STATEFUL_EXAMPLES=5000 CEREBRO_RACES=10000 CEREBRO_STORE_RACES=200 CEREBRO_COMMAND_EXAMPLES=2000 CEREBRO_CHAOS=all \
		$(BIN)/python -m pytest $(SIDE_BY_SIDE) \
		$(addprefix python/tests/,test_scheduler_stateful.py test_eventlog_races.py store/test_store_races.py integration/test_chaos.py \
		tune/test_commands_in_runs.py)

# Deliberate bugs in the scheduler and the event log, each of which some test must find. `make test` tries one of them.
mutants: $(READY)
	PYTHONPATH=python/tests $(BIN)/python -m mutants

# Random orders of events against the scheduler: `make fuzz EVENTS=10000` for a try.
fuzz: $(READY)
	PYTHONPATH=python/tests $(BIN)/python -m fuzz $(if $(EVENTS),--events $(EVENTS))

# Bytes that no worker has said against the driver's port: `make fuzz-wire FRAMES=10000` for a try.
fuzz-wire: $(READY)
	PYTHONPATH=python/tests $(BIN)/python -m fuzz --frames $(or $(FRAMES),1000000)

# Real training on hosts of their own, in network namespaces, where one fault follows another: it needs root.
# `make soak HOURS=0.1` for a try.
soak: java maven $(READY)
	PYTHONPATH=.:python/tests:python/tests/integration $(BIN)/python -m hosts.soak \
		$(if $(HOURS),--hours $(HOURS)) $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json $(JSON))

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

hooks: $(READY)
	$(BIN)/pre-commit install

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "Open build/site/index.html; for its search say '$(BIN)/python -m http.server --directory build/site'"

bench: java $(READY)
	$(BIN)/python -m benchmarks

# Known vulnerabilities of what is installed, and licences. It needs a network that CI may lack, and says so then.
audit: $(READY)
	test -x .venv-audit/bin/python || $(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet pip-audit==2.10.1 pip-licenses==5.5.5
	.venv-audit/bin/python constraints/audit.py $(BIN)/python

hadoop: java maven $(READY)
	PYTHONPATH=python/tests $(BIN)/python -m hadoop

clean:
	rm -rf .venv .venv-modern .venv-audit .bench .hadoop build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage

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

$(MODERN_READY): setup.cfg setup.py pyproject.toml constraints/modern.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11, or say 'make PYTHON=/path/to/python3.11 ...'"; exit 1; }
	test -x $(MODERN_BIN)/python || $(PYTHON) -m venv .venv-modern
	$(MODERN_BIN)/python -m pip install --quiet --upgrade --constraint constraints/modern.txt pip setuptools wheel
	$(MODERN_BIN)/python -m pip install --quiet --constraint constraints/modern.txt --editable ".[$(MODERN_EXTRAS)]"
	touch $@
