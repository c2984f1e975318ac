#!/bin/sh
# What the product does on this machine's accelerator: correctness, throughput, memory, overlap.
#
#   benchmarks/gpu.sh [--rows 1000000] [--batch 8192] [--seconds 540]
#
# Installs nothing and ends within ten minutes. What a missing package forbids is left out and
# named. The last line is one JSON object; without an accelerator it says so and checks what a CPU
# can check.
set -u
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-}
if [ -z "$python" ]; then
    if [ -x .venv/bin/python ]; then python=.venv/bin/python; else python=python3; fi
fi
missing=
for package in torch numpy pyarrow pydantic fsspec psutil safetensors; do
    "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$package') is None)" \
        || missing="$missing $package"
done
if [ -n "$missing" ]; then
    echo "nothing can be run: $python has no$missing" >&2
    printf '{"accelerator": null, "missing": "%s"}\n' "${missing# }"
    exit 0
fi
if command -v timeout > /dev/null; then
    exec timeout 600 "$python" -W ignore -m benchmarks.gpu "$@"
fi
exec "$python" -W ignore -m benchmarks.gpu "$@"
