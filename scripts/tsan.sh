#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ThreadSanitizer (GCC's) over the thread pool and the CPU kernels: builds the package with it beside this checkout's
# build, and runs the op tests on the backend cpu with four threads and loops split as finely as can be (thread_pool.cpp).
#   scripts/tsan.sh [pytest arguments]      PYTHON=.venv/bin/python: with torch, pytest, cmake, ninja and pybind11
# Exit code 1 and the reports if a race was seen. Five minutes on two cores.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3} out=$root/build/tsan
tests=("$@")
if ((!$#)); then
  tests=("$root"/tests/test_{alloc_extend,assign_draft_slots,build_tree,compress_kv,lightning_index,mhc_*,moe_experts}.py
    "$root"/tests/test_{move_accepted_kv,nextn_fuse_hidden,q_norm_rope,select_draft_topk,sparse_paged_attention}.py
    "$root"/tests/test_{swa_*,verify_*,large_batches,hostile_calls}.py)
fi

mkdir -p "$out/package"
cp -r "$root/python/dsv4spec" "$out/package/"
rm -rf "$out/package/dsv4spec/lib" "$out"/package/dsv4spec/_C.*.so
cmake -S "$root" -B "$out/cmake" -G Ninja -DCMAKE_CXX_FLAGS="-fsanitize=thread -g1" -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
  -DDSV4SPEC_CUDA=OFF -DDSV4SPEC_ASCEND=OFF -DDSV4SPEC_CPU_LEVELS="${DSV4SPEC_CPU_LEVELS:-v3}" \
  -DDSV4SPEC_LIB_DIR="$out/package/dsv4spec/lib" -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" \
  -DPython_EXECUTABLE="$(command -v "$python")" >"$out/configure.log"
cmake --build "$out/cmake" --parallel "$("$python" -c "import sys; sys.path.insert(0, '$root/cmake'); import jobs; print(jobs.build_jobs())")"

# sanitized NAME ARGUMENTS...: runs Python; reports go to NAME.<pid>. Its run time wants addresses that do not move.
sanitized() {
  rm -f "$out/$1".*
  setarch -R env LD_PRELOAD="$(g++ -print-file-name=libtsan.so)" TSAN_OPTIONS="log_path=$out/$1 exitcode=0" \
    PYTHONPATH="$out/package" OMP_NUM_THREADS=1 DSV4SPEC_NUM_THREADS=4 DSV4SPEC_TEST_BACKENDS=cpu "$python" "${@:2}"
}

# Two callers with one output are a race: were it not reported, the tests would prove nothing.
sanitized planted - <<'PLANTED'
import threading
import numpy as np
from dsv4spec import ops

y, residual = np.ones((64, 640), np.float32), np.ones((64, 4, 640), np.float32)
args = y, residual, np.ones((64, 4), np.float32), np.ones((64, 4, 4), np.float32)
out = np.empty_like(residual)
threads = [threading.Thread(target=lambda: [ops.mhc_post(*args, out=out) for _ in range(200)]) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
PLANTED
grep -qs "data race" "$out"/planted.* || { echo "tsan.sh: a planted race was not reported" >&2; exit 1; }

sanitized report -m pytest -q -p no:cacheprovider "${tests[@]}"
if compgen -G "$out/report.*" >/dev/null; then
  cat "$out"/report.* >&2
  exit 1
fi
echo "tsan.sh: no race reported; the planted one was"
