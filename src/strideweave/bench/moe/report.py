"""The report of `bench moe` for people."""

from __future__ import annotations

from typing import Any, Final

from strideweave.bench.moe.contestants import ENTRIES
from strideweave.bench.report import Report, Table, Target, busy_note, gigabytes, mib

_COLUMNS: Final = {
    "steps/s": ("steps_per_s", "{:.1f}"),
    "/strideweave": ("ratio_to_strideweave", "{:.2f}"),
    "/ram": ("ratio_to_ram", "{:.2f}"),
    "/ideal": ("ratio_to_ideal", "{:.2f}"),
    "x floor": ("times_floor", "{:.2f}"),
    "disk MiB": ("disk_read_nbytes", "MiB"),
    "own MiB": ("own_read_nbytes", "MiB"),
    "hit rate": ("hit_rate", "{:.3f}"),
    "precision": ("precision", "{:.2f}"),
    "anon MiB": ("peak_anonymous_nbytes", "MiB"),
    "open s": ("open_s", "{:.3f}"),
    "cpu s": ("cpu_s", "{:.2f}"),
    "stall s": ("stall_s", "{:.2f}"),
    "others": ("others_cores", "{:.1f}"),
    "checksum": ("checksum", "{}"),
}
"""For each heading the key of the JSON object and how its value is written."""
_TARGETS: Final = (
    ("decode: rate / accelerate", "decode", "strideweave", "accelerate", 5.0),
    ("decode: rate / numpy memmap", "decode", "strideweave", "memmap", 2.5),
    ("decode: rate / safetensors get_tensor", "decode", "strideweave", "get_tensor", 4.0),
    ("decode: rate / all in RAM", "decode", "strideweave", "ram", 0.6),
    ("decode with a perfect schedule: rate / all in RAM", "decode", "schedule-ahead", "ram", 0.72),
    ("decode, useless guesses given up: rate / no guesses", "decode", "adaptive-0.6", "strideweave", 0.98),
    ("decode: `project` of one expert / views in place", "decode", "project-into", "strideweave", 0.85),
    ("prefill: rate / numpy memmap", "prefill", "strideweave", "memmap", 1.3),
    ("everything fits: rate / all in RAM", "fits", "resident", "ram", 0.95),
)
"""What is compared: its name, the part, whose rate is divided by whose, and the least that must come out."""


def report_of(document: dict[str, Any]) -> Report:
    """The report of what `measure` gives back."""
    parts: dict[str, dict[str, Any]] = document["parts"]
    first = next(iter(parts.values()))
    work, disk = first["work"], document["disk"]
    how = "direct I/O" if first["is_direct"] else "buffered reads of dropped pages (no direct I/O here)"
    limit = (
        f"control group of the budget and {mib(document['headroom_nbytes'])}, page cache included"
        if not document["no_limit_reason"]
        else f"not enforced ({document['no_limit_reason']}): the page cache may hold every expert"
    )
    head = [
        f"strideweave bench moe: {work['layers']} layers x {work['experts']} experts x {mib(work['expert_nbytes'])}, "
        f"{mib(work['nbytes'])} in all, seed {work['seed']}, one torch thread",
        f"disk: {disk['filesystem']} on {disk['device']}, read-ahead {disk['read_ahead_kib']} KiB, {how}",
        f"memory limit: {limit}",
    ]
    tables = [Table(_title(name, part), _rows(part["contestants"])) for name, part in parts.items()]
    told = {name for part in parts.values() for name in part["contestants"]}
    notes = [f"{name}: {ENTRIES[name].note}" for name in ENTRIES if name in told]
    notes += _costs(parts)
    busy = max(
        (line.get("others_cores", 0.0) for part in parts.values() for line in part["contestants"].values()),
        default=0.0,
    )
    verdict = "equal within every part" if document["is_equal"] else "NOT EQUAL, or a contestant failed"
    notes += [*busy_note(busy), f"checksums: {verdict}"]
    document = {key: value for key, value in document.items() if key != "is_equal"}
    return Report(head, tables, _targets(parts), document, notes, first["is_equal"] and _all_equal(parts))


def _all_equal(parts: dict[str, dict[str, Any]]) -> bool:
    return all(part["is_equal"] for part in parts.values())


def _title(name: str, part: dict[str, Any]) -> str:
    work = part["work"]
    return (
        f"{name}: {work['steps']} steps of {work['tokens']} tokens, top {work['top_k']}, budget "
        f"{mib(work['budget_nbytes'])} ({work['slots']} experts), rounds: {part['rounds']}. Floor: "
        f"{part['expert_uses']} uses, best possible hit rate {part['best_hit_rate']:.3f}, {mib(part['floor_nbytes'])} "
        f"at {gigabytes(part['nbytes_per_s'])} GB/s ({gigabytes(part['slowest_nbytes_per_s'])} to "
        f"{gigabytes(part['fastest_nbytes_per_s'])}), {part['floor_s']:.2f} s"
    )


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "-"
    return f"{value / 2**20:.0f}" if form == "MiB" else form.format(value)


def _rows(lines: dict[str, dict[str, Any]]) -> list[list[str]]:
    columns = {
        heading: (key, form)
        for heading, (key, form) in _COLUMNS.items()
        if any(line.get(key) is not None for line in lines.values())
    }
    rows = [["contestant", *columns]]
    for name, line in lines.items():
        if "checksum" in line:
            rows.append([name, *(_cell(line[key], form) for key, form in columns.values())])
        else:
            rows.append([name, line.get("failed") or line["skipped"], *[""] * (len(columns) - 1)])
    return rows


def _costs(parts: dict[str, dict[str, Any]]) -> list[str]:
    """What some wrote before their first step."""
    lines = {name: line for part in parts.values() for name, line in part["contestants"].items()}
    return [
        f"{name} wrote {mib(line['prepare_nbytes'])} in {line['prepare_s']:.1f} s before its first step, not counted "
        "above"
        for name, line in lines.items()
        if line.get("prepare_nbytes")
    ]


def _targets(parts: dict[str, dict[str, Any]]) -> list[Target]:
    targets = []
    for name, part, one, other, least in _TARGETS:
        lines = parts.get(part, {}).get("contestants", {})
        if one in lines:
            targets.append(
                Target(name, _ratio(lines, one, other), at_least=least, others_cores=_busy(lines, one, other))
            )
    if "strideweave" in (lines := parts.get("prefill", {}).get("contestants", {})):
        times = lines["strideweave"].get("times_floor")
        targets.append(
            Target(
                "prefill: floor / time",
                1 / times if times else None,
                at_least=0.9,
                others_cores=_busy(lines, "strideweave"),
            )
        )
    if "strideweave" in (lines := parts.get("decode", {}).get("contestants", {})):
        peak = lines["strideweave"].get("peak_anonymous_nbytes")
        budget = parts["decode"]["work"]["budget_nbytes"]
        targets.append(
            Target("decode: peak anonymous memory over its base / budget", peak and peak / budget, at_most=1.1)
        )
    return targets


def _ratio(lines: dict[str, dict[str, Any]], one: str, other: str) -> float | None:
    """The median over rounds of one rate over the other, both of the same round."""
    both = [lines.get(name, {}).get("run_s") for name in (one, other)]
    if both[0] is None or both[1] is None:
        return None
    ratios = sorted(theirs / ours for ours, theirs in zip(*both, strict=True))
    middle = len(ratios) // 2
    return float(ratios[middle] if len(ratios) % 2 else (ratios[middle - 1] + ratios[middle]) / 2)


def _busy(lines: dict[str, dict[str, Any]], *names: str) -> float:
    return max((lines.get(name, {}).get("others_cores", 0.0) for name in names), default=0.0)
