// Light or dark theme: follows the system until the user chooses.

const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = (wanted) => (wanted ? wanted === "dark" : system.matches);

function stored() {
  try {
    return localStorage.getItem("theme");
  } catch {
    // storage may be disabled
    return null;
  }
}

/** Let a button toggle the theme. */
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
      // the choice is lost when the page is closed
    }
    show(other);
  });
  system.addEventListener("change", () => show(root.dataset.theme));
  show(stored());
}
