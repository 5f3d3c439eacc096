# What the scripts beside this file share: finding a peer, saying that it cannot be had, stopping what was started.
# Sourced, not run. Each script leaves with 0 when the peer agrees or cannot be had, with 1 when it disagrees.
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
shared=${KARPENTER_SHARED:-$repo/../shared}
realcluster=$shared/realcluster
work=$(mktemp -d)
pids=() clusters=()

skip() { echo "SKIPPED: $*"; exit 0; }
fail() { echo "FAILED: $*" >&2; exit 1; }
need() { command -v "$1" > /dev/null || skip "$1 is not installed"; }

stop_all() {
  local pid dir
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; wait "$pid" 2> /dev/null || true; done
  for dir in "${clusters[@]}"; do "$realcluster/down" --dir "$dir" > /dev/null 2>&1 || true; done
  rm -rf "$work"
}
trap stop_all EXIT

# real_cluster NAME [ARGUMENT...]: starts a real control plane on loopback; its kubeconfig is in $real_kubeconfig.
real_cluster() {
  local dir=$work/$1
  shift
  [ -x "$realcluster/up" ] || skip "no $realcluster (set KARPENTER_SHARED)"
  need go; need openssl; need curl; need python3; need kubectl
  if ! "$realcluster/up" --build-only "$@" > "$dir.log" 2>&1; then
    tail -n 5 "$dir.log"
    skip "the real control plane could not be built"
  fi
  clusters+=("$dir")
  if ! real_kubeconfig=$("$realcluster/up" "$@" --dir "$dir" 2>> "$dir.log"); then
    tail -n 15 "$dir.log"
    skip "the real control plane did not start"
  fi
}

# embedded_server: starts `karpenter apiserver` on loopback; its kubeconfig is in $embedded_kubeconfig.
embedded_server() {
  karpenter_binary
  embedded_kubeconfig=$work/embedded.kubeconfig
  "$karpenter" apiserver --listen 127.0.0.1:0 --kubeconfig "$embedded_kubeconfig" > "$work/embedded.log" 2>&1 &
  pids+=($!)
  local tries
  for tries in $(seq 200); do
    [ ! -s "$embedded_kubeconfig" ] || return 0
    kill -0 "${pids[-1]}" 2> /dev/null || break
    sleep 0.05
  done
  cat "$work/embedded.log" >&2
  fail "karpenter apiserver did not become ready"
}

# karpenter_binary [--release]: ours, in $karpenter; $KARPENTER names one that is built already.
karpenter_binary() {
  karpenter=${KARPENTER:-}
  [ -z "$karpenter" ] || return 0
  (cd "$repo" && cargo build --quiet "$@" --bin karpenter)
  karpenter=${CARGO_TARGET_DIR:-$repo/target}/$([ "${1:-}" = --release ] && echo release || echo debug)/karpenter
}

# go_karpenter: Go Karpenter's kwok binary in $go_karpenter, the folder of its module in $go_module; its instance types for both sides.
go_karpenter() {
  need go; need python3
  local cache=${KARPENTER_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/karpenter-ci}/go-karpenter-1.15.0
  go_karpenter=$cache/kwok
  if [ ! -x "$go_karpenter" ]; then
    echo "building Go Karpenter's kwok binary"
    (cd "$work" && GOTOOLCHAIN=go1.26.9 CGO_ENABLED=0 GOBIN=$cache go install -trimpath -ldflags "-s -w" sigs.k8s.io/karpenter/kwok@v1.15.0) \
      > "$work/go.log" 2>&1 || { tail -n 3 "$work/go.log"; skip "Go Karpenter's kwok binary cannot be had"; }
  fi
  go_module=$(GOTOOLCHAIN=go1.26.9 go mod download -json sigs.k8s.io/karpenter@v1.15.0 | python3 -c 'import json,sys; print(json.load(sys.stdin)["Dir"])')
  export INSTANCE_TYPES_FILE_PATH=$go_module/kwok/cloudprovider/instance_types.json
}

# drive NAME SCENARIO OPTION... -- COMMAND...: one scenario of e2e/drive on a fresh control plane; its log stays in $work/NAME.log.
drive() {
  local name=$1 scenario=$2 status=0
  shift 2
  need unshare; need nsenter; need ip
  [ "$(id -u)" = 0 ] || skip "network namespaces need root"
  real_cluster "$name" --netns --audit
  "$realcluster/in" --dir "${clusters[-1]}" "$repo/conformance/e2e/drive" "$scenario" --dir "${clusters[-1]}" "$@" || status=$?
  cp "${clusters[-1]}/log/karpenter.log" "$work/$name.karpenter.log" 2> /dev/null || true
  "$realcluster/down" --dir "${clusters[-1]}" > /dev/null 2>&1 || true
  return "$status"
}
