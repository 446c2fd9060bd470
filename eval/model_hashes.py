"""Saves the model hashes of all shipped configurations over all transports, and compares them later.

    python eval/model_hashes.py FILE [--only CONFIG ...] [--transports NAME ...] [--rounds 6]

A change that must not change any model is tried so: the first call writes FILE, a call after the change
compares with it and says what differs. A run that is refused counts with its message. Left out are
asynchronous runs, which are never twice the same, `shatter`, which draws from keys that are new in every run,
and configurations that download data or take over a minute. Noise is drawn from the seed. Exit code 1 if a
hash differs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRANSPORTS = {
    "inproc": ["communication=inproc"],
    "shared memory": ["communication={name: zeromq}"],
    "tcp": ["communication={name: zeromq, local: tcp}"],
    "gloo": ["communication={name: torch_distributed, backend: gloo}"],
    "simulated": [
        "communication={name: simulated, latency: 30 ms, uplink: 20 Mbit/s, jitter: 5 ms, loss: 0.05}",
        "training.pace=instant",
    ],
}
LEFT_OUT = {"asynchronous", "async_diloco", "shatter"}
SEEDED = {
    "decor": ["training.privacy.generator=seeded"],
    "dp_sgd": ["training.privacy.generator=seeded"],
    "mafalda_sgd": ["training.privacy.generator=seeded"],
    "zip_dl": ["sharing.generator=seeded"],
    "muffliato": ["sharing.generator=seeded"],
    "reference": ["training.privacy.generator=seeded"],
}
LIMIT = 120
"""Seconds of one run, with its start."""


def outcome(config: Path, transport: str, rounds: int) -> str:
    """The model hash of a run, or the last line of one that failed."""
    with tempfile.TemporaryDirectory(prefix="hash-") as folder:
        overrides = [f"rounds={rounds}", *TRANSPORTS[transport], "evaluation.figures=false"]
        command = [sys.executable, "-m", "decentnode", "run", str(config), f"run_dir={folder}/run"]
        try:
            run = subprocess.run(
                [*command, *overrides, *SEEDED.get(config.stem, [])],
                capture_output=True, text=True, timeout=LIMIT, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"not finished after {LIMIT} s"
        if run.returncode == 0:
            return str(json.loads(Path(folder, "run/summary.json").read_text())["model_hash"])
        # Paths are those of this start.
        lines = (run.stderr or run.stdout).replace(folder, "").strip().splitlines()
        return f"exit code {run.returncode}: {lines[-1] if lines else ''}"


def main() -> None:
    """Writes the file, or compares with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="names of configurations; all without it")
    parser.add_argument("--transports", nargs="*", default=[*TRANSPORTS], choices=[*TRANSPORTS])
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    saved = json.loads(options.file.read_text()) if options.file.exists() else {}
    configs = [path for path in sorted((ROOT / "configs").glob("*.yaml")) if path.stem not in LEFT_OUT]
    outcomes, differing = {}, 0
    for config in configs:
        if options.only and config.stem not in options.only:
            continue
        for transport in options.transports:
            key = f"{config.stem}, {transport}, {options.rounds} rounds"
            outcomes[key] = outcome(config, transport, options.rounds)
            expected = saved.get(key, outcomes[key])
            differs = outcomes[key] != expected
            differing += differs
            print(f"{key}: {outcomes[key]}" + f" DIFFERS from {expected}" * differs, flush=True)
    if not saved:
        options.file.write_text(json.dumps(outcomes, indent=1))
    print(f"{len(outcomes)} runs, {differing} differ")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
