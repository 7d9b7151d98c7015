"""Reading traces of 20 MB: wall and processor time and peak memory of ``pdmodel import trace`` in fresh processes.

    python benchmarks/bench_traces.py [--mb 20] [--runs 3]

The files are made here: conversations whose prompts grow by turns (Mooncake), the same with hashes of 19 digits, and
tables (Azure, BurstGPT).
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from bench_plan import measure, row

TARGET_S, TARGET_MB = 2.0, 200.0


def mooncake(luck: random.Random, number: Callable[[int], int]) -> Iterator[str]:
    """Up to 200 conversations at a time; each turn repeats all blocks before it and adds some."""
    fresh, talks = 1, [[0]]
    for k in count():
        talk = luck.randrange(200)
        if talk >= len(talks) or len(talks[talk]) > 150:
            talks.insert(talk, [0])
            talk, talks = min(talk, len(talks) - 1), talks[:200]
        added = luck.randint(1, 40)
        talks[talk] = [*talks[talk], *range(fresh, fresh + added)]
        fresh += added
        blocks = [number(block) for block in talks[talk]]
        size = 512 * len(blocks) - luck.randrange(512)
        yield json.dumps(
            {"timestamp": 300 * k, "input_length": size, "output_length": luck.randint(1, 900), "hash_ids": blocks}
        )


def azure(luck: random.Random) -> Iterator[str]:
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    for k in count():
        day, second = 10 + k // 10**7 % 10, k // 100
        time = (
            f"2024-05-{day:02d} {second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}.{k % 100:02d}0000"
        )
        yield f"{time}+00:00,{luck.randint(1, 8000)},{luck.randint(1, 900)}"


def burstgpt(luck: random.Random) -> Iterator[str]:
    yield "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    for k in count():
        prompt, answer = luck.randint(1, 4000), luck.randint(0, 900)
        yield f"{k // 4},ChatGPT,{prompt},{answer},{prompt + answer},Conversation log"


def written(path: Path, lines: Iterator[str], size: float) -> Path:
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            file.write("".join(next(lines) + "\n" for _ in range(100)))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=20.0, help="size of each file [1e6 byte]")
    parser.add_argument("--runs", type=int, default=3, help="measured runs of each")
    arguments = parser.parse_args()
    pdmodel = str(Path(sys.executable).with_name("pdmodel"))
    bare = measure([sys.executable, "-c", "pass"], arguments.runs)
    luck = random.Random(1)
    kinds = {
        "mooncake": mooncake(luck, lambda block: block),
        "mooncake-hashes": mooncake(luck, lambda block: hash((block, block)) % 10**18),
        "azure": azure(luck),
        "burstgpt": burstgpt(luck),
    }
    print(f"{'pdmodel import trace':34} {'wall s':>8} {'cpu s':>8} {'x bare':>8} {'peak MB':>8} {'target':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in kinds.items():
            path = written(Path(folder) / f"{name}.trace", lines, arguments.mb * 1e6)
            for blocks in ((), ("--cache-blocks", "20000")) if "mooncake" in name else ((),):
                command = [pdmodel, "import", "trace", str(path), *blocks, "--format", "json"]
                shown = measure(command, arguments.runs)
                found = json.loads(shown.output)
                note = f"{found['requests']} requests" + ("" if shown.peak_mb <= TARGET_MB else " OVER 200 MB")
                note += "" if found["hit_rate"] is None else f", hit rate {found['hit_rate']:.0%}"
                print(row(" ".join((name, *blocks)), shown, bare, TARGET_S, note))


if __name__ == "__main__":
    main()
