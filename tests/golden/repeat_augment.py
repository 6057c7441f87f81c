"""Records which samples timm's RepeatAugSampler takes: 47 samples, each three times, on 4 ranks with
batches of 3, without shuffling. Written with timm 1.0.31.

    python tests/golden/repeat_augment.py > tests/golden/repeat_augment.json
"""

import json
import sys

import timm
from timm.data.distributed_sampler import RepeatAugSampler

N, WORLD, SIZE = 47, 4, 3


def main():
    ranks = [
        list(RepeatAugSampler(range(N), WORLD, rank, shuffle=False, num_repeats=3, selected_round=0))
        for rank in range(WORLD)
    ]
    steps = [
        sorted(int(sample) for rank in ranks for sample in rank[at : at + SIZE])
        for at in range(0, len(ranks[0]), SIZE)
    ]
    json.dump({"timm": timm.__version__, "steps": steps}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
