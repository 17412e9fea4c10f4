// The spawn page: keeps the choice within what is offered, and what is free up to date.
// Without this script the form still posts; the server decides in either case.
(() => {
  "use strict";

  const form = document.getElementById("spawn_form");
  if (!form || !form.elements.profile) return;
  const start = document.getElementById("lab-start");
  const says = document.getElementById("lab-says");
  const POLL_MS = 2000;
  const MEMORY = "memory";
  const KEEP = `gpulab-choice:${form.dataset.server}`;

  // ------------------------------------------------------------------ the form's parts
  const groups = [...form.querySelectorAll(".lab-shapes")];
  const groupOf = (slug) => groups.find((g) => g.dataset.profile === slug);
  const group = () => groupOf(form.elements.profile.value);
  const radios = (g) => [...g.querySelectorAll('input[name="shape"]')];
  const card = (radio) => radio.closest(".lab-shape");
  const open = (radio) => ["free", "unknown"].includes(card(radio).dataset.state);
  const chosen = () => radios(group()).find((r) => r.checked);
  const find = (g, value) => radios(g).find((r) => r.value === value);
  const part = (radio, name) => card(radio).querySelector(`.lab-${name}`);

  let kept = chosen(); // the last choice that was open when it was made

  // A disabled radio cannot be reached by keyboard, so its reason could not be read: mark it instead.
  const mark = (radio) => {
    radio.disabled = false;
    if (open(radio)) radio.removeAttribute("aria-disabled");
    else radio.setAttribute("aria-disabled", "true");
  };

  const choose = (radio) => {
    for (const r of radios(group())) r.checked = r === radio;
    kept = radio || undefined;
  };

  // ------------------------------------------------------------------ words beside Start
  let aside = ""; // why the last click did not choose

  const reason = (radio) => {
    const text = part(radio, "reason").textContent.trim() || part(radio, "count").textContent;
    return text.slice(0, 1).toLowerCase() + text.slice(1).replace(/\.$/, "");
  };

  const summary = (shape) => {
    const profile = form.querySelector('input[name="profile"]:checked').closest(".lab-card");
    const words = [
      profile.querySelector(".lab-card-name").textContent,
      card(shape).dataset.label + (part(shape, "memory") ? ` of at least ${memoryInput(shape).value} GiB` : ""),
      profile.querySelector(".lab-facts").textContent,
    ];
    const runtime = form.querySelector('input[name="runtime"]:checked');
    if (runtime && runtime.value) words.push(`for ${form.querySelector(`label[for="${runtime.id}"]`).textContent}`);
    return words.join(" · ");
  };

  // What the limits say of the choice; the server has worded it.
  const cost = (radio) => {
    const runtime = form.querySelector('input[name="runtime"]:checked');
    const costs = radio && card(radio).dataset.costs ? JSON.parse(card(radio).dataset.costs) : {};
    return (runtime && costs[runtime.value]) || ["", true];
  };

  const explainCost = (radio) => {
    const line = form.querySelector(".lab-cost");
    const [words, allowed] = cost(radio);
    line.classList.toggle("lab-warn", !allowed);
    line.hidden = !words;
    if (line.textContent !== words) line.textContent = words;
  };

  const explain = () => {
    const now = chosen();
    explainCost(now);
    const free = radios(group()).filter((r) => open(r) && r.value !== MEMORY).map((r) => card(r).dataset.label);
    const instead = free.length ? ` Free now: ${free.join(", ")}.` : "";
    let text = aside;
    if (!text && !now) text = `Nothing is chosen, for nothing of this environment can be had.`;
    else if (!text && !open(now)) {
      text = `${card(now).dataset.label} cannot be had any more: ${reason(now)}. Start would be refused.${instead}`;
    }
    if (!text && !cost(now)[1]) text = "Your limits do not allow it for that long. Start would be refused.";
    if (!text && tooMuch(now)) {
      text = `The largest that is free has ${card(now).dataset.largest} GiB. Start would be refused.`;
    }
    says.classList.toggle("lab-warn", Boolean(text));
    if (!text) {
      text = summary(now);
    }
    if (says.textContent !== text) says.textContent = text;
  };

  const tooMuch = (radio) =>
    part(radio, "memory") && Number(memoryInput(radio).value) > Number(card(radio).dataset.largest || Infinity);
  const memoryInput = (radio) => card(radio).querySelector('input[type="number"]');

  // ------------------------------------------------------------------ choosing
  const changeProfile = () => {
    const wanted = kept && kept.value;
    for (const g of groups) {
      g.hidden = g !== group();
      g.disabled = g.hidden; // a hidden group's fields are not sent
    }
    const same = wanted && find(group(), wanted);
    const preferred = find(group(), group().dataset.preferred);
    choose([same, preferred, ...radios(group())].find((r) => r && open(r)));
    aside = "";
    explain();
  };

  const changeShape = (radio) => {
    if (open(radio)) {
      aside = "";
      kept = radio;
    } else {
      // Focus stays, so that arrows go on from here and its description is read; the choice goes back.
      choose(kept);
      aside = `${card(radio).dataset.label} cannot be chosen: ${reason(radio)}.`;
    }
    for (const input of form.querySelectorAll('.lab-shape input[type="number"]')) {
      input.required = Boolean(kept && card(kept).contains(input));
    }
    explain();
  };

  form.addEventListener("change", (event) => {
    if (event.target.name === "profile") changeProfile();
    if (event.target.name === "shape") changeShape(event.target);
    if (event.target.name === "runtime") explain();
  });
  form.addEventListener("input", (event) => {
    if (event.target.type !== "number") return;
    const radio = card(event.target).querySelector('input[type="radio"]');
    if (!radio.checked && open(radio)) choose(radio);
    changeShape(radio);
  });

  // ------------------------------------------------------------------ what is free
  let seen = null; // {age, at}: age of the snapshot when it came, and when that was
  let trouble = "";
  let timer = 0;

  const showCard = (radio, now) => {
    card(radio).dataset.state = now.state;
    for (const name of ["count", "detail", "reason"]) {
      if (part(radio, name).textContent !== now[name]) part(radio, name).textContent = now[name];
    }
    const ticks = Array.from({ length: now.marks }, (_, mark) => {
      const tick = document.createElement("i");
      tick.classList.toggle("free", mark < now.free);
      return tick;
    });
    part(radio, "ticks").replaceChildren(...ticks);
    if (Object.keys(now.costs).length) card(radio).dataset.costs = JSON.stringify(now.costs);
    else delete card(radio).dataset.costs;
    if (now.largest_free_gib) card(radio).dataset.largest = now.largest_free_gib;
    if (now.largest_gib) memoryInput(radio).max = now.largest_gib;
    mark(radio);
  };

  const GONE = { state: "absent", count: "not here", detail: "", reason: "it is no longer there", marks: 0, costs: {} };

  const show = (lab) => {
    let changed = false;
    for (const g of groups) {
      const now = lab.profiles[g.dataset.profile];
      if (!now) continue;
      for (const radio of radios(g)) showCard(radio, now.shapes[radio.value] || GONE);
      changed = changed || Object.keys(now.shapes).some((value) => !find(g, value));
      const notice = g.querySelector(".lab-notice");
      notice.textContent = now.notice;
      notice.hidden = !now.notice;
    }
    const left = form.querySelector(".lab-left");
    left.textContent = lab.left.join(" · ");
    left.hidden = !lab.left.length;
    seen = { age: lab.age, at: Date.now() };
    trouble = lab.problem || (changed ? "the GPUs changed: reload the page to see all of them" : "");
    explain();
  };

  const age = () => Math.round((seen.age || 0) + (Date.now() - seen.at) / 1000);
  const ago = (seconds) => (seconds < 90 ? `${seconds} s ago` : `${Math.round(seconds / 60)} min ago`);

  const showLive = () => {
    let text = trouble;
    if (seen && seen.age !== null && !trouble) text = `live · ${ago(age())}`;
    else if (seen && seen.age !== null) text = `${trouble} · seen ${ago(age())}`;
    for (const g of groups) g.querySelector(".lab-live").textContent = text;
  };

  const poll = async () => {
    clearTimeout(timer);
    if (document.hidden) return; // it goes on when the page is looked at
    try {
      const answer = await fetch(form.dataset.live, {
        headers: { Accept: "application/json" },
        redirect: "manual",
        cache: "no-store",
        signal: AbortSignal.timeout(10000),
      });
      if (answer.type === "opaqueredirect" || answer.status === 403) {
        trouble = "not live: you are signed out, reload the page to sign in";
      } else if (!answer.ok) trouble = `not live: the hub answers ${answer.status}`;
      else show(await answer.json());
    } catch {
      trouble = "not live: the hub does not answer, trying on";
    }
    showLive();
    clearTimeout(timer);
    timer = setTimeout(poll, POLL_MS);
  };

  document.addEventListener("visibilitychange", poll);
  setInterval(() => !document.hidden && showLive(), 1000);

  // ------------------------------------------------------------------ sending
  form.addEventListener("submit", (event) => {
    if (start.getAttribute("aria-busy")) return event.preventDefault();
    start.setAttribute("aria-busy", "true");
    start.textContent = "Starting…";
    const choice = {};
    for (const [name, value] of new FormData(form)) if (name !== "_xsrf") choice[name] = value;
    sessionStorage.setItem(KEEP, JSON.stringify(choice));
  });
  window.addEventListener("pageshow", () => {
    start.removeAttribute("aria-busy"); // back from a cached page: Start works again
    start.textContent = "Start";
  });

  // After a refusal the page comes anew; what was asked for is put back, even if it is taken now.
  const restore = () => {
    const stored = sessionStorage.getItem(KEEP);
    sessionStorage.removeItem(KEEP);
    if (!stored || !document.querySelector(".spawn-error-msg")) return;
    document.querySelector(".lab-note")?.remove(); // the refusal says it better
    const choice = JSON.parse(stored);
    const pick = (name, value) => {
      const radio = [...form.querySelectorAll(`input[name="${name}"]`)].find((r) => r.value === value);
      if (radio) radio.checked = true;
    };
    pick("profile", choice.profile);
    pick("runtime", choice.runtime);
    changeProfile();
    const shape = choice.shape && find(group(), choice.shape);
    if (shape) choose(shape);
    const number = shape && memoryInput(shape);
    if (number && choice[number.name]) number.value = choice[number.name];
  };

  for (const g of groups) {
    radios(g).forEach(mark);
    g.disabled = g.hidden;
  }
  restore();
  explain();
  poll();
})();
