// Elements, made once and changed only where what they say has changed: a reader of the page keeps their place.

/** Make an element with attributes and children (elements or texts). */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Make an element of SVG. */
export function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Set an element's text; an empty one hides it. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
  element.hidden = text === "";
}

/** Set an attribute. */
export function mark(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Make an element's children be one for each value: as many as needed, each told its value. */
export function each(parent, values, create, update) {
  while (parent.children.length > values.length) parent.lastElementChild.remove();
  values.forEach((value, index) => {
    if (index >= parent.children.length) parent.append(create());
    update(parent.children[index], value);
  });
  parent.hidden = !values.length;
}

/** A bar with a name, what it shows in words, and how full it is. */
export class Bar {
  constructor(name) {
    this.words = make("span", { class: "gpulab-bar-words" });
    this.fill = make("div", { class: "gpulab-bar-fill" });
    this.track = make("div", { class: "gpulab-bar-track" }, this.fill);
    const head = make("div", { class: "gpulab-bar-head" }, make("span", {}, name), this.words);
    this.element = make("div", { class: "gpulab-bar" }, head, this.track);
    this.name = name;
  }

  /**
   * @param {string} words what is shown, "" hides the bar
   * @param {number | null} share 0 to 1, null if it was not measured
   */
  show(words, share) {
    this.element.hidden = words === "";
    say(this.words, words);
    this.track.hidden = share === null;
    if (share === null) return;
    const percent = Math.round(Math.min(Math.max(share, 0), 1) * 100);
    this.fill.style.width = `${percent}%`;
    const meter = { role: "meter", "aria-label": this.name, "aria-valuemin": 0, "aria-valuemax": 100 };
    for (const [key, value] of Object.entries({ ...meter, "aria-valuenow": percent, "aria-valuetext": words }))
      mark(this.track, key, value);
  }
}
