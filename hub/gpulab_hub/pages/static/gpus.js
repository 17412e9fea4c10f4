// The GPUs page: keeps its cells up to date from the service's event stream.
// An event changes text and attributes of elements that are there; focus, selection and scroll stay as they are.
// Without this script the page shows what was so when it was loaded.
(() => {
  "use strict";

  const status = document.querySelector("[data-status]");
  let board = document.getElementById("gpus");
  if (!board || !window.EventSource) return;
  const RETRY_MS = 5000;
  const RELOAD_MS = 3000;
  const SILENT_MS = 25000; // the service says something every 15 s, if only that it is there

  // ------------------------------------------------------------------ cells
  let cells; // name of a cell to its elements
  let parts; // id of a device's part to its element

  const index = () => {
    cells = new Map();
    parts = new Map();
    for (const e of document.querySelectorAll("[data-live]")) {
      const found = cells.get(e.dataset.live) || [];
      cells.set(e.dataset.live, [...found, e]);
    }
    for (const e of board.querySelectorAll("[data-part]")) parts.set(e.dataset.part, e);
  };

  const write = (element, cell) => {
    const [text, why] = Array.isArray(cell) ? cell : [cell, ""];
    const tag = element.tagName.toLowerCase();
    if (tag === "rect") return element.setAttribute("width", text);
    if (tag === "path") return element.setAttribute("d", text);
    element.textContent = text;
    if (element.classList.contains("lab-notice")) element.hidden = !text;
    if (why) {
      element.title = why;
      const hidden = document.createElement("span");
      hidden.className = "visually-hidden";
      hidden.textContent = `: ${why}`;
      element.append(hidden);
    } else element.removeAttribute("title");
    return undefined;
  };

  const show = (news) => {
    for (const [name, cell] of Object.entries(news)) {
      const [id, field] = name.split(".");
      const part = parts.get(id);
      if (part && (field === "state" || field === "mine")) part.dataset[field] = cell;
      else for (const element of cells.get(name) || []) write(element, cell);
    }
  };

  // ------------------------------------------------------------------ the page anew
  // When GPUs or slices came or went, or servers of the viewer, the parts of the page are fetched as the server renders them.
  let last = 0;
  let waiting = 0;
  const reload = () => {
    if (waiting) return;
    waiting = window.setTimeout(
      () => {
        waiting = 0;
        last = Date.now();
        renew();
      },
      Math.max(0, last + RELOAD_MS - Date.now()),
    );
  };

  const renew = async () => {
    const answer = await fetch(location.pathname, { headers: { "X-XSRFToken": board.dataset.xsrf } }).catch(() => null);
    if (!answer || !answer.ok || answer.redirected) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("gpus");
    if (fresh && fresh.dataset.layout !== board.dataset.layout) {
      const focused = board.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      board.replaceWith(fresh);
      board = fresh;
      index();
      if (focused) [...board.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
    }
    for (const old of document.querySelectorAll("[data-part-of-page]")) {
      const other = page.querySelector(`[data-part-of-page="${old.dataset.partOfPage}"]`);
      if (other && !old.contains(document.activeElement)) old.replaceWith(other);
    }
  };

  // ------------------------------------------------------------------ the stream
  let source = null;
  let heard = 0; // when anything came, by this clock
  let offset = 0; // the service's clock less this one, in seconds
  let taken = null; // when the readings were taken, by the service's clock
  let broken = "";
  let again = 0;

  const say = () => {
    if (broken) {
      status.dataset.broken = "";
      status.textContent = broken;
      return;
    }
    delete status.dataset.broken;
    const age = taken === null ? null : Math.max(0, Math.round(Date.now() / 1000 + offset - taken));
    status.textContent = age === null ? "live" : age <= 5 ? "live" : `live · readings of ${age} s ago`;
  };

  const own = () => [...parts].filter(([, e]) => e.dataset.mine === "yes" && e.dataset.state).map(([id]) => id).join(" ");

  const take = (event) => {
    heard = Date.now();
    broken = "";
    const news = JSON.parse(event.data);
    offset = news.now - heard / 1000;
    taken = news.at;
    if (news.layout !== board.dataset.layout) reload();
    else {
      const before = own();
      show(news.cells);
      show(news.holders);
      if (own() !== before) reload();
    }
    say();
  };

  const fail = (words) => {
    broken = words;
    if (source) source.close();
    source = null;
    window.clearTimeout(again);
    if (!document.hidden) again = window.setTimeout(open, RETRY_MS * (0.75 + Math.random() / 2));
    say();
  };

  const open = () => {
    if (source || document.hidden) return;
    heard = Date.now();
    source = new EventSource(board.dataset.events);
    source.addEventListener("gpus", take);
    source.addEventListener("here", () => {
      heard = Date.now();
    });
    source.onerror = () => fail("not live: the connection broke; trying again");
  };

  const pause = () => {
    if (source) source.close();
    source = null;
    window.clearTimeout(again);
  };

  index();
  open();
  // What is cut off is told whole.
  document.addEventListener("mouseover", (event) => {
    const words = event.target.closest?.(".gpu-part");
    if (words) words.title = words.textContent.replace(/\s+/g, " ").trim();
  });
  window.setInterval(() => {
    if (source && Date.now() - heard > SILENT_MS) fail("not live: nothing has come for a while; trying again");
    else if (!broken && source && taken !== null) say();
  }, 1000);
  // A browser gives a site six connections: pages that nobody sees give theirs back.
  document.addEventListener("visibilitychange", () => (document.hidden ? pause() : open()));
  window.addEventListener("pagehide", pause);
  window.addEventListener("pageshow", (event) => event.persisted && open());
})();
