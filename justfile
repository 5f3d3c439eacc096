# Short names for what a developer does all day. `just ci` is what the gate runs.

# Lists the recipes.
default:
    @just --list

# Formats everything.
fmt:
    cargo fmt --all

# The lints, as the gate runs them.
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

# Tests of one crate (`just t apiserver`), or all of them.
t crate="":
    {{ if crate == "" { "cargo test" } else { "cargo test -p karpenter-" + crate } }}

# Writes the definitions the chart ships.
crds:
    #!/usr/bin/env bash
    set -euo pipefail
    cargo build --quiet --bin karpenter
    for kind in NodePool NodeClaim NodeOverlay CapacityBuffer KWOKNodeClass ClusterAPINodeClass CloudStackNodeClass; do
        definition=$("${CARGO_TARGET_DIR:-target}/debug/karpenter" crds --kind "$kind")
        name=$(sed -n 's/^  name: *//p' <<< "$definition" | head -n 1)
        echo "$definition" > "charts/karpenter/crds/${name#*.}_${name%%.*}.yaml"
    done

# Licences, bans and sources of the dependencies (needs cargo-deny).
deny:
    cargo deny check

# Everything the gate does, real peers included.
ci:
    bash .ci/run
