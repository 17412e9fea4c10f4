// The page of a server that is starting: each step with its time, a refusal in its words, and Stop for this server.
(() => {
  "use strict";

  const { progress, server } = document.getElementById("lab-pending").dataset;
  const byId = (id) => document.getElementById(id);
  const bar = byId("progress-bar");
  const log = byId("progress-log");
  const opened = performance.now();

  // Seconds between the start and the opening of this page, as far as the steps tell: after a reload the hub
  // sends all earlier steps at once, and only their own `elapsed` says when they were.
  let before = 0;

  const step = (event, failed) => {
    const row = document.createElement("li");
    const time = document.createElement("time");
    const since = (performance.now() - opened) / 1000;
    const own = typeof event.elapsed === "number";
    if (own) before = Math.max(before, event.elapsed - since);
    time.textContent = `${(own ? event.elapsed : since + before).toFixed(1)} s`;
    const text = document.createElement("div");
    // html_message is the hub's and the lab's own; a spawner's plain message is text.
    if (event.html_message !== undefined) text.innerHTML = event.html_message;
    else text.textContent = event.message;
    text.classList.toggle("failed", failed);
    row.append(time, text);
    log.append(row);
    byId("progress-message").textContent = text.textContent;
  };

  const fail = () => {
    bar.classList.add("bg-danger");
    byId("lab-pending-title").textContent = "It did not start";
    byId("lab-pending-says").textContent = "";
    byId("lab-again").hidden = false;
    byId("stop-server-btn").hidden = true;
    byId("lab-again").focus();
  };

  let events;
  const onmessage = (message) => {
    const event = JSON.parse(message.data);
    if (typeof event.progress === "number") {
      bar.style.width = `${event.progress}%`;
      bar.setAttribute("aria-valuenow", event.progress);
    }
    if (event.message || event.html_message) step(event, Boolean(event.failed));
    if (event.ready || event.failed) events.close();
    if (event.ready) window.location.reload(); // the hub then leads on to the server
    if (event.failed) fail();
  };
  const onerror = () => {
    // A lost connection is taken up again by the browser; a refused one means that there is no start to watch.
    if (events.readyState === EventSource.CLOSED) setTimeout(() => window.location.reload(), 3000);
  };
  const watch = () => {
    log.replaceChildren(); // the hub sends all steps again
    events = Object.assign(new EventSource(progress), { onmessage, onerror });
  };
  watch();

  byId("stop-server-btn").addEventListener("click", async (click) => {
    const status = byId("stop-server-status");
    click.target.disabled = true;
    status.textContent = "Stopping…";
    events.close(); // while a start is cancelled, the hub's stream for a moment calls the server ready
    try {
      const answer = await fetch(server, {
        method: "DELETE",
        headers: { "X-XSRFToken": window.jhdata.xsrf_token },
      });
      if (!answer.ok) throw new Error((await answer.json()).message);
      window.location.assign(byId("lab-again").href); // the hub forgets a named server that was stopped
    } catch (error) {
      status.textContent = `It could not be stopped: ${error.message}`;
      click.target.disabled = false;
      watch();
    }
  });

  window._jupyterhub_page_loaded = true;
})();
