#!/usr/bin/env bash
# The main job, end to end: train on two ranks, record, analyse.  Usage: samples/demo.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-demo-output}

run() { # name, then the script and its arguments
    local name=$1
    shift
    mkdir -p "$out/$name"
    echo
    echo "== HOROVOD_TIMELINE=$out/$name/t.json tl-run -np 2 python $*"
    HOROVOD_TIMELINE="$out/$name/t.json" tl-run -np 2 python "$@"
    echo "== tl-analyze $out/$name/t.json"
    tl-analyze "$out/$name/t.json"
    tl-analyze "$out/$name/t.json" --json "$out/$name/report.json" >/dev/null
}

run transformer samples/train_transformer.py
run cnn samples/train_cnn.py
run cnn-with-a-slow-rank benchmarks/diagnosis/train.py --steps 40 --fault slow-forward:rank=1,ms=50

echo
echo "Made:"
find "$out" -name '*.json' | sort | sed 's/^/  /'
cat <<TEXT
Next:
  open $out/cnn/t.json and t.rank1.json together at https://ui.perfetto.dev (or chrome://tracing): one process a rank
  read $out/cnn-with-a-slow-rank/report.json, the report for programs
  try it on your own script:  HOROVOD_TIMELINE=t.json tl-run -np 2 python train.py && tl-analyze t.json
TEXT
