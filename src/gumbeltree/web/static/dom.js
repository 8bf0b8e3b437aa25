// HTML and SVG elements. Text is never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Return an HTML element; `text` sets its text, `onclick` and the like its listeners. */
export function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Return an SVG element, with attributes as for `html`. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

/** Return a paragraph in small grey type. */
export const quiet = (text) => html("p", { class: "quiet", text });

/** Return brackets as nodes, in which right-to-left words do not reorder the others. */
export const bracketed = (text) =>
  text.split(/([()\s]+)/).map((part, i) => (i % 2 || !part ? part : html("bdi", { text: part })));

export const byId = (id) => document.getElementById(id);

// common labels have the same colour for all models
const HUES = new Map([
  ["positive", "blue"],
  ["very positive", "blue"],
  ["negative", "vermillion"],
  ["very negative", "vermillion"],
  ["entailment", "green"],
  ["contradiction", "vermillion"],
  ["neutral", "grey"],
]);
const OTHERS = ["blue", "orange", "green", "purple", "sky", "vermillion", "yellow", "grey"];

/** Return the CSS class with the colour of a label. */
export function hue(label, labels) {
  const known = HUES.get(label.toLowerCase());
  return `hue-${known ?? OTHERS[labels.indexOf(label) % OTHERS.length]}`;
}
