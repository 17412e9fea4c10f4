// The plots of a device's page, by uPlot, from the readings of the REST API.
// A gap in what was measured is a gap in the line; the greatest value of each interval is a faint line.
// Drag across a plot to look closer, double-click for all of it. The same figures are in the table below.
(() => {
  "use strict";

  const place = document.getElementById("plots");
  const board = document.getElementById("gpus");
  if (!place || !window.uPlot) return;
  const seconds = Number(place.dataset.seconds);
  const GIB = 2 ** 30;
  const SYNC = uPlot.sync("device");

  const PLOTS = {
    utilisation: { title: "Utilisation", unit: "%", mean: "utilisation", most: "utilisation_max", range: [0, 100] },
    memory: { title: "Memory", unit: "GiB", mean: "memory_bytes", most: "memory_max_bytes", scale: GIB },
    power: { title: "Power", unit: "W", mean: "power_watts" },
    temperature: { title: "Temperature", unit: "°C", mean: "temperature_celsius", only: "most" },
  };

  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const date = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
  const times = (u, splits) => {
    const long = u.scales.x.max - u.scales.x.min > 2 * 86400;
    return splits.map((at) => (long ? date : clock).format(at * 1000));
  };
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const shown = (value, unit) => (value === null || value === undefined ? "–" : `${value < 10 ? value.toFixed(1) : Math.round(value)} ${unit}`);

  // Columns for uPlot: where an interval is missing, a null breaks the line.
  const columns = (history, plot) => {
    const rows = [[], [], []];
    const put = (at, mean, most) => [at, mean, most].forEach((value, n) => rows[n].push(value));
    const scaled = (value) => (value === null || value === undefined ? null : value / (plot.scale || 1));
    let last = null;
    for (const point of history.points) {
      if (last !== null && point.at - last > history.resolution) put(last + history.resolution, null, null);
      put(point.at, scaled(point[plot.mean]), plot.most ? scaled(point[plot.most]) : null);
      last = point.at;
    }
    return rows;
  };

  const make = (name, history) => {
    const plot = PLOTS[name];
    const quiet = color("--bs-secondary-color");
    const grid = { stroke: color("--bs-border-color"), width: 1 };
    const axis = { stroke: quiet, grid, ticks: grid, font: "12px system-ui, sans-serif" };
    const line = (label, extra) => ({ label, value: (_, value) => shown(value, plot.unit), points: { show: false }, ...extra });
    const [first, ...rest] = columns(history, plot);
    const most = plot.most ? [line("most", { stroke: quiet, width: 0.75, alpha: 0.55 })] : [];
    return new uPlot(
      {
        width: place.clientWidth >= 900 ? Math.floor((place.clientWidth - 32) / 2) : place.clientWidth,
        height: 180,
        title: `${plot.title}, ${plot.unit}`,
        cursor: { sync: { key: SYNC.key }, points: { size: 5 } },
        legend: { live: true },
        scales: {
          x: { range: (u, min, max) => (u.zoomed ? [min, max] : [history.since, history.until]) },
          y: { range: (_, __, max) => plot.range || [0, Math.max(1, (max || 1) * 1.1)] },
        },
        axes: [{ ...axis, values: times, size: 30 }, { ...axis, size: 46 }],
        series: [
          { label: "at", value: (_, at) => (at ? `${date.format(at * 1000)} ${clock.format(at * 1000)}` : "–") },
          line(plot.only || "mean", { stroke: color("--lab-orange"), width: 1.5 }),
          ...most,
        ],
        hooks: {
          setSelect: [(u) => { u.zoomed = u.select.width > 0; }],
          ready: [(u) => u.over.addEventListener("dblclick", () => { u.zoomed = false; u.setData(u.data); })],
        },
      },
      [first, ...rest.slice(0, 1 + most.length)],
      place,
    );
  };

  let plots = [];
  let history = null;
  const draw = () => {
    for (const plot of plots) plot.destroy();
    place.replaceChildren();
    plots = history ? place.dataset.plots.split(" ").map((name) => make(name, history)) : [];
  };

  const say = (words) => {
    const text = document.createElement("p");
    text.className = "lab-note";
    text.textContent = words;
    place.replaceChildren(text);
  };

  const load = async () => {
    if (document.hidden || plots.some((plot) => plot.zoomed)) return;
    const query = new URLSearchParams({ device: place.dataset.series, since: Date.now() / 1000 - seconds });
    const answer = await fetch(`${place.dataset.readings}?${query}`, { headers: { "X-XSRFToken": board.dataset.xsrf } }).catch(() => null);
    if (!answer || !answer.ok) {
      if (!history) say("The plots could not be loaded; the table below has the figures.");
      return;
    }
    const found = (await answer.json()).history;
    if (!found) return say("No history is kept yet.");
    history = found;
    draw();
  };

  load();
  window.setInterval(load, seconds <= 900 ? 10000 : 60000);
  new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-bs-theme"] });
  let waiting = 0;
  window.addEventListener("resize", () => {
    window.clearTimeout(waiting);
    waiting = window.setTimeout(draw, 200);
  });
})();
