"""`strideweave bench io` from a checkout; see `strideweave/bench/io`.

python benchmarks/disk_io.py --quick
"""

from __future__ import annotations

import sys

from strideweave.tools.cli import app

if __name__ == "__main__":
    app(["bench", "io", *sys.argv[1:]])
