// The door through which JupyterLab loads this extension: a container of module federation, by hand. The protocol
// is two functions: JupyterLab hands over the modules that it shares, and asks for ours. So nothing is bundled or
// compiled, and the files that a browser runs are the files in the repository.
(() => {
  const NAME = "gpulab-status";
  const WANTED = [
    "@jupyterlab/application",
    "@jupyterlab/apputils",
    "@jupyterlab/coreutils",
    "@jupyterlab/services",
    "@jupyterlab/statusbar",
    "@jupyterlab/ui-components",
    "@lumino/widgets",
  ];
  const here = document.currentScript.src;
  let scope = null;

  const number = (version) => version.split(/[.+-]/, 3).map((part) => Number.parseInt(part, 10) || 0);

  /** The greater of two versions, as numbers; a release before its alphas does not matter here. */
  function newer(one, other) {
    const [a, b] = [number(one), number(other)];
    const at = a.findIndex((part, index) => part !== b[index]);
    return at < 0 || a[at] > b[at] ? one : other;
  }

  /** A shared module: the one that JupyterLab uses already, for a second copy of it would know nothing. */
  async function shared(name) {
    const versions = scope?.[name];
    if (!versions) throw new Error(`${NAME}: JupyterLab does not share ${name}`);
    const known = Object.keys(versions);
    const used = known.filter((version) => versions[version].loaded);
    const entry = versions[(used.length ? used : known).reduce(newer)];
    const factory = entry.lib ?? (await entry.get());
    return factory();
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB[NAME] = {
    init: (given) => {
      scope = given;
    },
    get: async (module) => {
      if (module !== "./extension") throw new Error(`${NAME} has no module ${module}`);
      const modules = await Promise.all(WANTED.map(shared));
      const { plugin } = await import(new URL("extension.js", here).href);
      const exported = plugin(Object.fromEntries(WANTED.map((name, index) => [name, modules[index]])));
      return () => ({ __esModule: true, default: exported });
    },
  };
})();
