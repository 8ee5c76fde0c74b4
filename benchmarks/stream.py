"""`strideweave bench stream` from a checkout; see `strideweave/bench/stream`.

python benchmarks/stream.py --quick
"""

from __future__ import annotations

import sys

from strideweave.tools.cli import app

if __name__ == "__main__":
    app(["bench", "stream", *sys.argv[1:]])
