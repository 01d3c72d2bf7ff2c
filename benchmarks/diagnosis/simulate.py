"""Simulates one training job with random faults and writes its trace, the truth beside it.

    python benchmarks/diagnosis/simulate.py 17 --out run17      # the case of seed 17: shards and truth.json

The model is in simulator/; benchmarks/diagnosis/simulated.py puts the diagnosis to the test with thousands of cases.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from simulator.cases import MIXTURE, TWO, Case, class_of, make_case
from simulator.fault_kinds import KINDS
from simulator.horovod import write_horovod
from simulator.kineto import write_kineto
from simulator.kineto_device import write_device_kineto
from simulator.shards import write_shards


def write_case(case: Case, folder: Path) -> None:
    """The trace of a case and its truth."""
    if case.file_format == "horovod":
        write_horovod(case.recording, case.job, folder, has_cache=case.job.has_cache)
    elif case.file_format == "kineto":
        write_kineto(case.recording, case.plan, folder)
    elif case.file_format == "gpu":
        write_device_kineto(case.recording, case.plan, folder)
    else:
        write_shards(case.recording, case.job, case.noise, folder)


def truth_of(case: Case) -> dict[str, object]:
    """The truth, for a file."""
    truth = case.truth
    return {
        "seed": case.seed,
        "format": case.file_format,
        "class": truth.class_,
        "faults": [
            {
                **asdict(fault),
                "class": class_of(fault, case.file_format),
                "gain": gain,
                "causes": KINDS[fault.kind].causes,
            }
            for fault, gain in zip(truth.faults, truth.gains, strict=True)
        ],
        "gain": truth.gain,
        "step_ms": truth.step_ns / 1e6,
        "clean_step_ms": truth.clean_step_ns / 1e6,
        "job": asdict(case.job) | {"layers": len(case.job.layers)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("--only", default="", metavar="KIND", help="a kind of fault, healthy, or two (faults at once)")
    parser.add_argument("--format", default="tlkit", choices=(*MIXTURE, "mixed"))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    args = parser.parse_args()
    if args.only and args.only not in {"healthy", TWO, *KINDS}:
        parser.error(f"--only {args.only}: the kinds are healthy, {TWO}, {', '.join(KINDS)}")
    case = make_case(args.seed, args.only, args.format)
    args.out.mkdir(parents=True, exist_ok=True)
    write_case(case, args.out / "trace")
    (args.out / "truth.json").write_text(json.dumps(truth_of(case), indent=1) + "\n", encoding="utf-8")
    print(f"{args.out}/trace, {args.out}/truth.json")


if __name__ == "__main__":
    main()
