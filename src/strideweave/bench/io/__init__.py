"""`strideweave bench io`: how fast tiles come from the disk and go there, beside the disk itself and beside peers.

- raw: direct reads of 64 KiB to 16 MiB by 1 and 4 threads, in random and in sequential order.
- reads: tiles of 256 KiB to 16 MiB through `promote_async`, in random order, beside raw reads of the same size and
  peers that copy the same blocks into memory that is used again.
- writes: `flush` of dirty tiles beside raw writes, both durable at the end.
- python loop: the same reads while the main thread runs Python without a pause.

All contestants of a row take turns in every round, with the pages of the file dropped before; a ratio is the median of
those of the rounds. Linux only.
"""
