"""Plan times of one agentic turn as more of its KV path is asked for: loads and sends, write-backs, a store.

    python benchmarks/bench_kv_path.py [--runs 3]

Every variant changes the flagship scenario in a folder of its own and is planned by fresh processes. The ratio to the
flagship in the same run travels between machines; on a busy machine trust the processor time.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_plan import FLAGSHIP, measure

TARGET_S = 5.0
THROUGH = {"write_policy": "write_through", "write_to": "host_memory"}
TO_STORE = {"write_policy": "write_through", "write_to": "store", "prefetch": "wait_complete"}


def variants(flagship: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Scenarios by what they add."""
    (turn,) = flagship["requests"]
    tokens = turn["cached_tokens"]
    spread = [{**turn, "cached_in": {"host_memory": tokens - tokens // 16, "store": tokens // 16}}]
    store: dict[str, Any] = {"requests": spread, "cache": TO_STORE, "store": {}}
    return {
        "loads and sends (flagship)": {},
        "and write-backs into host memory": {"cache": THROUGH},
        "and a prefetch from, writes into a store": store,
        "one page size apart, heads split": {"transfer": {"early_send": True, "decode_page_tokens": 16}},
        "one chunk of 512 tokens after the other": {"prefill": {**flagship["prefill"], "chunk_tokens": 512}, **store},
    }


def main() -> None:
    """One line a variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    pdmodel = str(Path(sys.executable).with_name("pdmodel"))
    shipped = Path(__file__).parent.parent / "scenarios" / f"{FLAGSHIP}.json"
    flagship = json.loads(shipped.read_text(encoding="utf-8"))
    flagship.pop("expected_verdict")
    print(f"{'':42} {'wall s':>7} {'cpu s':>7} {'ratio':>6} {'peak MB':>8}  verdict, path")
    first_s = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name, change in variants(flagship).items():
            path = Path(folder) / "turn.json"
            path.write_text(json.dumps({**flagship, **change, "name": "turn"}), encoding="utf-8")
            found = measure([pdmodel, "plan", str(path), "--format", "json"], runs)
            first_s = first_s or found.cpu_s
            figures = f"{found.wall_s:7.2f} {found.cpu_s:7.2f} {found.cpu_s / first_s:6.2f} {found.peak_mb:8.0f}"
            plan = {} if found.code else json.loads(found.output)
            how = f"{plan['verdict']['kind']}, {plan['solver']['path']}" if plan else f"exit code {found.code}"
            print(f"{name:42} {figures}  {how}{'  OVER' if found.wall_s > TARGET_S else ''}", flush=True)


if __name__ == "__main__":
    main()
