// One tree: the words, the merges above them, and the candidates of a step below.

import { hue, svg } from "./dom.js";
import { best, decimal, percent, shortened } from "./text.js";

const MARGIN = 14;
const LANE = 46;
const TARGET = 24; // pixels: the smallest area that is easy to hit with a finger
const CLEAR = 1; // leads from here on have the strongest colour and the highest bar
const DEEP = 24; // levels; deeper trees are drawn flatter
const pen = document.createElement("canvas").getContext("2d");

/** Return a function that measures text in the page's font. */
export function ruler(size) {
  pen.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return (text) => pen.measureText(text).width;
}

const slots = (words, size, gap) =>
  words.map(ruler(size)).map((width) => Math.max(TARGET, width + gap));

/** Choose the largest font size and word spacing that fit. */
function fit(words, room) {
  const inside = room - 2 * MARGIN;
  for (const [size, gap] of [[16, 22], [15, 18], [14, 14], [13, 11], [12.5, 9]]) {
    const widths = slots(words, size, gap);
    const total = widths.reduce((a, b) => a + b, 0);
    if (total <= inside) {
      const extra = Math.min(22, (inside - total) / words.length);
      return { size, turned: false, widths: widths.map((width) => width + extra) };
    }
    // scroll if slightly too wide; rotate the words only if that saves much space
    const last = size === 12.5;
    const turned = words.length > 30 || (total > 1.2 * inside && TARGET * words.length <= inside);
    if (last && !turned) {
      return { size: 14, turned: false, widths: slots(words, 14, 14) };
    }
  }
  const slot = Math.max(TARGET, Math.min(28, inside / words.length));
  return { size: 13, turned: true, widths: words.map(() => slot) };
}

/** Compute the layout of a tree. */
export function arrange(trace, room) {
  const words = trace.words.map((word) => shortened(word, 24));
  const { size, turned, widths } = fit(words, room);
  const T = words.length;
  const used = widths.reduce((a, b) => a + b, 0) + 2 * MARGIN;
  const width = Math.max(used, room);
  let x = (width - used) / 2 + MARGIN;
  const edges = [x];
  for (const one of widths) edges.push((x += one));
  const levels = trace.nodes.map(() => 0);
  trace.nodes.forEach(({ children }, i) => {
    if (children) levels[i] = 1 + Math.max(...children.map((child) => levels[child]));
  });
  const depth = levels[levels.length - 1];
  // the tree of a usual sentence fits on the screen together with the controls above it
  const tallest = Math.max(200, Math.min(400, (room < 500 ? 0.25 : 0.33) * innerHeight));
  const rise = Math.max(depth > DEEP ? TARGET / 2 : TARGET, Math.min(38, tallest / Math.max(1, depth)));
  const base = 18 + depth * rise;
  const place = [];
  trace.nodes.forEach(({ span, children }, i) => {
    place.push(
      children
        ? { x: (place[children[0]].x + place[children[1]].x) / 2, y: base - levels[i] * rise }
        : { x: (edges[span[0]] + edges[span[1]]) / 2, y: base },
    );
  });
  const tall = turned ? Math.max(...words.map(ruler(size))) + 6 : size + 4;
  const phrase = base + 12 + tall + 6;
  const lane = phrase + (isFixed(trace) ? 14 : 24 + LANE);
  // large enough to click without overlapping its neighbours
  const near = Math.min(...widths);
  return {
    words, size, turned, width, edges, place, base, rise, tall, phrase, lane,
    height: T > 1 ? lane + 22 : phrase + 8,
    radius: Math.min(6, rise / 3, near / 4),
    bar: Math.max(3, Math.min(18, 0.6 * near)),
  };
}

/** Return the path from a child to its parent, with a rounded corner. */
function elbow(child, parent, top) {
  const across = parent.x - child.x;
  const r = Math.min(12, Math.abs(across), Math.max(0, top - parent.y));
  const side = Math.sign(across);
  return (
    `M${child.x.toFixed(1)} ${top.toFixed(1)}V${(parent.y + r).toFixed(1)}` +
    `Q${child.x.toFixed(1)} ${parent.y.toFixed(1)} ` +
    `${(child.x + side * r).toFixed(1)} ${parent.y.toFixed(1)}H${parent.x.toFixed(1)}`
  );
}

/** Return the words of a node. */
export const phraseOf = (trace, node) => trace.words.slice(...node.span).join(" ");

/** Whether the tree is fixed, so that its scores have no meaning. */
export const isFixed = (trace) => trace.trees !== "learned";

/** Return the roots of the phrases after some merges, left to right. */
export function frontier(trace, step) {
  const T = trace.words.length;
  const present = trace.words.map((_, i) => i);
  for (let i = 0; i < step; i++) present.splice(trace.order[i], 2, T + i);
  return present;
}

function spoken(trace, i) {
  const node = trace.nodes[i];
  const phrase = shortened(phraseOf(trace, node), 160);
  const parts = [];
  if (node.children) parts.push(`merge ${node.step + 1}: ${phrase}`);
  else parts.push(`word: ${phrase}`);
  const { lead, near_tie: tie } = trace.layers[node.step] ?? {};
  if (typeof lead === "number") {
    const against = lead < 0 ? ", against the scores" : "";
    parts.push(`lead ${decimal(lead)}${against}${tie ? ", a near tie" : ""}`);
  }
  if (!node.children && trace.unknown[i]) parts.push("out of vocabulary");
  if (node.classes) {
    const [label, p] = best(node.classes);
    parts.push(`${label} ${percent(p)}`);
  }
  return parts.join(", ");
}

/** Return the words of the best candidate that was not merged; empty if there is none. */
export function runnerUp(trace, step) {
  const at = trace.layers[step].runner_up;
  if (at === null) return "";
  const present = frontier(trace, step);
  return [present[at], present[at + 1]].map((i) => phraseOf(trace, trace.nodes[i])).join(" ");
}

/** Return the lead as a share of a clear one; 0 without a lead. */
const clearness = (lead) => Math.max(0, Math.min(1, (lead ?? 0) / CLEAR));

/** Return the confidence of a classifier, from 0 (chance) to 1. */
function certainty(classes) {
  const chance = 1 / Object.keys(classes).length;
  return Math.max(0, (best(classes)[1] - chance) / (1 - chance));
}

/** Return the distance of each node from the root, which is at level 1. */
function depths({ nodes }) {
  const levels = nodes.map(() => 1);
  for (let i = nodes.length - 1; i >= 0; i--) {
    for (const child of nodes[i].children ?? []) levels[child] = levels[i] + 1;
  }
  return levels;
}

/** The picture of one tree; `show` sets the step, `mark` highlights a node. */
export class Picture {
  /**
   * @param trace a result of /api/parse
   * @param labels of the model
   * @param room available width in pixels
   * @param on callbacks: over(i), out(), pick(i), drop(i), key(event)
   */
  constructor(trace, labels, room, on) {
    this.trace = trace;
    this.plan = arrange(trace, room);
    this.step = trace.order.length;
    this.nodes = [];
    this.edges = [];
    this.bars = [];
    const { width, height, turned } = this.plan;
    this.svg = svg("svg", {
      class: `tree${turned ? " turned" : ""}`,
      width, height, viewBox: `0 0 ${width} ${height}`, role: "tree",
    });
    this.svg.append(this.#edges(), this.#lane(), this.#all(labels, on));
    this.show(this.step);
  }

  #edges() {
    const { place, base, radius } = this.plan;
    const group = svg("g", { class: "edges", "aria-hidden": "true" });
    this.trace.nodes.forEach(({ children }, i) => {
      for (const child of children ?? []) {
        const leaf = place[child].y === base;
        const top = leaf ? base - 2 : place[child].y - radius;
        const tie = this.trace.layers[this.trace.nodes[i].step].near_tie;
        const edge = svg("path", {
          class: `edge${tie ? " tie" : ""}`, d: elbow(place[child], place[i], top),
        });
        this.edges.push({ edge, parent: i, child });
        group.append(edge);
      }
    });
    return group;
  }

  #all(labels, on) {
    const { place, edges, base, tall, size, turned, radius, words } = this.plan;
    const group = svg("g", { class: "nodes" });
    const levels = depths(this.trace);
    this.trace.nodes.forEach((node, i) => {
      const { x, y } = place[i];
      const lead = node.children ? this.trace.layers[node.step].lead : null;
      const plain = lead === null ? ["hue-grey", 0.4] : ["hue-green", clearness(lead)];
      const [colour, strength] = node.classes
        ? [hue(best(node.classes)[0], labels), certainty(node.classes)]
        : plain;
      const one = svg("g", {
        class: `node ${node.children ? "merge" : "word"} ${colour}`,
        tabindex: "-1", role: "treeitem", "aria-label": spoken(this.trace, i),
        "aria-level": levels[i], "aria-selected": "false",
        onpointerenter: () => on.over(i), onpointerleave: () => on.out(),
        onfocus: () => {
          this.#stopAt(i);
          on.over(i);
        },
        onblur: () => on.out(),
        onclick: () => on.pick(i),
        onkeydown: (event) => this.#key(i, event, on),
      });
      if (node.children) {
        one.append(
          svg("circle", { class: "reach", cx: x, cy: y, r: TARGET / 2 }),
          svg("circle", { class: "ring", cx: x, cy: y, r: radius + 3.5 }),
          svg("circle", { class: "back", cx: x, cy: y, r: radius }),
          svg("circle", {
            class: "dot", cx: x, cy: y, r: radius,
            "fill-opacity": (0.12 + 0.88 * strength).toFixed(3),
          }),
        );
      } else {
        const [left, right] = [edges[i], edges[i + 1]];
        const middle = base + 6 + tall / 2;
        one.append(
          svg("rect", {
            class: "ring", x: left, y: base + 2, width: right - left, height: tall + 10, rx: 5,
          }),
          turned
            ? svg("text", {
                x, y: base + 9, "font-size": size, "text-anchor": "start",
                "dominant-baseline": "central", transform: `rotate(90 ${x} ${base + 9})`,
                class: this.trace.unknown[i] ? "unknown" : null, text: words[i],
              })
            : svg("text", {
                x, y: middle, "font-size": size, "text-anchor": "middle",
                "dominant-baseline": "central",
                class: this.trace.unknown[i] ? "unknown" : null, text: words[i],
              }),
        );
        if (node.classes) {
          const wide = Math.max(3, Math.min(right - left - 6, ruler(size)(words[i])));
          one.append(
            svg("rect", {
              class: "dot", x: x - (turned ? Math.min(6, wide / 2) : wide / 2), y: base + tall + 10,
              width: turned ? Math.min(12, wide) : wide, height: 2.5, rx: 1.25,
              "fill-opacity": (0.08 + 0.92 * strength).toFixed(3),
            }),
          );
        }
      }
      this.nodes.push(one);
      group.append(one);
    });
    return group;
  }

  /** Draw one bar per gap between words, because one merge closes each gap. */
  #lane() {
    const { edges, lane, bar } = this.plan;
    const group = svg("g", { class: "lane", "aria-hidden": "true" });
    const T = this.trace.words.length;
    this.brackets = svg("g", { class: "phrases" });
    group.append(this.brackets);
    if (T < 2) return group;
    group.append(svg("path", { class: "floor", d: `M${edges[0]} ${lane}H${edges[T]}` }));
    this.trace.nodes.forEach((node) => {
      if (!node.children) return;
      const gap = this.trace.nodes[node.children[0]].span[1];
      const x = edges[gap];
      // full height, then scaled, so that changes can be animated
      const rect = svg("rect", {
        class: "bar", x: x - bar / 2, y: lane - LANE, width: bar, height: LANE,
      });
      rect.style.transformOrigin = `${x}px ${lane}px`;
      const value = svg("text", { class: "value", x, "text-anchor": "middle" });
      const rank = svg("text", { class: "rank", x, y: lane + 14, "text-anchor": "middle" });
      this.bars[gap] = { rect, value, rank, node, x };
      group.append(rect, value, rank);
    });
    return group;
  }

  /** Show the first `step` merges and the candidates of the next one. */
  show(step) {
    const { trace, plan } = this;
    const T = trace.words.length;
    const N = trace.order.length;
    this.step = Math.max(0, Math.min(step ?? N, N));
    const done = T + this.step;
    const next = this.step < N ? done : null;
    this.nodes.forEach((node, i) => {
      node.classList.toggle("later", i >= done && i !== next);
      node.classList.toggle("next", i === next);
    });
    this.#stopAt(Math.min(this.stop ?? Infinity, next ?? done - 1));
    for (const { edge, parent } of this.edges) {
      edge.classList.toggle("later", parent >= done && parent !== next);
      edge.classList.toggle("next", parent === next);
    }
    this.svg.setAttribute(
      "aria-label",
      next === null
        ? `Tree: ${T > 60 ? `${T} words` : trace.brackets}`
        : `After ${this.step} of ${N} merges`,
    );
    if (T > 1) this.#candidates(next === null ? null : trace.layers[this.step]);
    this.svg.classList.toggle("stepping", next !== null);
    this.brackets.replaceChildren();
    if (next !== null) {
      for (const i of frontier(trace, this.step)) {
        const [start, end] = trace.nodes[i].span;
        const [left, right] = [plan.edges[start] + 3, plan.edges[end] - 3];
        const [top, low] = [plan.phrase - 1, plan.phrase + 4];
        this.brackets.append(
          svg("path", {
            class: end - start > 1 ? "phrase joined" : "phrase",
            d: `M${left} ${top}Q${left} ${low} ${left + 4} ${low}` +
              `H${right - 4}Q${right} ${low} ${right} ${top}`,
          }),
        );
      }
    }
  }

  /** Make one node the tab stop of the tree. */
  #stopAt(i) {
    this.nodes[this.stop]?.setAttribute("tabindex", "-1");
    this.nodes[i].setAttribute("tabindex", "0");
    this.stop = i;
  }

  #key(i, event, on) {
    const { nodes, words } = this.trace;
    const T = words.length;
    const beside = (j) => (i < T ? j >= 0 && j < T : j >= T) ? j : -1;
    const targets = {
      ArrowUp: () => nodes.findIndex((one) => one.children?.includes(i)),
      ArrowDown: () => nodes[i].children?.[0] ?? -1,
      ArrowLeft: () => beside(i - 1),
      ArrowRight: () => beside(i + 1),
      Home: () => 0,
      End: () => nodes.length - 1,
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") on.pick(i);
    else if (event.key === "Delete") on.drop(i);
    else if (event.key in targets) this.nodes[targets[event.key]()]?.focus();
    else return on.key(event);
    event.preventDefault();
  }

  #candidates(layer) {
    const { trace, plan } = this;
    const fixed = isFixed(trace);
    const present = layer ? frontier(trace, this.step) : null;
    const at = new Map();
    if (layer) {
      const most = Math.max(...layer.probabilities);
      layer.probabilities.forEach((p, j) => {
        const second = j === layer.runner_up && !fixed;
        const role = j === layer.choice ? "choice" : second ? "second" : "";
        const behind = layer.scores[j] - layer.scores[layer.choice];
        const value = role === "choice" ? layer.lead : behind;
        at.set(trace.nodes[present[j]].span[1], { value, height: p / most, role });
      });
    }
    const labels = [];
    this.bars.forEach(({ rect, value, rank, node, x }, gap) => {
      const one = layer
        ? (at.get(gap) ?? { value: null, height: 0, role: "closed" })
        : whole(trace.layers[node.step]);
      // the last merge has no alternative, and fixed trees have no scores
      if (fixed || (layer?.scores ?? trace.layers[node.step].scores).length === 1) {
        Object.assign(one, { value: null, height: 0 });
      }
      rect.setAttribute("class", `bar ${one.role}`);
      const tall = Math.max(one.height, one.value === null ? 0 : 0.02);
      // the outline of a hollow bar must not be scaled
      const own = one.role === "behind" ? tall : 1;
      rect.setAttribute("y", (plan.lane - own * LANE).toFixed(1));
      rect.setAttribute("height", (own * LANE).toFixed(1));
      rect.style.transform = `scaleY(${(tall / own).toFixed(4)})`;
      value.setAttribute("y", (plan.lane - LANE * one.height - 5).toFixed(1));
      value.setAttribute("class", `value ${one.role}`);
      value.textContent = one.value === null ? "" : decimal(one.value);
      rank.setAttribute("class", `rank ${one.role}`);
      rank.textContent = layer
        ? { choice: fixed ? "next" : "chosen", second: "runner-up" }[one.role] ?? ""
        : String(node.step + 1);
      const order = { choice: 0, second: 1 }[one.role] ?? 2;
      if (one.role !== "closed") labels.push({ value, rank, x, order, height: one.height });
    });
    // hide labels that would overlap a more important one
    const measure = ruler(11);
    for (const name of ["value", "rank"]) {
      const taken = [];
      for (const one of [...labels].sort((a, b) => a.order - b.order || b.height - a.height)) {
        const half = measure(one[name].textContent) / 2 + 2;
        const free = taken.every(([left, right]) => one.x + half < left || one.x - half > right);
        if (free) taken.push([one.x - half, one.x + half]);
        else one[name].textContent = "";
      }
    }
  }

  /** Highlight the merges that a tree to compare with lacks. */
  differ(apart) {
    const lacking = new Set(apart);
    this.nodes.forEach((one, i) => one.classList.toggle("apart", lacking.has(i)));
    for (const { edge, parent } of this.edges) edge.classList.toggle("apart", lacking.has(parent));
  }

  /** The x coordinate of the next merge; null after the last one. */
  get chosen() {
    const layer = this.trace.layers[this.step];
    if (!layer) return null;
    const left = frontier(this.trace, this.step)[layer.choice];
    return this.plan.edges[this.trace.nodes[left].span[1]];
  }

  /** Highlight a node and its words. */
  mark(i, held) {
    const node = i === null ? null : this.trace.nodes[i];
    this.nodes.forEach((one, j) => {
      const inside = node !== null && within(this.trace.nodes[j].span, node.span);
      one.classList.toggle("inside", inside);
      one.classList.toggle("here", j === i);
      one.setAttribute("aria-selected", String(j === i && held));
    });
    for (const { edge, parent } of this.edges) {
      const inside = node !== null && within(this.trace.nodes[parent].span, node.span);
      edge.classList.toggle("inside", inside);
    }
  }

  /** Highlight a span that is highlighted in another picture. */
  echo(span) {
    this.nodes.forEach((one, j) => {
      const own = this.trace.nodes[j].span;
      const same = span !== null && own[0] === span[0] && own[1] === span[1];
      const word = span !== null && own[1] - own[0] === 1 && within(own, span);
      one.classList.toggle("echo", same || word);
    });
  }
}

/** Return the bar of a merge in the whole tree; `behind` if the runner-up has the higher score. */
const whole = ({ lead, near_tie: tie }) =>
  ({ value: lead, height: clearness(Math.abs(lead)), role: lead < 0 ? "behind" : tie ? "tie" : "" });

const within = (inner, outer) => inner[0] >= outer[0] && inner[1] <= outer[1];
