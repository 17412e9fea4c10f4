// Moves an invitation's secret from the address into the form and sends the form, which only asks whose it is.
(() => {
  const open = () => {
    const secret = window.location.hash.slice(1);
    if (!secret) return;
    // The secret leaves the address, and so the history and whoever looks at the screen.
    window.history.replaceState(null, "", window.location.pathname);
    const form = document.getElementById("invite-open");
    form.elements.secret.value = secret;
    form.hidden = true;
    document.getElementById("invite-opening").hidden = false;
    form.submit();
  };
  // A page that comes back from the browser's memory still holds what was filled in: start afresh.
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) window.location.replace(window.location.pathname);
  });
  // Another link opened on this page changes only what follows the #, and loads nothing.
  window.addEventListener("hashchange", open);
  open();
})();
