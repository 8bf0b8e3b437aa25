// Sampled trees: does the prediction depend on the tree?

import { brief } from "./compare.js";
import { bracketed, html, quiet, svg } from "./dom.js";
import { best, decimal, percent, shortened, visible } from "./text.js";

const BINS = 20;
const [WIDE, TALL] = [240, 54];

/**
 * Return how the prediction varies over the sampled trees, with the most frequent trees.
 *
 * @param trace a result of /api/parse with samples
 * @param count number of samples
 * @param against called with the brackets of a tree to compare with; null offers no comparison
 */
export function distribution(trace, count, against) {
  const { samples } = trace;
  const parts = [html("p", { text: said(trace, count) })];
  if (samples.top) parts.push(histogram(trace, count));
  const own = percent(samples.greedy_share);
  parts.push(
    quiet(`${samples.distinct} distinct ${samples.distinct === 1 ? "tree" : "trees"}; the model's own tree has a share of ${own}.`),
    frequent(trace, count, against),
  );
  return parts;
}

function said({ samples, answer }, count) {
  const { answers } = samples;
  if (!answers) return "";
  if (answers.quantiles) {
    const levels = Object.keys(answers.quantiles).sort((a, b) => a - b);
    const [low, high] = [levels[0], levels.at(-1)];
    const [from, to] = [low, high].map((q) => decimal(answers.quantiles[q]));
    const share = percent(high - low);
    return `Mean over ${count} trees: ${decimal(answers.mean)}; ${share} lie between ${from} and ${to}.`;
  }
  const parts = Object.entries(answers)
    .filter(([, { share }]) => share > 0)
    .sort((a, b) => b[1].share - a[1].share)
    .map(([label, { share, mean }]) => `${label} for ${percent(share)} of the trees (mean ${percent(mean)})`);
  const tree = answer?.label ? `, and ${brief(answer)} for the model's own tree` : "";
  return parts.length ? `The prediction is ${parts.join(", ")}${tree}.` : "";
}

/** Draw how often the sampled trees give each probability, with a mark at the model's own tree. */
function histogram({ samples, answer }, count) {
  const { top } = samples;
  const chances = Boolean(answer?.label);
  const [low, high] = chances ? [0, 1] : [Math.min(...top), Math.max(...top)];
  const room = high - low || 1;
  const bin = (value) => Math.min(BINS - 1, Math.floor((BINS * (value - low)) / room));
  const heights = new Array(BINS).fill(0);
  for (const value of top) heights[bin(value)] += 1;
  const most = Math.max(...heights);
  const slot = WIDE / BINS;
  const own = chances ? best(answer.probabilities)[1] : answer?.value;
  const show = chances ? percent : decimal;
  const name = chances ? `Probability of ${best(answer.probabilities)[0]}` : "Value";
  const picture = svg("svg", {
    class: "histogram", width: WIDE, height: TALL + 18, viewBox: `0 0 ${WIDE} ${TALL + 18}`,
    role: "img", "aria-label": `${name} over ${count} sampled trees`,
  });
  heights.forEach((height, i) => {
    const tall = (TALL * height) / most;
    const box = { x: i * slot + 1, y: TALL - tall, width: slot - 2, height: tall };
    picture.append(svg("rect", { class: "column", ...box }));
  });
  picture.append(svg("path", { class: "floor", d: `M0 ${TALL}H${WIDE}` }));
  if (typeof own === "number") {
    const x = Math.max(1.5, Math.min(WIDE - 1.5, (WIDE * (own - low)) / room));
    picture.append(svg("path", { class: "own", d: `M${x} 0V${TALL}` }));
  }
  for (const [x, anchor, value] of [[0, "start", low], [WIDE, "end", high]]) {
    picture.append(svg("text", { class: "value", x, y: TALL + 13, "text-anchor": anchor, text: show(value) }));
  }
  const caption = `${name}; the line is the model's own tree`;
  return html("figure", {}, picture, html("figcaption", { class: "quiet", text: caption }));
}

/**
 * List the most probable trees.
 *
 * @param trace a result of /api/parse with beams
 * @param against as in `distribution`
 */
export const probable = ({ beams }, against) =>
  html("ol", { class: "ranked probable" }, ...beams.map((one) => ranked(one, one.probability, against)));

/** Return the entry of a tree in a list. */
function ranked(one, share, against) {
  const words = visible(one.brackets).replace(/\( /g, "(").replace(/ \)/g, ")");
  return html(
    "li", {},
    html("span", { class: "number", text: percent(share) }),
    html("span", { text: [brief(one.answer), one.greedy && "own tree"].filter(Boolean).join(", ") }),
    against && html("button", {
      type: "button", class: "small", text: "Compare", "aria-label": `Compare with ${words}`,
      onclick: () => against(one.brackets),
    }),
    html("span", { class: "brackets" }, ...bracketed(shortened(words, 300))),
  );
}

/** List the most frequent trees drawn more than once, and the model's own tree wherever it ranks. */
function frequent({ samples, raw, answer }, count, against) {
  const told = samples.trees.some((one) => one.answer);
  const own = { brackets: raw, answer: told ? answer : null, share: samples.greedy_share, greedy: true };
  const often = samples.trees.filter((one) => one.greedy || count * one.share > 1.5);
  const all = often.some((one) => one.greedy) ? often : [...often, own];
  const others = samples.distinct - all.filter((one) => one.share > 0).length;
  const once = samples.trees.some((one) => count * one.share < 1.5) ? ", each drawn once" : "";
  return html(
    "div", {},
    html("h3", { text: "Most frequent trees" }),
    html("ol", { class: "ranked frequent" }, ...all.map((one) => ranked(one, one.share, against))),
    others ? quiet(`${others} further distinct ${others === 1 ? "tree" : "trees"}${once}.`) : null,
  );
}
