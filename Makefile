# `make demo` and `make test` need only Python 3.11 to 3.13 and make: they install the rest.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
RUN := TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python
DEMO := runs/demo
PHOTOS = $(addprefix $(BIN)/../lib/python3*/site-packages/skimage/data/,chelsea.png coffee.png astronaut.png rocket.jpg)

# Here exactly the files are installed whose hashes are in requirements.txt; elsewhere their versions.
HASHED := $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m))
EDITABLE := --config-settings editable_mode=compat --editable

.PHONY: demo explore pretrained test slow fuzz bench lint install requirements clean

install: .venv/installed

.venv/installed: setup.py constraints.txt requirements.txt
	@test -n "$(PYTHON)" || { echo "error: Python 3.11, 3.12 or 3.13 is needed; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv
ifdef HASHED
	$(BIN)/pip install --quiet --require-hashes --no-deps --requirement requirements.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation $(EDITABLE) .
	$(BIN)/pip check
else
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt $(EDITABLE) ".[all,test]"
endif
	@touch $@

# Hashes of all files of every package, for all platforms; versions that are new go into constraints.txt.
requirements:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet "uv<1"
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
		--custom-compile-command "make requirements" --extra all --extra test \
		--constraint constraints.txt --output-file requirements.txt setup.py
	grep -oE '^[^ ;]+==[^ ;]+' requirements.txt | awk -F== '!seen[$$1]++' - constraints.txt | \
		LC_ALL=C sort --output constraints.txt

demo: install
	$(RUN) -m trainer.prepare --dataset demo --source $(DEMO)/photos --output $(DEMO)/data --store both \
		--images_per_shard 100
	$(RUN) -m trainer.task --data $(DEMO)/data --job_dir $(DEMO)/job --preset demo
	$(RUN) -m trainer.evaluate --job_dir $(DEMO)/job --data $(DEMO)/data --split test \
		--tasks captions,rerank,retrieval --output $(DEMO) --nometeor
	$(RUN) -m export.task --job_dir $(DEMO)/job --output $(DEMO)/models/mrnn
	$(RUN) -m export.index --model $(DEMO)/models/mrnn \
		--data $(DEMO)/data --output $(DEMO)/models/mrnn_index \
		--show "A red car on the street"
	@echo "The packaged model on real photographs, which ship with scikit-image:"
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/mrnn caption --n 2 $(PHOTOS)
	@echo "look at $(DEMO)/report.html in a browser; caption your own photographs by $(BIN)/mrnn caption PHOTO"
	@echo "next: make explore"

# The explorer page over the model, the index and the pictures of `make demo`.
explore: install
	@test -d $(DEMO)/models/mrnn || { echo "error: there is no $(DEMO)/models/mrnn: run make demo first"; exit 1; }
	$(RUN) -m serving.explorer --model $(DEMO)/models/mrnn --photos $(DEMO)/photos --open

# The model of the package: FLICKR8K and COCO are folders with photographs, see docs/models/lite0.md.
PRETRAINED := runs/pretrained
pretrained: install
	$(RUN) -m trainer.prepare --dataset flickr8k,jsonl --source $(FLICKR8K),$(COCO) --output $(PRETRAINED)/data
	$(RUN) -m trainer.task --data $(PRETRAINED)/data --job_dir $(PRETRAINED)/first --preset paper --epochs 10
	$(RUN) -m trainer.task --data $(PRETRAINED)/data --job_dir $(PRETRAINED)/best --preset best --epochs 1.5 \
		--initial_run $(PRETRAINED)/first
	$(RUN) -m trainer.evaluate --data $(PRETRAINED)/data --job_dir $(PRETRAINED)/best
	$(RUN) -m export.pretrained --job_dir $(PRETRAINED)/best --output $(PRETRAINED)/lite0 \
		--scores $(PRETRAINED)/best/report/scores.json \
		--description "m-RNN on EfficientNet-Lite0, trained on photographs of Flickr8k and MS COCO" \
		--terms "for research, as Flickr8k is: see docs/models/lite0.md"
	@echo "put $(PRETRAINED)/lite0 in the place of mrnn_tf/pretrained/lite0 to ship it"

test: install
	$(RUN) -m pytest --numprocesses 2 --dist loadfile

slow: install
	$(RUN) -m pytest -m slow -rP

fuzz: install
	PYTHONPATH=.:tests $(RUN) -m fuzz --inputs $(or $(INPUTS),100000) --seed $(or $(SEED),0)

bench: install
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[benchmark]"
	$(RUN) benchmarks/input_pipeline.py
	$(RUN) benchmarks/training.py
	$(RUN) benchmarks/decoding.py
	$(RUN) benchmarks/server.py
	$(RUN) benchmarks/consensus.py
	$(RUN) benchmarks/explorer.py
	@if [ -n "$(JOB_DIR)" ]; then $(RUN) benchmarks/retrieval.py --job_dir $(JOB_DIR) --data $(DATA); \
	else echo "make bench JOB_DIR=run DATA=records measures retrieval too, with a trained run"; fi

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

clean:
	rm -rf runs
