// The chart of span probabilities: a triangle over the words with one cell per span.

import { html, svg } from "./dom.js";
import { rows } from "./tables.js";
import { percent, shortened } from "./text.js";
import { ruler } from "./tree.js";

const MARGIN = 14;
// omits thousands of nearly invisible cells in long sentences
const FAINT = 0.02;
const LONG = 100;

/**
 * Draw the probability of each span.
 *
 * @param trace of the best tree, whose spans are outlined
 * @param spans list of [start, end, probability]
 * @param room available width in pixels
 * @param over called with [start, end, probability] under the pointer, or null
 */
function chart(trace, spans, room, over) {
  const T = trace.words.length;
  const words = trace.words.map((word) => shortened(word, 24));
  const cell = Math.max(7, Math.min(T > 14 ? 32 : 42, (room - 2 * MARGIN) / T));
  const size = Math.max(8, Math.min(13, cell - 3));
  const measure = ruler(size);
  const turned = Math.max(...words.map(measure)) > cell - 6;
  const tall = turned ? Math.max(...words.map(measure)) + 8 : size + 8;
  const wide = T * cell + 2 * MARGIN;
  const width = Math.max(wide, room);
  const left = (width - wide) / 2 + MARGIN;
  const half = cell / 2;
  const base = 8 + (T + 1) * half;
  const picture = svg("svg", {
    class: "heat", width, height: base + tall, viewBox: `0 0 ${width} ${base + tall}`, role: "img",
    "aria-label": `Span probabilities of ${T} words; see the table below`,
  });
  const diamond = (start, end, inset) => {
    const [x, y, r] = [left + (start + end) * half, base - (end - start) * half, half - inset];
    return `M${x - r} ${y}L${x} ${y - r}L${x + r} ${y}L${x} ${y + r}Z`;
  };
  const edge = T * half;
  picture.append(
    svg("path", {
      class: "frame",
      d: `M${left} ${base - half}l${edge} ${-edge}l${edge} ${edge}`,
    }),
  );
  const cells = svg("g", { "aria-hidden": "true" });
  for (const [start, end, p] of spans) {
    if (T > LONG && p < FAINT) continue;
    const one = svg("path", {
      class: "cell", d: diamond(start, end, 0.6), "fill-opacity": Math.max(0.03, p).toFixed(3),
      onpointerenter: () => over([start, end, p]), onpointerleave: () => over(null),
    });
    cells.append(one);
    if (cell >= 24 && p >= 0.03) {
      const [x, y] = [left + (start + end) * half, base - (end - start) * half];
      cells.append(
        svg("text", {
          class: p > 0.7 ? "figure strong" : "figure", x, y, "font-size": Math.min(11, cell / 3),
          "text-anchor": "middle", "dominant-baseline": "central", text: Math.round(100 * p),
        }),
      );
    }
  }
  const greedy = svg("g", { "aria-hidden": "true" });
  for (const { span, children } of trace.nodes) {
    if (children) greedy.append(svg("path", { class: "greedy", d: diamond(...span, 1.2) }));
  }
  const row = svg("g", { "aria-hidden": "true" });
  words.forEach((word, i) => {
    const x = left + (i + 0.5) * cell;
    const y = base + (turned ? 2 : size / 2 + 2) - half + Math.min(half, 10);
    row.append(
      svg("text", {
        class: "label", x, y, "font-size": size, "text-anchor": turned ? "start" : "middle",
        "dominant-baseline": "central", text: word,
        transform: turned ? `rotate(90 ${x} ${y})` : null,
      }),
    );
  });
  picture.append(cells, greedy, row);
  return picture;
}

/**
 * Return the chart of the spans, and its elements on the page: the chart and a table.
 *
 * @param trace a result of /api/parse with samples
 * @param about count of samples, temperature, room in pixels, name of the table
 * @param echo called with the span under the pointer, or null
 */
export function spanChart(trace, { count, temperature, room, name }, echo) {
  const phrase = (start, end, most) => shortened(trace.words.slice(start, end).join(" "), most);
  const usual = `How often each span occurs, at temperature ${temperature}. Outlined: the model's own tree.`;
  const say = html("p", { class: "quiet say", text: usual });
  const picture = chart(trace, trace.spans, room, (cell) => {
    say.textContent = cell
      ? `“${phrase(cell[0], cell[1], 120)}” occurs in ${percent(cell[2])} of ${count} sampled trees`
      : usual;
    echo(cell ? cell.slice(0, 2) : null);
  });
  const table = html("table", {});
  const fill = () => {
    const own = new Set(trace.nodes.map(({ span }) => span.join()));
    const lines = [...trace.spans]
      .sort((a, b) => b[2] - a[2])
      .map(([start, end, p]) =>
        [phrase(start, end, 80), percent(p), own.has([start, end].join()) ? "yes" : ""]);
    rows(table, lines, ["Span", "Share", "In the model's own tree"]);
  };
  const scroll = { class: "scroll", tabindex: "0", role: "region", "aria-label": name };
  const details = html(
    "details", { ontoggle: (event) => event.target.open && fill() },
    html("summary", { text: "Spans as a table" }), html("div", scroll, table),
  );
  const figure = html("figure", {}, html("div", { class: "scroll" }, picture), say);
  return { picture, parts: [figure, details] };
}
