#!/bin/bash
# Runs one command on the machine with the GPU: bash benchmarks/gpu_half_hour/start.sh measure_1 OUT
# What is missing there comes as wheels in carried/wheels; compiled kernels stay for the next command.
set -euo pipefail
cd "$(dirname "$0")/../.."
command=$1 out=$2
shift 2
site=/tmp/gpu_half_hour/site
python=${PYTHON:-python3}
if compgen -G 'carried/wheels/*.whl' > /dev/null; then
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" carried/wheels/*.whl
fi
export PYTHONPATH="$PWD:$site" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export CUBLAS_WORKSPACE_CONFIG=:4096:8 TORCHINDUCTOR_CACHE_DIR=/tmp/gpu_half_hour/inductor
exec "$python" benchmarks/gpu_half_hour/half_hour.py "$command" --out "$out" "$@"
