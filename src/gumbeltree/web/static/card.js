// The card of one model: its trees, its prediction, and one node in detail.

import { ask, Refusal } from "./api.js";
import { html, hue, quiet } from "./dom.js";
import { chart, describeCell } from "./heat.js";
import { savePng, saveSvg, saveText } from "./save.js";
import { bars, rows, tabulate } from "./tables.js";
import { best, decimal, inWords, percent, shortened, visible } from "./text.js";
import { isFixed, phraseOf, Picture } from "./tree.js";

const SAMPLES = 100;
const NEIGHBOURS = 5;
const REST = 180; // milliseconds to wait before requesting neighbours
const STALE = 700; // milliseconds until the tree of an older view is removed
const MOSTLY = 0.5; // share of unknown words that makes a prediction doubtful

/** Return a result with marks for invisible characters. */
const readable = (trace) =>
  ({ ...trace, words: trace.words.map(visible), brackets: visible(trace.brackets) });

export class Card {
  /**
   * @param model its entry in /api/models
   * @param page callbacks: changed(), hovered(card, which, span), held(card, which, span),
   *   edited(which, trace, i, word), key(event), say(text)
   */
  constructor(model, page) {
    this.model = model;
    this.page = page;
    this.results = [];
    this.pictures = [];
    this.prediction = null;
    this.charts = [];
    this.held = null; // {which, i}
    this.over = null;
    this.step = null;
    this.known = new Map(); // neighbours by node
    this.#build();
  }

  get pair() {
    return this.model.sentences === 2;
  }

  /** Whether the trees are known to be fixed. */
  get fixed() {
    return this.results.some(isFixed);
  }

  #build() {
    const { name, description } = this.model;
    const id = `card-${name.replace(/\W/g, "-")}`;
    const tool = (text, label, action) =>
      html("button", {
        type: "button", class: "small", text, "aria-label": `Download ${label} of ${name}`,
        onclick: () => action().catch((error) => this.page.say(error.message)),
      });
    this.tools = html(
      "div", { class: "tools", role: "group", "aria-label": `Downloads of ${name}` },
      html("span", { class: "quiet", text: "Save" }),
      tool("SVG", "the picture as SVG", async () => saveSvg(this.#shown(), this.#file())),
      tool("PNG", "the picture as PNG", async () => savePng(this.#shown(), this.#file())),
      tool("Brackets", "the trees as brackets", async () =>
        saveText(this.#brackets(), `${this.#file()}.txt`, "text/plain")),
      tool("JSON", "everything as JSON", async () =>
        saveText(this.#json(), `${this.#file()}.json`, "application/json")),
    );
    this.legend = html("p", { class: "legend" });
    this.verdict = html("div", { class: "verdict" });
    this.note = html("p", { class: "note", hidden: true });
    this.trees = html("div", { class: "trees" });
    this.looked = html("section", { class: "node-panel", "aria-label": `Node of ${name}` });
    this.heat = html("section", {
      class: "heat-panel", hidden: true, "aria-label": `Span probabilities of ${name}`,
    });
    this.table = html("div", {
      class: "scroll", tabindex: "0", role: "region", "aria-label": `Merges of ${name}`,
    });
    this.details = html(
      "details", { ontoggle: () => this.#tables() },
      html("summary", { text: "Merges as a table" }), this.table,
    );
    this.content = html(
      "div", { class: "content" },
      this.trees, html("div", { class: "below" }, this.legend, this.tools),
      this.looked, this.heat, this.details,
    );
    this.root = html(
      "article", { class: "card bare", "aria-labelledby": id },
      html(
        "header", {},
        html("div", {}, html("h2", { id, text: name }), quiet(description ?? "")),
        this.verdict,
      ),
      this.note, this.content,
    );
  }

  /** Fill the legend. */
  #explain() {
    const { labels } = this.model;
    const sure = this.fixed ? [] : [["hue-green", "fuller: more probable merge"]];
    const colours = this.pair ? sure : labels.map((label) => [hue(label, labels), label]);
    const marks = this.fixed ? [] : [["mark choice", "chosen"], ["mark second", "runner-up"]];
    this.legend.replaceChildren(
      ...[...colours, ...marks].map(([kind, text]) => html("span", { class: `key ${kind}`, text })),
    );
  }

  #file() {
    const start = (this.results[0]?.words ?? []).slice(0, 4).join("-");
    const safe = start.replace(/[^\p{L}\p{N}-]+/gu, "").slice(0, 40);
    return `${this.model.name.replace(/[^\w.-]+/g, "-")}-${safe || "tree"}`;
  }

  #brackets() {
    return this.raw.map((one) => `${one.brackets}\n`).join("");
  }

  #json() {
    const { model, raw: results, prediction } = this;
    return `${JSON.stringify({ model: model.name, results, prediction }, null, 1)}\n`;
  }

  #shown() {
    return [...this.pictures.map((one) => one.svg), ...this.charts];
  }

  /** Request everything that a view needs; a newer call cancels it. */
  async load(view, texts) {
    this.wanted?.abort();
    const wanted = (this.wanted = new AbortController());
    const { signal } = wanted;
    const own = this.pair ? texts.filter((text) => text) : texts.slice(0, 1);
    const options = { model: this.model.name, texts: own, temperature: view.temperature };
    const seed = view.sampling ? view.seed : null;
    this.root.classList.add("waiting");
    clearTimeout(this.stale);
    this.stale = setTimeout(() => {
      // other cards keep their places
      this.root.style.minHeight = `${this.root.offsetHeight}px`;
      this.#clear("Waiting for the server…");
    }, STALE);
    try {
      const parse = ask("api/parse", { ...options, seed, samples: 0 }, signal);
      const predict = this.pair && own.length === 2
        ? ask("api/predict", { model: this.model.name, texts: [own[0]], second: [own[1]] }, signal)
        : null;
      const [parsed, predicted] = await Promise.all([parse, predict]);
      if (signal.aborted) return;
      clearTimeout(this.stale);
      this.raw = parsed.results;
      this.results = parsed.results.map(readable);
      this.prediction = predicted?.results[0] ?? null;
      this.#settle(view);
      this.root.classList.remove("waiting");
      // the charts outline the best trees, even if the trees above are sampled
      const heated = view.heat && !this.fixed
        ? await ask("api/parse", { ...options, seed: null, samples: SAMPLES }, signal)
        : null;
      if (signal.aborted) return;
      this.heated = heated?.results.map(readable) ?? [];
      this.#chart(view);
    } catch (error) {
      if (signal.aborted) return;
      this.root.classList.remove("waiting");
      this.refuse(error instanceof Refusal ? error.message : String(error));
    }
  }

  /** Show a message instead of a tree. */
  refuse(message) {
    this.wanted?.abort();
    this.#clear(message);
    this.root.classList.remove("waiting");
  }

  #clear(message) {
    clearTimeout(this.stale);
    this.results = [];
    this.pictures = [];
    this.prediction = null;
    this.heated = [];
    this.charts = [];
    this.verdict.replaceChildren(html("p", { class: "hint", text: visible(message) }));
    this.note.hidden = true;
    for (const part of [this.trees, this.looked, this.heat]) part.replaceChildren();
    this.root.classList.add("bare");
    this.page.changed();
  }

  #settle(view) {
    this.root.classList.remove("bare");
    this.root.style.minHeight = "";
    this.over = null;
    this.held = null;
    const { node } = view;
    if (node?.model === this.model.name && this.results[node.which]) {
      const i = this.#find(node.which, node.span);
      if (i >= 0) this.held = { which: node.which, i };
    }
    this.#judge();
    this.#explain();
    this.draw();
    this.#tables();
    this.page.changed();
  }

  /** Name of the trees that are not sampled. */
  get #usual() {
    return this.fixed ? "default" : "best";
  }

  #find(which, span) {
    const same = ({ span: own }) => own[0] === span[0] && own[1] === span[1];
    return this.results[which].nodes.findIndex(same);
  }

  /** The prediction, whatever the head; null for a pair without a second sentence. */
  get #answer() {
    return this.pair ? this.prediction : this.results[0].answer;
  }

  /** The probabilities of the classes; null if the model does not classify. */
  get #classes() {
    if (!this.model.labels.length) return null;
    return this.pair ? this.prediction?.probabilities : this.results[0].classes;
  }

  #judge() {
    const { labels, name } = this.model;
    const classes = this.#classes;
    if (classes) {
      const [label] = best(classes);
      this.verdict.replaceChildren(
        html("p", { class: `answer ${hue(label, labels)}`, text: label }),
        bars(classes, labels, `Prediction of ${name}`),
      );
      if (this.pair && this.results[0].sampled) {
        this.verdict.append(quiet(`based on the ${this.#usual} trees, not the sampled trees`));
      }
    } else if (this.#answer) {
      this.verdict.replaceChildren(html("p", { class: "answer", text: inWords(this.#answer) }));
    } else if (this.pair) {
      const text = labels.length
        ? `Add a second sentence to predict ${labels.join(", ")}.`
        : "Add a second sentence to see a prediction.";
      this.verdict.replaceChildren(html("p", { class: "hint", text }));
    } else {
      this.verdict.replaceChildren();
    }
    const notes = [];
    if (this.fixed) {
      const { trees } = this.results[0];
      notes.push(`This model's trees are fixed (${trees}) and do not depend on scores.`);
    }
    if (this.results.some((one) => one.cut)) {
      notes.push(`Truncated to the first ${this.model.max_words} words.`);
    }
    const missing = ({ words, unknown }) => words.filter((_, i) => unknown[i]);
    const strange = this.results.flatMap(missing);
    const total = this.results.flatMap(({ words }) => words).length;
    if (strange.length >= MOSTLY * total) {
      const which = strange.length === total ? "None" : `Only ${total - strange.length}`;
      const text = `${which} of the ${total} words are in the vocabulary of this model, so its ` +
        "tree and its prediction mean little.";
      this.verdict.prepend(html("p", { class: "warning", text }));
    }
    if (strange.length) {
      notes.push(`Out of vocabulary: ${shortened([...new Set(strange)].join(", "), 120)}.`);
    }
    this.note.textContent = notes.join(" ");
    this.note.hidden = notes.length === 0;
  }

  /** Draw the trees at the current width. */
  draw() {
    if (!this.results.length) return;
    const room = Math.max(240, this.trees.clientWidth - 2);
    this.room = room;
    const kept = [...this.trees.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    this.pictures = this.results.map(
      (trace, which) =>
        new Picture(trace, this.model.labels, room, {
          over: (i) => this.#hover({ which, i }),
          out: () => this.#hover(null),
          pick: (i) => this.#hold(which, i),
          drop: (i) => this.page.edited(which, trace, i, ""),
          key: this.page.key,
        }),
    );
    const captions = this.results.length > 1 ? ["First sentence", "Second sentence"] : [];
    this.trees.replaceChildren(
      ...this.pictures.map((picture, which) =>
        html(
          "figure", {},
          captions.length ? html("figcaption", { class: "quiet", text: captions[which] }) : null,
          html("div", { class: "scroll" }, picture.svg),
        ),
      ),
    );
    this.trees.querySelectorAll(".scroll").forEach((one, i) => (one.scrollLeft = kept[i] ?? 0));
    this.show(this.step);
    this.#look();
  }

  /** Redraw if the width has changed. */
  resized(view) {
    if (this.results.length && Math.abs(this.trees.clientWidth - 2 - this.room) > 1) {
      this.draw();
      this.#chart(view);
    }
  }

  /** Distance from the top of the card to the words of the first tree, without `lower`. */
  get base() {
    if (!this.pictures.length) return 0;
    const { svg, plan } = this.pictures[0];
    const lowered = parseFloat(svg.parentElement.style.marginTop) || 0;
    const top = svg.getBoundingClientRect().top - this.root.getBoundingClientRect().top;
    return top - lowered + plan.base;
  }

  /** Add space above the first tree. */
  lower(pixels) {
    this.pictures[0]?.svg.parentElement.style.setProperty("margin-top", `${pixels}px`);
  }

  get merges() {
    return Math.max(0, ...this.results.map((one) => one.order.length));
  }

  /** Show the first `step` merges; null: all. */
  show(step) {
    this.step = step;
    const focused = document.activeElement;
    for (const picture of this.pictures) {
      picture.show(step);
      // keep the next merge visible in a box that scrolls
      const box = picture.svg.parentElement;
      const middle = (box?.clientWidth ?? 0) / 2;
      const { chosen } = picture;
      if (chosen !== null && box && Math.abs(chosen - box.scrollLeft - middle) > middle - 30) {
        box.scrollLeft = chosen - middle;
      }
      // a hidden node cannot keep the focus
      if (focused?.classList.contains("later") && picture.svg.contains(focused)) {
        picture.nodes[picture.stop].focus();
      }
    }
  }

  #hover(node) {
    this.over = node;
    this.#look();
    const span = node && this.results[node.which].nodes[node.i].span;
    this.page.hovered(this, node?.which ?? 0, span);
  }

  #hold(which, i) {
    const same = this.held?.which === which && this.held.i === i;
    this.held = same ? null : { which, i };
    this.#look();
    this.page.held(this, which, same ? null : this.results[which].nodes[i].span);
  }

  release() {
    this.held = null;
    this.#look();
  }

  /** Highlight the span that another card highlights. */
  echo(which, span, words) {
    this.pictures.forEach((picture, i) => {
      const alike = words !== null && picture.trace.words.join(" ") === words;
      picture.echo(i === which && alike ? span : null);
    });
  }

  /** Show the node under the pointer, the held node, or the root. */
  #look() {
    clearTimeout(this.resting);
    if (!this.results.length) return;
    const at = this.over ?? this.held ?? { which: 0, i: this.results[0].nodes.length - 1 };
    const pointed = this.over ?? this.held;
    this.pictures.forEach((picture, which) => {
      const here = pointed?.which === which ? pointed.i : null;
      picture.mark(here, this.held?.which === which && this.held.i === here);
    });
    const trace = this.results[at.which];
    const node = trace.nodes[at.i];
    const facts = html("dl", { class: "facts" });
    const fact = (name, text) => facts.append(html("dt", { text: name }), html("dd", { text }));
    if (node.children) {
      fact("merge", `${node.step + 1} of ${trace.order.length}`);
      if (isFixed(trace)) fact("tree", `fixed (${trace.trees})`);
      else {
        fact("probability", percent(node.probability));
        fact("score", decimal(node.score));
      }
    } else {
      fact("word", `${at.i + 1} of ${trace.words.length}`);
      if (trace.unknown[at.i]) fact("vocabulary", "unknown");
    }
    const whole = node.span[1] - node.span[0] === trace.words.length;
    this.near = html("div", { class: "near" });
    const parts = [
      html(
        "div", { class: "phrase-part" },
        html("h3", { text: whole ? "Whole sentence" : "Phrase" }),
        html("p", { class: "phrase", text: shortened(phraseOf(trace, node), 220) }),
        facts,
      ),
    ];
    if (node.classes) {
      parts[0].append(
        html(
          "div", { class: "classes-part" },
          html("h3", { text: "Prediction at this node" }),
          bars(node.classes, this.model.labels, "Prediction at this node"),
        ),
      );
    }
    // an index contains whole sentences only
    const indexed = this.model.index && whole;
    const title = indexed ? "Nearest sentences" : "Nearest phrases";
    parts.push(html("div", { class: "near-part" }, html("h3", { text: title }), this.near));
    this.looked.replaceChildren(...parts);
    const key = JSON.stringify([trace.text, node.span]);
    if (this.known.has(key)) this.#neighbours(this.known.get(key));
    else {
      this.near.replaceChildren(quiet("…"));
      const span = indexed ? null : node.span;
      this.resting = setTimeout(() => this.#ask(key, trace, span, this.near), REST);
    }
  }

  async #ask(key, trace, span, place) {
    this.asking?.abort();
    this.asking = new AbortController();
    const { signal } = this.asking;
    try {
      const found = await ask(
        "api/neighbours",
        { model: this.model.name, text: trace.text, span, k: NEIGHBOURS },
        signal,
      );
      if (this.known.size > 500) this.known.clear();
      this.known.set(key, found);
      if (this.near === place) this.#neighbours(found);
    } catch (error) {
      if (!signal.aborted && this.near === place) {
        // a sampled tree may have phrases that the best tree lacks
        const text = trace.sampled ? `Not a phrase of the ${this.#usual} tree.` : error.message;
        place.replaceChildren(quiet(text));
      }
    }
  }

  #neighbours({ source, neighbours }) {
    const list = html("ol", { class: "neighbours" });
    for (const { text, score } of neighbours) {
      list.append(
        html(
          "li", {},
          html("span", { text: shortened(visible(text), 110) }),
          html("span", { class: "number quiet", text: decimal(score) }),
        ),
      );
    }
    const from = source === "index" ? "from the index" : "from the example sentences";
    this.near.replaceChildren(neighbours.length ? list : quiet("None found."), quiet(from));
  }

  #chart(view) {
    this.heat.hidden = !view.heat || !this.heated?.length;
    this.charts = [];
    if (this.heat.hidden) return this.heat.replaceChildren();
    const room = Math.max(240, this.trees.clientWidth - 2);
    const parts = [html("h3", { text: `Spans in ${SAMPLES} sampled trees` })];
    const usual = `At temperature ${view.temperature}. Outlined: the best tree.`;
    this.heated.forEach((trace, which) => {
      const say = html("p", { class: "quiet say", text: usual });
      const picture = chart(trace, trace.spans, room, (cell) => {
        say.textContent = cell ? describeCell(trace, cell, SAMPLES) : usual;
        this.pictures[which]?.echo(cell ? cell.slice(0, 2) : null);
      });
      this.charts.push(picture);
      const table = html("table", {});
      const spans = [...trace.spans].sort((a, b) => b[2] - a[2]);
      const fill = () => {
        const greedy = new Set(trace.nodes.map(({ span }) => span.join()));
        const lines = spans.map(([start, end, p]) => [
          shortened(trace.words.slice(start, end).join(" "), 80),
          percent(p),
          greedy.has([start, end].join()) ? "yes" : "",
        ]);
        rows(table, lines, ["Span", "Probability", "In the best tree"]);
      };
      parts.push(
        html("figure", {}, html("div", { class: "scroll" }, picture), say),
        html(
          "details", { ontoggle: (event) => event.target.open && fill() },
          html("summary", { text: "Spans as a table" }),
          html(
            "div", { class: "scroll", tabindex: "0", role: "region",
              "aria-label": `Spans of sentence ${which + 1} of ${this.model.name}` },
            table,
          ),
        ),
      );
    });
    this.heat.replaceChildren(...parts);
  }

  #tables() {
    if (!this.details.open) return;
    this.table.replaceChildren(
      ...this.results.flatMap((trace) => {
        const table = html("table", {});
        tabulate(table, trace);
        return [table, html("p", { class: "brackets", text: trace.brackets })];
      }),
    );
  }

  /** Return the trees and the prediction for screen readers. */
  summary() {
    if (!this.results.length) return "";
    const trees = this.results.map((one) =>
      one.words.length > 60 ? `a tree over ${one.words.length} words` : one.brackets);
    const classes = this.#classes;
    const other = this.#answer ? ` ${inWords(this.#answer)}.` : "";
    const answer = classes ? ` ${best(classes)[0]}, ${percent(best(classes)[1])}.` : other;
    return `${this.model.name}: ${trees.join("; ")}.${answer}`;
  }
}
