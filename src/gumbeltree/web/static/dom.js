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

export const byId = (id) => document.getElementById(id);

/** Format a probability as a percentage with the digits that matter. */
export function percent(value) {
  const hundred = 100 * value;
  if (hundred > 0 && hundred < 0.1) return "<0.1%";
  if (hundred < 100 && hundred > 99.9) return ">99.9%";
  return `${hundred < 10 || hundred > 90 ? Number(hundred.toFixed(1)) : Math.round(hundred)}%`;
}

/** Format a score with two decimals and a minus sign. */
export const decimal = (value) => value.toFixed(2).replace("-", "\u2212");

/** Shorten a text to `length` characters with an ellipsis in the middle. */
export function shortened(text, length) {
  const letters = Array.from(text);
  if (letters.length <= length) return text;
  const half = Math.floor((length - 1) / 2);
  return `${letters.slice(0, length - 1 - half).join("")}…${letters.slice(-half).join("")}`;
}

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

/** Format a prediction that is not a class, for example "value 3.1416" or "plot 93%, music 71%". */
export function inWords(answer) {
  if (Array.isArray(answer.labels)) {
    const { labels, probabilities } = answer;
    return labels.map((label) => `${label} ${percent(probabilities[label])}`).join(", ") || "no tags";
  }
  const shown = (value) => (typeof value === "number" ? value.toFixed(4) : String(value));
  const simple = Object.entries(answer).filter(([, value]) => typeof value !== "object");
  return simple.map(([name, value]) => `${name} ${shown(value)}`).join(", ");
}

/** Return the most probable label and its probability. */
export function best(classes) {
  return Object.entries(classes).reduce((a, b) => (b[1] > a[1] ? b : a));
}
