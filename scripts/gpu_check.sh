#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All checks that need a GPU, in one command of at most 8 minutes:
#   scripts/gpu_check.sh [--python PYTHON] [--out DIR]
# 1. build for this machine's GPU   2. the op tests, graph capture, side streams and the engine on it
# 3. compute-sanitizer on small shapes, where it is installed   4. benchmarks of every op against the roofs measured here
# Every step runs, whatever the others did; the exit code is 0 only if all went well. DIR (default: build/gpu) gets the logs
# and ops.json, which benchmarks/results/ is for.
#   --device cpu --no-build  tries this script itself on a machine without a GPU, with the package that is installed.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3} device=cuda build=1 out= most=${DSV4SPEC_GPU_CHECK_SECONDS:-470}
while (($#)); do
  case $1 in
    --python) python=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --device) device=$2; shift 2 ;;
    --no-build) build=0; shift ;;
    *) sed -n '3,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
out=${out:-$root/build/gpu}
mkdir -p "$out"
python=$(command -v "$python") || { echo "gpu_check: no $python" >&2; exit 2; }
export PYTHONUNBUFFERED=1
failed=()

# step NAME SECONDS COMMAND...: runs it with a limit, its output shown and kept in NAME.log. What is left of the eight
# minutes is every step's limit too.
step() {
  local name=$1 limit=$2 start=$SECONDS left=$((most - SECONDS))
  shift 2
  if ((left < limit)); then limit=$((left > 0 ? left : 0)); fi
  if ((limit == 0)); then  # to timeout it would mean: none
    echo "=== $name: not run, the $most s are over"
    failed+=("$name")
    return 124
  fi
  echo "=== $name (at most $limit s)"
  timeout --kill-after=5 "$limit" "$@" 2>&1 | tee "$out/$name.log"
  local code=${PIPESTATUS[0]}
  if ((code == 124 || code == 137)); then echo "=== $name: stopped after $limit s"; fi
  if ((code)); then failed+=("$name"); fi
  echo "=== $name: exit $code after $((SECONDS - start)) s"
  return "$code"
}

# ---------------------------------------------------------------------------------------------------- what is needed
missing() {
  "$python" - "$device" "$build" <<'PY'
import importlib.util, shutil, sys
device, build = sys.argv[1], sys.argv[2] == "1"
lack = [m for m in ("torch", "pytest", "numpy", *(("pybind11",) if build else ())) if importlib.util.find_spec(m) is None]
lack += [t for t in (("cmake", "nvcc") if build else ()) if shutil.which(t) is None]
if device == "cuda" and "torch" not in lack:
    import torch
    if not torch.cuda.is_available():
        lack.append("a GPU that torch sees")
print(", ".join(lack))
PY
}
lack=$(missing)
if [[ -n $lack ]]; then
  echo "gpu_check: missing: $lack" >&2
  exit 2
fi
[[ $device == cuda ]] && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

# --------------------------------------------------------------------------------------------------------------- build
build_package() {
  local level=v2 flags
  flags=$(grep -m1 -w flags /proc/cpuinfo || true)
  [[ $flags == *avx2* ]] && level=v3
  [[ $flags == *avx512vl* ]] && level=v4
  [[ $flags == *avx512_bf16* && $flags == *avx512vbmi* ]] && level=v4_bf16
  [[ $(uname -m) == x86_64 ]] || level=generic
  local package=$out/package/dsv4spec generator=()
  command -v ninja >/dev/null && generator=(-GNinja)
  rm -rf "$out/package" && mkdir -p "$out/package" && cp -r "$root/python/dsv4spec" "$package" && rm -rf "$package"/{lib,_C.*} &&
    cmake -S "$root" -B "$out/cmake" "${generator[@]}" -DDSV4SPEC_CUDA=ON -DDSV4SPEC_CUDA_ARCHS=native \
      -DDSV4SPEC_CUDA_FLAGS=-lineinfo -DDSV4SPEC_CPU_LEVELS=$level -DDSV4SPEC_LIB_DIR="$package/lib" \
      -DPython_EXECUTABLE="$python" -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" &&
    cmake --build "$out/cmake" --parallel "$("$python" -c "import sys; sys.path.insert(0, '$root/cmake')
from jobs import build_jobs; print(build_jobs())")"
}
if ((build)); then
  export -f build_package
  export root out python DSV4SPEC_CUDA_ARCHS=native
  step build 120 bash -c build_package || { echo "gpu_check: FAILED: build" >&2; exit 1; }
  export PYTHONPATH=$out/package
fi
cd "$root" || exit 2
step info 30 "$python" -m dsv4spec.cli info
((build)) && step kernels 30 "$python" -m dsv4spec.cli info --kernels

# --------------------------------------------------------------------------------------------------------------- tests
tests=(tests/test_cuda_gpu.py)
if [[ $device == cuda ]]; then  # all that run on the backends they are told, or on a GPU; the rest of the suite needs none
  mapfile -t told < <(grep -lE 'BACKENDS|MACHINES' tests/test_*.py)
  tests+=("${told[@]}" tests/test_ptx_conformance.py tests/test_cuda_build.py)
  "$python" -c "import xdist" 2>/dev/null && tests+=(-n 4)
else
  tests+=(tests/test_mhc_post.py)
fi
step tests 170 env DSV4SPEC_TEST_BACKENDS="$device,reference" "$python" -m pytest -q "${tests[@]}"

# Every op on small odd shapes, against the same call on the CPU; together they launch every kernel.
cat >"$out/samples.py" <<'PY'
import sys
sys.path.insert(0, "tests")
import torch
from emu_cases import CASES, FEW
from dsv4spec import bench_check, ops

device, wrong = sys.argv[1], []
to = lambda v: v.to(device) if isinstance(v, torch.Tensor) else v
for name in FEW:
    results = []
    for move in (to, lambda v: v):
        op, args, kwargs = CASES[name]()
        args = [move(a) for a in args]
        out = getattr(ops, op)(*args, **{k: move(v) for k, v in kwargs.items()})
        results.append([t.cpu() for t in bench_check.tensors((out, args))])
    why = bench_check.difference(*results)
    wrong += [f"{name}: {why}"] if why else []
    print(name, why or "right")
sys.exit("; ".join(wrong) or 0)
PY
# What shows that a clean report is one: a kernel for each tool with the bug that it looks for. Its name reaches the
# tools through the filter that the package's kernels come through, a part of the mangled name.
cat >"$out/planted.cu" <<'CU'
#include <cstdio>
namespace dsv4 {
__global__ void past_the_end(int* p) { p[threadIdx.x + 1] = 1; }
__global__ void no_barrier(int* p) {
  __shared__ int s[64];
  s[threadIdx.x] = p[0];
  p[threadIdx.x] = s[63 - threadIdx.x];
}
}  // namespace dsv4
int main(int, char** arguments) {
  int* p;
  if (cudaMalloc(&p, 64 * sizeof(int)) != cudaSuccess) return 3;
  if (arguments[1][0] == 'm') dsv4::past_the_end<<<1, 64>>>(p);
  else dsv4::no_barrier<<<1, 64>>>(p);
  cudaDeviceSynchronize();
  std::puts("planted: ran");
}
CU
sanitized() {  # TOOL COMMAND...
  local tool=$1
  shift
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --error-exitcode 9 --kernel-name kns=dsv4 "$@"
}
planted() {  # TOOL: well if the tool finds the bug
  local report code
  report=$(sanitized "$1" "$out/planted" "$1" 2>&1)
  code=$?
  echo "$report"
  if ((code != 9)) || ! grep -Eq 'Invalid __global__ write|hazard' <<<"$report"; then
    echo "$1 did not see the planted bug (exit $code): its report on the samples would mean nothing"
    return 1
  fi
}
if command -v compute-sanitizer >/dev/null && command -v nvcc >/dev/null && [[ $device == cuda ]]; then
  export -f sanitized planted
  export out
  step planted-build 30 nvcc -arch=native -lineinfo "$out/planted.cu" -o "$out/planted"
  for tool in memcheck racecheck; do
    step "planted-$tool" 20 bash -c "planted $tool"
    step "$tool" 45 bash -c "sanitized $tool \"\$@\"" - "$python" "$out/samples.py" cuda
  done
else
  echo "=== no compute-sanitizer or no nvcc here: the samples run without it"
  step samples 45 "$python" "$out/samples.py" "$device"
fi

# ---------------------------------------------------------------------------------------------------------- benchmarks
ops=() shapes=flash,pro against=torch,compile:first,peers
[[ $device == cuda ]] || { ops=(mhc_post build_tree) shapes=tiny against=none; }
left=$((most - SECONDS < 160 ? most - SECONDS : 160))  # 40 s of it are for the roofs, and for the last case and its compilation
step bench 160 "$python" -m dsv4spec.cli bench "${ops[@]}" --backend "$device" --shapes "$shapes" --against "$against" \
  --budget "$((left > 41 ? left - 40 : 1))" --json "$out/ops.json"

if ((${#failed[@]})); then
  echo "gpu_check: FAILED: ${failed[*]} (logs in $out)" >&2
  exit 1
fi
echo "gpu_check: all well after $SECONDS s; $out/ops.json can go to benchmarks/results/"
