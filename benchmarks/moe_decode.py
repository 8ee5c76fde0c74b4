"""`strideweave bench moe --parts decode` from a checkout; see `strideweave/bench/moe`.

python benchmarks/moe_decode.py --quick
"""

from __future__ import annotations

import sys

from strideweave.tools.cli import app

if __name__ == "__main__":
    app(["bench", "moe", "--parts", "decode", *sys.argv[1:]])
