"""`strideweave bench moe`: steps of a mixture of experts that does not fit in memory, beside its peers.

The work (`work.Work`): 2 layers of 32 experts, two bf16 matrices of 1408 x 2048 each (11 MiB an expert, 704 MiB in
all), a budget of a quarter of them, cold start, one torch thread. Contestants (`contestants.ENTRIES`) take turns for
several rounds, each in a process of its own, with the pages of the files dropped before, and, where that is permitted,
in a control group that limits anonymous memory and page cache together to the budget and a fixed headroom.

- decode: 60 steps of 4 tokens, by routes that are drawn once for all (`work.draw_routes`); ours also with promotions
  one layer ahead, with a schedule, and by `project`.
- prefill: 2 steps that use every expert.
- fits: the steps of decode, with a budget for every expert.

What counts are ratios within the run, and the time over the I/O floor: the bytes that the best possible eviction would
have read, at the rate of direct reads measured between the contestants. Linux only: memory and bytes come from /proc.
"""
