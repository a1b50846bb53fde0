"""Joins what was measured into gpu.md and gpu.json."""

import json
import sys
from pathlib import Path


def ours(folder, causal):
    """Environment and rows of one result of `regard bench`."""
    files = list(folder.glob("*.json"))
    if not files:
        sys.exit(f"{folder} holds no result of 'regard bench'")
    result = json.loads(files[0].read_text())
    rows = []
    for m in result["measurements"]:
        check = m["check"]
        error = "not finite" if check["error"] is None else f"{check['error']:.1e}"
        rows.append(
            dict(
                name=m["label"],
                format="f32",
                causal=causal,
                length=m["length"],
                forward=m["forward"]["median"],
                both=m["both"]["median"],
                check=error if check["passed"] else f"WRONG: {error} in the {check['tensor']}",
            )
        )
    return result["environment"], rows


def main():
    scratch, out = Path(sys.argv[1]), Path(sys.argv[2])
    environment, both_ways = ours(scratch / "operators", False)
    _, causal = ours(scratch / "operators--causal", True)
    _, layer = ours(scratch / "layer", False)
    peers = json.loads((scratch / "peers.json").read_text())
    for row in layer:
        row["name"] += ", whole layer"
    rows = both_ways + causal + layer + peers["rows"]
    (out / "gpu.json").write_text(json.dumps(dict(environment=environment, peers=peers["machine"], rows=rows), indent=1))
    text = ["# Attention on a device", ""]
    text += [f"Regard {environment['version']}, commit {environment['commit']}, {environment['date'][:10]}, device"]
    text[-1] += f" `{environment['device']}`, {environment['processor']}; {peers['machine']}. Medians in milliseconds."
    for title, which in (("Bidirectional", False), ("Causal", True)):
        text += ["", f"## {title}", "", "| | format | tokens | forward | forward and backward | beside the twin |", "|---|---|---|---|---|---|"]
        for row in sorted((row for row in rows if row["causal"] == which), key=lambda row: row["length"]):
            cells = [row["name"], row["format"], row["length"], f"{row['forward']:.2f}", f"{row['both']:.2f}", row.get("check", "–")]
            text.append("| " + " | ".join(map(str, cells)) + " |")
    if peers["missing"]:
        text += ["", "Not measured:", ""] + [f"- {why}" for why in peers["missing"]]
    (out / "gpu.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
