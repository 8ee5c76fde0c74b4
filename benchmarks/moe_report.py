"""The report of `moe_decode` for people: a head, a table of the contestants, and what to know about them."""

from __future__ import annotations

from typing import Any

LEANS_ON = {
    "ram": "needs 4 times the budget; not limited, reads before the first step",
    "strideweave": "caches in its own slots; its reads pass through the page cache",
    "memmap": "caches in the page cache, and uses it in place",
    "get_tensor": "caches in the page cache",
    "positioned": "keeps nothing; the page cache does",
    "accelerate": "keeps nothing; the page cache does; needs every weight written again, and a heap that shrinks",
}
"""What each contestant remembers experts with."""
_COLUMNS = {
    "steps/s": ("steps_per_s", "{:.1f}"),
    "/strideweave": ("ratio_to_strideweave", "{:.2f}"),
    "/ram": ("ratio_to_ram", "{:.2f}"),
    "/ideal": ("ratio_to_ideal", "{:.2f}"),
    "x floor": ("times_floor", "{:.2f}"),
    "disk MiB": ("disk_read_nbytes", "MiB"),
    "own MiB": ("own_read_nbytes", "MiB"),
    "hit rate": ("hit_rate", "{:.3f}"),
    "anon MiB": ("peak_anonymous_nbytes", "MiB"),
    "open s": ("open_s", "{:.3f}"),
    "cpu s": ("cpu_s", "{:.2f}"),
    "stall s": ("stall_s", "{:.2f}"),
    "limit MiB": ("limit_nbytes", "MiB"),
    "checksum": ("checksum", "{}"),
}
"""For each heading the key of the JSON object and how its value is written."""


def show(report: dict[str, Any]) -> str:
    """The report for people."""
    work, disk = report["work"], report["disk"]
    limit = (
        f"control group of {mib(report['limit_nbytes'])}, page cache included: "
        f"the budget and {mib(report['limit_nbytes'] - work['budget_nbytes'])}"
        if report["limit_nbytes"]
        else f"not enforced ({report['no_limit_reason']}): the page cache may hold every expert"
    )
    how = "direct I/O" if disk["is_direct"] else "buffered reads of dropped pages (no direct I/O here)"
    slowest, middle, fastest = (
        f"{disk[key] / 1e9:.2f}" for key in ("slowest_nbytes_per_s", "nbytes_per_s", "fastest_nbytes_per_s")
    )
    head = [
        f"moe_decode: {work['layers']} layers x {work['experts']} experts x {mib(work['expert_nbytes'])}, "
        f"{mib(work['nbytes'])} in all",
        f"work: budget {mib(work['budget_nbytes'])} ({work['slots']} experts), {work['steps']} steps of "
        f"{work['tokens']} tokens, top {work['top_k']}, seed {work['seed']}, rounds: {report['rounds']}",
        f"disk: {disk['filesystem']} on {disk['device']}, read-ahead {disk['read_ahead_kib']} KiB, "
        f"{how} of 4 MiB: {middle} GB/s ({slowest} to {fastest})",
        f"memory limit: {limit}",
        f"floor: {report['expert_uses']} uses of an expert, best possible hit rate "
        f"{report['best_hit_rate']:.3f}, {mib(report['floor_nbytes'])} to read, {report['floor_s']:.2f} s",
    ]
    verdict = "equal" if report["is_equal"] else "NOT EQUAL, or a contestant failed"
    lines = report["contestants"]
    return "\n".join([*head, "", *_table(lines), "", *_notes(lines), f"checksums: {verdict}"])


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "-"
    return f"{value / 2**20:.0f}" if form == "MiB" else form.format(value)


def _table(lines: dict[str, dict[str, Any]]) -> list[str]:
    rows = [["contestant", *_COLUMNS]]
    for name, line in lines.items():
        if "checksum" in line:
            rows.append([name, *(_cell(line[key], form) for key, form in _COLUMNS.values())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])  # names left, numbers right
        for row in rows
    ]
    return table + [
        f"{name:{widths[0]}}  {line.get('failed') or 'skipped: ' + line['skipped']}"
        for name, line in lines.items()
        if "checksum" not in line
    ]


def _notes(lines: dict[str, dict[str, Any]]) -> list[str]:
    notes = [f"{name}: {LEANS_ON[name]}" for name in lines]
    for name, line in lines.items():
        if line.get("prepare_nbytes"):
            notes.append(
                f"{name} wrote {mib(line['prepare_nbytes'])} in {line['prepare_s']:.1f} s before its "
                "first step, not counted above"
            )
    busy = max((line.get("others_cores", 0.0) for line in lines.values()), default=0.0)
    if busy > 0.3:
        notes.append(f"others kept up to {busy:.1f} cores busy meanwhile: trust ratios only")
    return notes


def mib(nbytes: float) -> str:
    """A size in MiB, with a decimal where it has one."""
    return f"{nbytes / 2**20:.1f} MiB".replace(".0 ", " ")
