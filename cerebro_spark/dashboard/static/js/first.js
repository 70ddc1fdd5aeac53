// Sets the colours that were chosen last, before anything is painted. Not a module: modules run after the first paint.
(() => {
  try {
    const theme = localStorage.getItem("cerebro-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage may be forbidden, as in some frames of notebooks: then the system's colours stand.
  }
})();
