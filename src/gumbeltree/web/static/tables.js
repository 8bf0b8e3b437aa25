// Tables of probabilities and merges.

import { html, hue } from "./dom.js";
import { best, decimal, percent, shortened } from "./text.js";
import { isFixed, phraseOf, runnerUp } from "./tree.js";

// more rows would make the page slow
const ROWS = 300;

/** Return a table of probabilities with bars. */
export function bars(classes, labels, caption) {
  const [first] = best(classes);
  const hidden = html("caption", { class: "unseen", text: caption });
  const table = html("table", { class: "bars" }, hidden);
  for (const label of labels) {
    const p = classes[label];
    const fill = html("span", { class: `fill ${hue(label, labels)}` });
    fill.style.width = `${100 * p}%`;
    table.append(
      html(
        "tr", { class: label === first ? "first" : null },
        html("th", { scope: "row", text: label }),
        html("td", { class: "track", "aria-hidden": "true" }, fill),
        html("td", { class: "number", text: percent(p) }),
      ),
    );
  }
  return table;
}

/** Fill a table with rows of text. */
export function rows(table, lines, heads) {
  const head = html("tr", {}, ...heads.map((text) => html("th", { scope: "col", text })));
  const row = (line) => html("tr", {}, ...line.map((text) => html("td", { text })));
  const body = lines.slice(0, ROWS).map(row);
  table.replaceChildren(html("thead", {}, head), html("tbody", {}, ...body));
  if (lines.length > ROWS) {
    const text = `The first ${ROWS} of ${lines.length} rows; the JSON file contains all.`;
    table.append(html("caption", { text }));
  }
}

/** Fill a table of the merges, with leads and scores unless the trees are fixed. */
export function tabulate(table, trace) {
  const T = trace.words.length;
  const present = trace.words.map((_, i) => i);
  const said = (i) => shortened(phraseOf(trace, trace.nodes[i]), 60);
  const lines = trace.layers.map((layer, step) => {
    const at = layer.choice;
    const line = [
      String(step + 1),
      said(present[at]),
      said(present[at + 1]),
      layer.lead === null
        ? ""
        : decimal(layer.lead) + (layer.lead < 0 ? " (against)" : "") + (layer.near_tie ? " (near tie)" : ""),
      decimal(layer.scores[at]),
      shortened(runnerUp(trace, step), 60),
    ];
    present.splice(at, 2, T + step);
    return line;
  });
  const heads = ["Merge", "Left", "Right", "Lead", "Score", "Runner-up"];
  const shown = isFixed(trace) ? 3 : heads.length;
  rows(table, lines.map((line) => line.slice(0, shown)), heads.slice(0, shown));
}
