# The everyday commands. Each is one command that also works without just: https://just.systems

# List the recipes.
default:
    @just --list

# Type-check every target of the workspace.
check:
    cargo check --workspace --all-targets --locked

# Test the libraries, the command and the examples; arguments are those of cargo test.
test *args:
    cargo test --locked {{args}}

# Test tools/ too.
test-all:
    cargo test --workspace --locked

# Format all code.
fmt:
    cargo fmt --all

# Lint as the gate does.
lint:
    cargo clippy --workspace --all-targets --locked -- -D warnings

# Lint published crates alone, with each feature and with none; all of them unless named.
published *crates:
    .ci/published {{crates}}

# Build the API documentation.
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# Run the whole gate.
gate:
    .ci/run

# Run the demo.
demo:
    cargo run --locked -p evenkeel-cli -- demo

# Write the generated code after a change of a .proto file.
protogen:
    cargo run --locked -p protogen

# Compare instructions and allocations with tools/bench/counts.json; `just counts --accept` writes it.
counts mode="--check":
    cargo build --locked --profile counts -p evenkeel-bench -p examples --bin evenkeel-bench
    target/counts/evenkeel-bench counts {{mode}}

# Run the interop cases with every peer that can be installed.
interop:
    cargo run --locked -p interop -- matrix

# Fuzz, e.g. `just fuzz -s 10 cluster`.
fuzz *args:
    tools/fuzz/run {{args}}

# Compare the public API with the release TAG.
semver tag:
    cargo semver-checks --workspace --baseline-rev {{tag}}
