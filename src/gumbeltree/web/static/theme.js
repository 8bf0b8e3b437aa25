// Light and dark: as the system has it, until the page is told otherwise.

const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = (wanted) => (wanted ? wanted === "dark" : system.matches);

function stored() {
  try {
    return localStorage.getItem("theme");
  } catch {
    // a browser may forbid it
    return null;
  }
}

/** Let a button switch between light and dark. */
export function follow(button) {
  const root = document.documentElement;
  const show = (wanted) => {
    if (wanted) root.dataset.theme = wanted;
    button.setAttribute("aria-pressed", String(isDark(wanted)));
  };
  button.addEventListener("click", () => {
    const other = isDark(root.dataset.theme) ? "light" : "dark";
    try {
      localStorage.setItem("theme", other);
    } catch {
      // the choice then lasts as long as the page
    }
    show(other);
  });
  system.addEventListener("change", () => show(root.dataset.theme));
  show(stored());
}
