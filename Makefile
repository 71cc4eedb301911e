# Two commands do all the set-up: `make demo` shows the product, `make test` is what CI runs.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# Where `make bench` finds models beside those it builds itself, and `make wild` all of them.
MODELS ?=

.PHONY: demo test check-rust check-python lint structure docs bench scale wild conformance attack deny semver sanitize sanitize-attack memcheck wheel fixtures clean

demo: $(VENV)/demo-ready
	$(BIN)/python examples/digits/demo.py

test: check-rust check-python

# The tests of the engines run with the onnxruntime of the environment.
check-rust: $(VENV)/created
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	cargo test --workspace --locked

check-python: $(VENV)/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/fixtures/make.py --check
	$(BIN)/python tests/attacks/make.py --check
	$(BIN)/python tools/lint_words.py
	$(BIN)/python tools/structure.py --check
	$(BIN)/python tools/generate_options.py --check
	$(BIN)/python -m pytest -n auto --dist worksteal

# Python's style, retired words and long lines; no build is needed.
lint: $(VENV)/created
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/lint_words.py

# Which module may import which: tools/rooms.toml.
structure: $(VENV)/created
	$(BIN)/python tools/structure.py
	$(BIN)/python tools/structure.py --check

# The wheel as it is published, in an environment of its own.
$(VENV)/demo-ready: $(VENV)/created $(shell find rust python -name '*.rs' -o -name '*.py' -o -name 'Cargo.toml') Cargo.lock pyproject.toml
	rm -rf dist
	$(BIN)/maturin build --release --locked --out dist
	$(BIN)/pip install --quiet --force-reinstall --no-deps dist/*.whl
	touch $@

# The same module, unoptimised, so that the Rust tests and the Python tests share one build.
.PHONY: $(VENV)/test-ready
$(VENV)/test-ready: $(VENV)/created
	rm -f $(VENV)/demo-ready
	. $(BIN)/activate && maturin develop --locked

$(VENV)/created: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/python tools/requirements.py pyproject.toml dev > $(VENV)/requirements.txt
	$(BIN)/pip install --quiet -r $(VENV)/requirements.txt
	touch $@

bench: $(VENV)/demo-ready
	$(BIN)/python bench/run.py $(if $(MODELS),--models $(MODELS)) $(ARGS)

# Calibration with one and two processes, and computed for more.
scale: $(VENV)/demo-ready
	$(BIN)/python bench/scaling.py $(ARGS)

# Every model of a folder in every way; see bench/README.md.
wild: $(VENV)/demo-ready
	$(BIN)/python bench/wild.py $(MODELS) $(ARGS)

# The same calls of onnxruntime.quantization and of ours, compared: writes docs/conformance.md.
conformance: $(VENV)/demo-ready
	$(BIN)/python bench/conformance.py --costs --write $(if $(MODELS),--models $(MODELS)) $(ARGS)

# Runs N mutated inputs of all targets, or of those that TARGET names (SECURITY.md has them), FILES
# of each format that is read in Python, and RESULTS models whose results run in ONNX Runtime; then
# kills a process that saves KILLS times. Inputs are files of SCRATCH, written faster in memory.
N ?= 1000000
FILES ?= 2000
RESULTS ?= 500
KILLS ?= 200
THREADS ?= 2
SCRATCH ?= $(firstword $(wildcard /dev/shm) /tmp)
SEEDS := target/attack-seeds
attack: $(VENV)/demo-ready $(SEEDS)/made
	N=$(N) THREADS=$(THREADS) TMPDIR=$(SCRATCH) SEEDS=$(CURDIR)/$(SEEDS) cargo test --profile attack -p quantize-rs-cli --test attack --locked -- --ignored --nocapture
	$(BIN)/python tests/attacks/readers.py --count $(FILES)
	$(BIN)/python tests/attacks/results.py --count $(RESULTS)
	KILLS=$(KILLS) cargo test -p quantize-rs-onnx --test killed --locked -- --nocapture

# The models of the tests of onnx, as further seeds.
$(SEEDS)/made: $(VENV)/created
	$(BIN)/python tests/attacks/node_models.py $(SEEDS)
	touch $@

# Licences, sources and security advisories of the crates that are built: `cargo install cargo-deny`.
deny:
	cargo deny check

# The public API of the Rust libraries, compared with that of the tag or revision BASELINE; it fails
# where the version does not allow the change: `cargo install cargo-semver-checks --locked`.
BASELINE ?=
LIBRARIES := quantize-rs-math quantize-rs-onnx quantize-rs quantize-rs-runner
semver:
	$(if $(BASELINE),,$(error BASELINE is empty, expected the tag or revision to compare with))
	cargo semver-checks check-release $(LIBRARIES:%=--package %) --baseline-rev $(BASELINE)

# The tests of the crates that map files, compute and rewrite, with AddressSanitizer. The flag is one
# of unstable Rust, which the variable allows; Linux on x86-64.
sanitize:
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=target/sanitize cargo test --target x86_64-unknown-linux-gnu -p quantize-rs-onnx -p quantize-rs-math --tests --locked
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=target/sanitize cargo test --target x86_64-unknown-linux-gnu -p quantize-rs --lib --test damaged --test writing --test validating --locked

# Inputs of `make attack` with AddressSanitizer; N of all targets, or of those that TARGET names.
# Threads that end with the program count as leaks, so leaks are not looked for.
sanitize-attack: N = 300000
sanitize-attack: $(SEEDS)/made
	ASAN_OPTIONS=detect_leaks=0 N=$(N) THREADS=$(THREADS) TMPDIR=$(SCRATCH) SEEDS=$(CURDIR)/$(SEEDS) RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=target/sanitize CARGO_PROFILE_ATTACK_OPT_LEVEL=1 cargo test --profile attack --target x86_64-unknown-linux-gnu -p quantize-rs-cli --test attack --locked -- --ignored --nocapture

# Inputs of `make attack` in valgrind, which finds reads and writes outside of memory in the same
# optimized program; N of the targets that TARGET names. It needs valgrind (`apt-get install valgrind`).
memcheck: TARGET ?= open,npy,npz,safetensors,tensorrt,png,jpeg
memcheck: N = 300
memcheck: $(SEEDS)/made
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="valgrind --quiet --error-exitcode=1" TARGET=$(TARGET) N=$(N) THREADS=1 TMPDIR=$(SCRATCH) SEEDS=$(CURDIR)/$(SEEDS) cargo test --profile attack -p quantize-rs-cli --test attack --locked -- --ignored --nocapture

# The wheel as it is published: size, bill of materials, and whether it works beside numpy alone; with
# CHROOT=FOLDER also in a bare Debian there, which debootstrap makes if it is missing (as root).
CHROOT ?=
wheel: $(VENV)/demo-ready
	$(BIN)/python tools/check_wheel.py dist/*.whl $(if $(CHROOT),--chroot $(CHROOT))

# Writes the fixtures anew, byte for byte what is checked in.
fixtures: $(VENV)/created
	$(BIN)/python tests/fixtures/make.py
	$(BIN)/python tests/attacks/make.py

clean:
	rm -rf $(VENV) dist target
