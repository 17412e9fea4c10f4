// The side panel: what this server holds, how busy it is, and how long it may run.

import { Bar, draw, each, make, mark, say } from "./dom.js";
import * as words from "./words.js";

const WIDTH = 240;
const HEIGHT = 36;

/** One device. */
class Card {
  constructor() {
    this.name = make("h3", {});
    this.load = new Bar("Load");
    this.memory = new Bar("GPU memory");
    this.line = draw("path", { class: "gpulab-course-line" });
    const size = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" };
    this.course = draw("svg", { class: "gpulab-course", ...size }, this.line);
    this.facts = make("p", { class: "gpulab-hint" });
    this.processes = make("ul", { class: "gpulab-processes", "aria-label": "Your processes on it" });
    const parts = [this.name, this.load.element, this.course, this.memory.element, this.facts, this.processes];
    this.element = make("section", { class: "gpulab-device" }, ...parts);
  }

  show(device) {
    say(this.name, device.name + (device.profile ? ` · ${device.profile}` : ""));
    mark(this.element, "aria-label", this.name.textContent);
    mark(this.name, "title", device.uuid);
    this.showLoad(device);
    this.showMemory(device);
    say(this.facts, words.facts(device));
    each(
      this.processes,
      device.processes ?? [],
      () => make("li"),
      (row, process) => say(row, words.processWords(process)),
    );
  }

  showLoad(device) {
    const load = device.utilisation;
    const why = device.unknown.utilisation;
    const said = load === null ? `not measured${why ? `: ${why}` : ""}` : `${Math.round(load)} %`;
    this.load.show(said, load === null ? null : load / 100);
    // A line of gaps alone would be an empty box.
    this.course.toggleAttribute("hidden", !device.recent.some((value) => value !== null));
    mark(this.line, "d", words.coursePath(device.recent, WIDTH, HEIGHT));
    mark(this.course, "aria-label", words.courseWords(device.recent));
  }

  showMemory(device) {
    const [used, total] = [device.memory_used_bytes, device.memory_total_bytes];
    const why = device.unknown.memory_used_bytes;
    if (used === null) this.memory.show(`not measured${why ? `: ${why}` : ""}`, null);
    else if (total === null) this.memory.show(`${words.gib(used)} GiB`, null);
    else this.memory.show(`${words.gib(used)} of ${words.gib(total)} GiB`, used / total);
  }
}

export class Panel {
  constructor() {
    this.title = make("h2", {});
    this.time = make("p", { class: "gpulab-time" });
    this.notices = make("ul", { class: "gpulab-notices", "aria-label": "Notices" });
    this.problem = make("p", { class: "gpulab-hint" });
    this.cards = make("div", { class: "gpulab-devices" });
    this.none = make("p", { class: "gpulab-hint" });
    this.host = new Bar("Server memory");
    this.link = make("a", { target: "_blank", rel: "noopener" }, "All GPUs of the lab");
    const parts = [this.title, this.time, this.notices, this.problem, this.cards, this.none, this.host.element];
    this.element = make("div", { class: "gpulab-panel" }, ...parts, this.link);
    this.devices = [];
    this.link.hidden = true;
    this.say("Nothing is known yet.");
  }

  /** Say why there is nothing else to show. */
  say(text) {
    say(this.title, "This server");
    say(this.problem, text);
  }

  /** Show an answer of the server. */
  show(answer) {
    const lab = answer.lab;
    say(this.title, lab?.server ? `This server: ${lab.server}` : "This server");
    say(this.time, this.timeWords(answer));
    say(this.problem, answer.problem ?? words.stale(answer));
    each(
      this.notices,
      words.notices(answer),
      () => make("li"),
      (row, notice) => say(row, notice.words),
    );
    this.showDevices(lab);
    const memory = answer.memory;
    const share = memory && memory.limit_bytes !== null ? memory.used_bytes / memory.limit_bytes : null;
    this.host.show(words.hostMemory(memory), share);
    this.link.hidden = !lab;
    if (lab) mark(this.link, "href", lab.page);
    this.element.classList.toggle("gpulab-old", words.stale(answer) !== "");
  }

  timeWords(answer) {
    const left = words.secondsLeft(answer);
    if (left === null) return answer.lab ? "No end was set." : "";
    // The browser's clock may be another than the server's; a difference holds for both.
    const end = new Date(Date.now() + left * 1000);
    const day = end.toDateString() === new Date().toDateString() ? {} : { weekday: "short" };
    const at = end.toLocaleString([], { ...day, hour: "2-digit", minute: "2-digit" });
    return left <= 0 ? `Its time was over at ${at}.` : `${words.span(left)} left, until ${at}`;
  }

  showDevices(lab) {
    const devices = lab?.devices ?? [];
    say(this.none, lab && !devices.length ? "It has no GPU." : "");
    if (devices.length !== this.devices.length) {
      this.devices = devices.map(() => new Card());
      this.cards.replaceChildren(...this.devices.map((card) => card.element));
    }
    devices.forEach((device, index) => this.devices[index].show(device));
  }
}
