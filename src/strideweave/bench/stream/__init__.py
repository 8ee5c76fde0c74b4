"""`strideweave bench stream`: operations over operands on disk that are 4 times their budget, beside their peers.

- sum0, sum1: `reduce_sum` of a float32 matrix over its rows, and over its columns.
- matmul: a tall matrix on disk times a narrow one in memory.
- add_relu: `relu(a + b)` of two matrices into a file, which is on the disk at the end.

The matrices hold small whole numbers, so that every order of additions gives the same bits, and results are compared by
checksum. Contestants (`contestants.py`) take turns for several rounds, each in a forked process, with the pages of the
files dropped before, and, where that is permitted, in a control group that limits anonymous memory and page cache
together. Among them are the disk itself (raw direct reads and writes of the same bytes), our reader with the arithmetic
left out, and the arithmetic alone, everything in RAM: no contestant can be faster than the slower of first and last.
"""
