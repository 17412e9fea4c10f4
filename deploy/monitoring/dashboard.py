"""The Grafana dashboard of a lab: this description makes dashboard.json.

python deploy/monitoring/dashboard.py      writes dashboard.json beside it

Import the file in Grafana (Dashboards, New, Import) and choose the Prometheus that reads the lab. Each row of
`ROWS` is a row of panels; a panel is a title, a kind, a unit of Grafana's, and queries with their legends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("dashboard.json")
WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${source}"}
HERE = 'instance=~"$instance"'
DEVICES = f'{HERE}, device=~"$device"'
FREE = (
    f"gpulab_device_up{{{HERE}}} == 1"
    + "".join(
        f" unless on (instance, device) gpulab_device_{state}{{{HERE}}} == 1"
        for state in ("granted", "cordoned", "maintenance")
    )
)  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: Its title.
        queries: PromQL and the legend of its series.
        unit: Unit as Grafana names it.
        kind: Kind of panel as Grafana names it.
        most: Upper end of its axis, None for what the values need.
        about: What a reader must know besides.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    most: float | None = None
    about: str = ""


def count(title: str, query: str, about: str = "") -> Panel:
    """Return a panel of one number."""
    return Panel(title, ((f"count({query}) or vector(0)", ""),), kind="stat", about=about)


ROWS: tuple[tuple[str, int, tuple[Panel, ...]], ...] = (
    (
        "Now",
        4,
        (
            count("Devices", f"gpulab_device_info{{{HERE}}}", "Whole GPUs, and MIG slices"),
            count("Free", FREE, "Well, and neither held nor withheld"),
            count("Held", f"gpulab_device_granted{{{HERE}}} == 1"),
            count("Sick", f"gpulab_device_up{{{HERE}}} == 0"),
            count("Withheld", f"gpulab_device_cordoned{{{HERE}}} == 1"),
            Panel(
                "Readings are old by",
                ((f"gpulab_readings_age_seconds{{{HERE}}}", "{{instance}}"),),
                "s",
                "stat",
            ),
        ),
    ),
    (
        "Devices",
        9,
        (
            Panel(
                "Utilisation",
                ((f"gpulab_device_utilisation_ratio{{{DEVICES}}}", "{{device}}"),),
                "percentunit",
                most=1,
                about="Of a GPU: the time in which a kernel ran. Of a slice: its busy multiprocessors.",
            ),
            Panel(
                "Memory in use",
                (
                    (
                        f"gpulab_device_memory_used_bytes{{{DEVICES}}}"
                        f" / gpulab_device_memory_total_bytes{{{DEVICES}}}",
                        "{{device}}",
                    ),
                ),
                "percentunit",
                most=1,
            ),
        ),
    ),
    (
        "Who uses them",
        9,
        (
            Panel("Devices held", ((f"sum by (user) (gpulab_user_devices{{{HERE}}})", "{{user}}"),)),
            Panel(
                "Utilisation of what is held",
                ((f"gpulab_user_utilisation_ratio{{{HERE}}}", "{{user}}"),),
                "percentunit",
                most=1,
            ),
            Panel(
                "Held by",
                (
                    (
                        f"gpulab_lease_device{{{DEVICES}}}"
                        " * on (instance, lease) group_left (user, group, server, profile) gpulab_lease_info",
                        "",
                    ),
                ),
                kind="table",
            ),
            Panel("Leases by state", ((f"gpulab_leases{{{HERE}}}", "{{state}}"),)),
        ),
    ),
    (
        "Hardware",
        8,
        (
            Panel("Power", ((f"gpulab_gpu_power_watts{{{HERE}}}", "{{gpu}}"),), "watt"),
            Panel("Temperature", ((f"gpulab_gpu_temperature_celsius{{{HERE}}}", "{{gpu}}"),), "celsius"),
            Panel(
                "Clock of the multiprocessors",
                ((f'gpulab_gpu_clock_hertz{{{HERE}, domain="sm"}}', "{{gpu}}"),),
                "hertz",
            ),
            Panel(
                "Clocks held down",
                ((f"gpulab_gpu_throttled{{{HERE}}} == 1", "{{gpu}} {{reason}}"),),
                most=1,
            ),
        ),
    ),
    (
        "Traffic",
        8,
        (
            Panel(
                "PCIe",
                ((f"gpulab_gpu_pcie_bytes_per_second{{{HERE}}}", "{{gpu}} {{direction}}"),),
                "Bps",
            ),
            Panel(
                "NVLink",
                ((f"gpulab_gpu_nvlink_bytes_per_second{{{HERE}}}", "{{gpu}} {{direction}}"),),
                "Bps",
            ),
        ),
    ),
    (
        "Health",
        8,
        (
            Panel(
                "XID errors in a day",
                ((f"delta(gpulab_gpu_xid_events{{{HERE}}}[1d]) > 0", "{{gpu}} {{xid}} {{cause}}"),),
            ),
            Panel(
                "Memory errors in a day",
                ((f"increase(gpulab_gpu_ecc_errors_total{{{HERE}}}[1d]) > 0", "{{gpu}} {{kind}}"),),
            ),
            Panel(
                "Memory rows replaced",
                (
                    (f"gpulab_gpu_remapped_rows{{{HERE}}}", "{{gpu}}"),
                    (f"gpulab_gpu_remap_pending{{{HERE}}} == 1", "{{gpu}} waits for a reset"),
                    (f"gpulab_gpu_remap_failed{{{HERE}}} == 1", "{{gpu}} failed"),
                ),
            ),
            Panel(
                "Lab",
                (
                    (f"gpulab_reconcile_failures{{{HERE}}}", "steps that failed"),
                    (f"gpulab_quarantined_containers{{{HERE}}}", "containers in quarantine"),
                    (f"gpulab_ledger_up{{{HERE}}} == 0", "database away"),
                ),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, height, row in ROWS:
        place = {"h": 1, "w": WIDTH, "x": 0, "y": top}
        panels.append({"type": "row", "title": title, "gridPos": place, "collapsed": False, "panels": []})
        width = WIDTH // len(row)
        for number, panel in enumerate(row):
            place = {"h": height, "w": width, "x": number * width, "y": top + 1}
            panels.append({**_panel(panel), "gridPos": place})
        top += 1 + height
    for number, made in enumerate(panels, 1):
        made["id"] = number
    return {
        "uid": "gpulab",
        "title": "GPU Lab",
        "tags": ["gpu", "jupyterhub"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), _choice("instance"), _choice("device", f"{{{HERE}}}")]},
        "panels": panels,
    }


def _panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "timeseries":
        # A gap is what was not measured.
        defaults["custom"] = {"spanNulls": False, "fillOpacity": 5}
    shown: dict[str, Any] = {"stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"}}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": shown.get(panel.kind, {}),
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "expr": expr,
                "legendFormat": legend or "__auto",
                "instant": panel.kind != "timeseries",
                "range": panel.kind == "timeseries",
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for number, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _choice(label: str, among: str = "") -> dict[str, Any]:
    return {
        "name": label,
        "type": "query",
        "label": label.capitalize(),
        "datasource": SOURCE,
        "query": f"label_values(gpulab_device_info{among}, {label})",
        "definition": f"label_values(gpulab_device_info{among}, {label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def text() -> str:
    """Return the file's text."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
