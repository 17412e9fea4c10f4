// What the status bar and the panel say, from what the server answers. Pure: no page, no clock.

const GIB = 2 ** 30;

/** Bytes as a number of GiB, exact enough to see a change and no more: 0.4, 3.2, 12, 80. */
export function gib(bytes) {
  const size = bytes / GIB;
  return size < 9.95 ? String(Math.round(size * 10) / 10) : String(Math.round(size));
}

/** A time span in words: "under 1 min", "35 min", "2 h 10", "3 d 4 h". */
export function span(seconds) {
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1) return "under 1 min";
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${String(minutes % 60).padStart(2, "0")}` : `${hours} h`;
  return hours % 24 ? `${Math.floor(hours / 24)} d ${hours % 24} h` : `${hours / 24} d`;
}

/** An age in words: "12 s", "3 min", "2 h 10". */
export function age(seconds) {
  return seconds < 60 ? `${Math.round(seconds)} s` : span(seconds);
}

/** Seconds that are left to a server, null if it was started without an end. */
export function secondsLeft(answer) {
  const ends = answer.lab?.ends_at;
  return typeof ends === "number" ? ends - answer.now : null;
}

/** The time left in words, "" for a server without an end. */
export function timeLeft(answer) {
  const left = secondsLeft(answer);
  if (left === null) return "";
  return left <= 0 ? "time is over" : `${span(left)} left`;
}

/** Why the figures of the GPUs say nothing about now, "" if they do. */
export function stale(answer) {
  const lab = answer.lab;
  if (!lab || !lab.devices.length || lab.taken_at === null) return "";
  const limit = lab.max_age_seconds;
  // The file is written every ten seconds at least.
  if (answer.written_seconds_ago > limit + 10)
    return `These figures are ${age(answer.measured_seconds_ago)} old: the lab's service is not heard from.`;
  if (answer.measured_seconds_ago > limit)
    return `These figures are ${age(answer.measured_seconds_ago)} old: the GPUs are not being read.`;
  return "";
}

const known = (values) => values.filter((value) => typeof value === "number");
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** The load of a server's GPUs in words, "" for a server without one. */
export function load(lab) {
  const devices = lab?.devices ?? [];
  if (!devices.length) return "";
  const what = devices.length === 1 ? "GPU" : `${devices.length} GPUs`;
  const loads = known(devices.map((device) => device.utilisation));
  if (!loads.length) return `${what} not measured`;
  const mean = `${what} ${Math.round(sum(loads) / loads.length)} %`;
  return loads.length === devices.length ? mean : `${mean} (${loads.length} measured)`;
}

/** The memory of a server's GPUs in words, "" if there is none or not all of it was measured. */
export function gpuMemory(lab) {
  const devices = lab?.devices ?? [];
  const used = known(devices.map((device) => device.memory_used_bytes));
  const total = known(devices.map((device) => device.memory_total_bytes));
  if (!devices.length || used.length < devices.length) return "";
  return total.length < devices.length
    ? `${gib(sum(used))} GiB`
    : `${gib(sum(used))} of ${gib(sum(total))} GiB`;
}

/** The memory of the server itself in words, "" if it cannot be read. */
export function hostMemory(memory) {
  if (!memory) return "";
  const used = gib(memory.used_bytes);
  return memory.limit_bytes === null ? `${used} GiB` : `${used} of ${gib(memory.limit_bytes)} GiB`;
}

/** What the user should know, from the start of the server and from the lab. */
export function notices(answer) {
  return [...(answer.lab?.notices ?? []), ...answer.notices];
}

/**
 * What the item in the status bar shows and is called.
 *
 * @returns {{text: string, label: string, warns: boolean}} `text` is "" if there is nothing to show.
 */
export function item(answer) {
  const lab = answer.lab;
  const gpu = load(lab);
  const old = stale(answer);
  const host = hostMemory(answer.memory);
  const parts = gpu
    ? [old ? `GPU figures ${age(answer.measured_seconds_ago)} old` : gpu, old ? "" : gpuMemory(lab)]
    : [host && `Memory ${host}`];
  const shown = [...parts, timeLeft(answer)].filter(Boolean);
  const told = notices(answer).length;
  const news = told ? ` ${told === 1 ? "One notice" : `${told} notices`}.` : "";
  return {
    text: shown.join(" · "),
    label: `This server: ${shown.join(", ")}.${news} Show or hide its panel.`,
    warns: told > 0 || Boolean(old),
  };
}

/** The facts of a device's GPU in words: "64 °C · 310 of 700 W"; a slice has none of its own. */
export function facts(device) {
  const found = [];
  if (device.temperature_celsius !== null) found.push(`${Math.round(device.temperature_celsius)} °C`);
  if (device.power_watts !== null) {
    const limit = device.power_limit_watts === null ? "" : ` of ${Math.round(device.power_limit_watts)}`;
    found.push(`${Math.round(device.power_watts)}${limit} W`);
  }
  if (!found.length) return "";
  return (device.profile ? "The whole GPU: " : "") + found.join(" · ");
}

/** A process in words: "python · 2.1 GiB". */
export function processWords(process) {
  const memory = process.memory_bytes === null ? "" : ` · ${gib(process.memory_bytes)} GiB`;
  return (process.name ?? "a process") + memory;
}

/** The course of a load in words, for who does not see the line. */
export function courseWords(course) {
  const values = known(course);
  if (!values.length) return "Load of the last 5 minutes: not measured";
  const [least, most] = [Math.min(...values), Math.max(...values)].map(Math.round);
  return `Load of the last 5 minutes: ${least === most ? `${most} %` : `${least} to ${most} %`}`;
}

/**
 * The course of a load as the `d` of an SVG path in a box; a gap in it is a gap in the line.
 *
 * @param {(number | null)[]} course percents, the oldest first
 */
export function coursePath(course, width, height) {
  const step = width / Math.max(course.length - 1, 1);
  let pen = "M";
  return course
    .map((value, index) => {
      if (value === null) {
        pen = "M";
        return "";
      }
      const x = (index * step).toFixed(1);
      const y = (height - (Math.min(Math.max(value, 0), 100) / 100) * height).toFixed(1);
      // A single value between gaps is a dot: a line of no length, with round ends.
      const dot = pen === "M" && course[index + 1] == null ? `L${x} ${y}` : "";
      const part = `${pen}${x} ${y}${dot}`;
      pen = "L";
      return part;
    })
    .join("");
}
