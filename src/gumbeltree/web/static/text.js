// Text as the page shows it: numbers, shortened phrases, and marks for invisible characters.

/** Format a probability as a percentage with the digits that matter. */
export function percent(value) {
  const hundred = 100 * value;
  if (hundred > 0 && hundred < 0.1) return "<0.1%";
  if (hundred < 100 && hundred > 99.9) return ">99.9%";
  return `${hundred < 10 || hundred > 90 ? Number(hundred.toFixed(1)) : Math.round(hundred)}%`;
}

/** Format a score with two decimals and a minus sign, which zero never has. */
export const decimal = (value) =>
  value.toFixed(2).replace(/^-0\.00$/, "0.00").replace("-", "\u2212");

/** Shorten a text to `length` characters with an ellipsis in the middle. */
export function shortened(text, length) {
  const letters = Array.from(text);
  if (letters.length <= length) return text;
  const half = Math.floor((length - 1) / 2);
  return `${letters.slice(0, length - 1 - half).join("")}…${letters.slice(-half).join("")}`;
}

// The same characters as in drawing.py. Kept are flags, joiners between two other characters, and
// Arabic and Syriac signs that are visible; the last four are letters without a shape.
const KEPT = [
  "\\u{1f3f4}[\\u{e0020}-\\u{e007e}]+\\u{e007f}",
  "(?<=[\\p{L}\\p{M}\\p{S}])[\\u200c\\u200d](?=[\\p{L}\\p{S}])",
  "[\\u0600-\\u0605\\u06dd\\u070f\\u0890\\u0891\\u08e2]",
];
const HIDDEN =
  "[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Co}\\p{Zl}\\p{Zp}\\p{Noncharacter_Code_Point}\\u115f\\u1160\\u3164\\uffa0]";
const INVISIBLE = new RegExp(`(${KEPT.join("|")})|${HIDDEN}`, "gu");
// more combining characters than any script puts on one letter
const PILE = /(\p{M}{4})\p{M}+/gu;

function picture(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? "\u2421" : `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
}

/** Show invisible characters as marks, and shorten piles of combining characters. */
export function visible(text) {
  return text
    .replace(INVISIBLE, (one, kept) => kept ?? picture(one))
    .replace(/(^|\s)(?=\p{M})/gu, "$1\u25cc")
    .replace(PILE, "$1…");
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
