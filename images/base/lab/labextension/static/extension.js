// The plugin: an item in the status bar, a side panel, and each notice once.

import { make, mark, say } from "./dom.js";
import { Panel } from "./panel.js";
import { Stream } from "./stream.js";
import * as words from "./words.js";

const ID = "gpulab-status";
const TOGGLE = `${ID}:toggle`;
const LABEL = "GPU and Time of This Server";
// A card with its fan, as a GPU is drawn.
const ICON = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" width="16">
<path class="jp-icon3" fill="#616161" d="M2 5h1.5v1H21a1 1 0 0 1 1 1v9a1 1 0 0 1-1 1h-3v2h-2v-2h-2v2h-2v-2h-2v2H8v-2H3.5v3H2z
M13.5 8a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zm0 2a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3zM5 9h3v1.5H5zm0 3h3v1.5H5z"/></svg>`;

/** Which notices were shown, for as long as the server's lease lasts; kept by the browser over reloads. */
class Told {
  constructor(server) {
    this.key = `${ID}:told:${server}`;
    this.now = { lease: null, ids: [] };
  }

  /** Take those of the notices that are news. */
  news(lease, notices) {
    this.read();
    if (this.now.lease !== lease) this.now = { lease, ids: [] };
    const fresh = notices.filter((notice) => !this.now.ids.includes(notice.id));
    if (fresh.length) this.write([...this.now.ids, ...fresh.map((notice) => notice.id)]);
    return fresh;
  }

  read() {
    try {
      const kept = JSON.parse(localStorage.getItem(this.key));
      if (Array.isArray(kept?.ids)) this.now = kept;
    } catch {
      // No storage, or something else in it: this tab's own memory does.
    }
  }

  write(ids) {
    this.now.ids = ids;
    try {
      localStorage.setItem(this.key, JSON.stringify(this.now));
    } catch {
      // As above.
    }
  }
}

/** The item in the status bar: a button that shows or hides the panel. */
function itemButton(execute) {
  const sign = make("span", { class: "gpulab-sign", "aria-hidden": "true" }, "!");
  const text = make("span", { class: "jp-StatusBar-TextItem" });
  const button = make("button", { type: "button", class: "gpulab-item" }, sign, text);
  button.addEventListener("click", execute);
  return {
    button,
    show({ text: shown, label, warns }) {
      say(text, shown);
      sign.hidden = !warns;
      mark(button, "aria-label", label);
      mark(button, "title", label);
    },
  };
}

/**
 * Return the plugin.
 *
 * @param {Record<string, object>} modules what JupyterLab shares, by name
 */
export function plugin(modules) {
  const { ILayoutRestorer } = modules["@jupyterlab/application"];
  const { ICommandPalette, Notification } = modules["@jupyterlab/apputils"];
  const { PageConfig, URLExt } = modules["@jupyterlab/coreutils"];
  const { ServerConnection } = modules["@jupyterlab/services"];
  const { IStatusBar } = modules["@jupyterlab/statusbar"];
  const { LabIcon } = modules["@jupyterlab/ui-components"];
  const { Widget } = modules["@lumino/widgets"];

  function activate(app, restorer, palette, bar) {
    // Only a lab's servers know anything of themselves.
    if (!PageConfig.getOption("hubPrefix")) return;
    document.head.append(make("link", { rel: "stylesheet", href: new URL("style.css", import.meta.url).href }));
    const panel = new Panel();
    const side = new Widget({ node: panel.element });
    side.id = ID;
    side.title.icon = new LabIcon({ name: `${ID}:gpu`, svgstr: ICON });
    side.title.caption = LABEL;
    app.shell.add(side, "right", { rank: 900 });
    restorer?.add(side, ID);

    const toggle = () => (side.isVisible ? app.shell.collapseRight?.() : app.shell.activateById(ID));
    app.commands.addCommand(TOGGLE, { label: LABEL, execute: toggle });
    palette?.addItem({ command: TOGGLE, category: "GPU Lab" });
    const item = itemButton(() => app.commands.execute(TOGGLE));
    const widget = new Widget({ node: item.button });
    let shown = false;
    const registered = bar?.registerStatusItem(ID, {
      item: widget,
      align: "right",
      rank: 900,
      priority: 1,
      isActive: () => shown,
    });

    const settings = app.serviceManager.serverSettings;
    const told = new Told(settings.baseUrl);
    function take(answer) {
      const said = words.item(answer);
      shown = said.text !== "";
      item.show(said);
      widget.setHidden(!shown);
      panel.show(answer);
      for (const notice of told.news(answer.lab?.lease ?? "", words.notices(answer)))
        Notification.emit(notice.words, "warning", {
          autoClose: false,
          actions: [{ label: "Show", callback: () => app.shell.activateById(ID) }],
        });
    }
    const url = URLExt.join(settings.baseUrl, "gpulab/status/stream");
    const ask = (signal) => ServerConnection.makeRequest(url, { signal }, settings);
    new Stream(ask, take, () => [side, registered].forEach((each) => each?.dispose()));
  }

  return {
    id: `${ID}:plugin`,
    description: "GPU load, memory and time left of this server.",
    autoStart: true,
    optional: [ILayoutRestorer, ICommandPalette, IStatusBar],
    activate,
  };
}
