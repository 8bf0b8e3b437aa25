// The card of one model: its trees, its prediction, and one node in detail.

import { ask, Refusal } from "./api.js";
import { AGAINST, brief, compare, fault, GIVEN, sharing } from "./compare.js";
import { bracketed, html, hue, quiet } from "./dom.js";
import { spanChart } from "./heat.js";
import { Panel } from "./panel.js";
import { distribution, probable } from "./sampled.js";
import { copyPng, saveFilm, savePng, saveSvg, saveText } from "./save.js";
import { bars, tabulate } from "./tables.js";
import { best, inWords, percent, shortened, visible } from "./text.js";
import { isFixed, Picture } from "./tree.js";

const SAMPLES = 100;
const BEAMS = 5;
const STALE = 700; // milliseconds until the tree of an older view is removed
const MOSTLY = 0.5; // share of unknown words that makes a prediction doubtful

// what the bars mean depends on the step
const LEADS =
  "Bars of the whole tree are leads: the score of a merge minus that of the runner-up, which is the log-odds " +
  "between the two.";
const CANDIDATES =
  "Bars of a step are its candidates, as high as their odds against the best one. The number of the chosen one is " +
  "its lead, the score minus that of the runner-up. The others show how far their scores are from the chosen one.";
const TIES =
  "In a near tie (dotted), a merge and its runner-up are less than 0.2 apart: of 100 draws between these two, " +
  "either would win at least 45.";

/** Describe a model: its data, and its own result on it. */
function about(description, measured) {
  if (!measured) return description ?? "";
  const { metric, value, split, examples } = measured;
  const shown = metric === "accuracy" ? `${(100 * value).toFixed(1)}%` : value.toFixed(3);
  const where = examples ? `${examples} ${split} examples` : `the ${split} split`;
  return `${description}. Measured ${metric}: ${shown} on ${where}`;
}

/** Return a result with marks for invisible characters. */
const readable = (trace) =>
  ({
    ...trace, words: trace.words.map(visible), brackets: visible(trace.brackets), raw: trace.brackets,
  });

export class Card {
  /**
   * @param model its entry in /api/models
   * @param page callbacks: changed(), hovered(card, which, span), held(card, which, span),
   *   edited(which, trace, i, word): whether the text changed, against(brackets), second(), key(event), say(text)
   */
  constructor(model, page) {
    this.model = model;
    this.page = page;
    this.results = [];
    this.pictures = [];
    this.others = []; // pictures of the trees to compare with
    this.heated = []; // results with samples
    this.prediction = null;
    this.charts = [];
    this.held = null; // {which, i}
    this.over = null;
    this.step = null;
    this.focus = null; // the node that gets the focus once the trees are drawn: {which, i, word}
    this.other = null; // the trees to compare with: {name, results, answer}
    this.panel = new Panel(model, {
      edited: (which, i, word) => this.#edit(which, i, word),
      against: page.against,
    });
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
    const { name, description, measured } = this.model;
    const id = `card-${name.replace(/\W/g, "-")}`;
    const tool = (text, label, action) =>
      html("button", {
        type: "button", class: "small", text, "aria-label": `${label} of ${name}`,
        onclick: () => action().catch((error) => this.page.say(error.message)),
      });
    this.tools = html(
      "div", { class: "tools", role: "group", "aria-label": `Downloads of ${name}` },
      html("span", { class: "quiet", text: "Picture" }),
      tool("Copy", "Copy the picture", async () => {
        await copyPng(this.#shown());
        this.page.say("Picture copied");
      }),
      tool("PNG", "Download the picture as PNG", async () => savePng(this.#shown(), this.#file())),
      tool("SVG", "Download the picture as SVG", async () => saveSvg(this.#shown(), this.#file())),
      tool("Film", "Download the film", async () => {
        const trees = [...this.pictures];
        const shown = { ...this.#shown(), pictures: trees.map((one) => one.svg) };
        saveFilm(trees, shown, this.#file());
      }),
      tool("Brackets", "Download the trees as brackets", async () =>
        saveText(this.#brackets(), `${this.#file()}.txt`, "text/plain")),
      tool("JSON", "Download everything as JSON", async () =>
        saveText(this.#json(), `${this.#file()}.json`, "application/json")),
    );
    this.legend = html("div", { class: "legend" });
    this.verdict = html("div", { class: "verdict" });
    this.note = html("p", { class: "note", hidden: true });
    this.trees = html("div", { class: "trees" });
    this.compared = html("p", { class: "compared", role: "status", hidden: true });
    this.heat = html("section", {
      class: "heat-panel", hidden: true, "aria-label": `Sampled trees of ${name}`,
    });
    this.table = html("div", {
      class: "scroll", tabindex: "0", role: "region", "aria-label": `Merges of ${name}`,
    });
    this.details = html(
      "details", { ontoggle: () => this.#tables() },
      html("summary", { text: "Merges as a table" }), this.table,
    );
    this.beams = html("div", {});
    this.probable = html(
      "details", { ontoggle: () => this.#list(), hidden: !this.model.beams },
      html("summary", { text: "Most probable trees" }), this.beams,
    );
    this.content = html(
      "div", { class: "content" },
      this.compared, this.trees, html("div", { class: "below" }, this.legend, this.tools),
      this.panel.root, this.heat, this.probable, this.details,
    );
    this.root = html(
      "article", { class: "card bare", "aria-labelledby": id },
      html(
        "header", {},
        html("div", {}, html("h2", { id, text: name }), quiet(about(description, measured))),
        this.verdict,
      ),
      this.note, this.content,
    );
  }

  /** Return the keys of the legend: class and text. */
  get #keys() {
    const { labels } = this.model;
    // fixed trees have no leads, and the last merge has none
    const leads = !this.fixed && this.merges > 1;
    const sure = leads ? [["hue-green", "fuller: larger lead"]] : [];
    const keys = this.pair ? sure : labels.map((label) => [hue(label, labels), label]);
    if (leads) {
      keys.push(["mark choice", "chosen"], ["mark second", "runner-up"], ["line tie", "near tie"]);
    }
    const drawn = [...this.results, ...(this.other?.drawn ? this.other.results : [])];
    if (!this.fixed && drawn.some(({ layers }) => layers.some(({ lead }) => lead < 0))) {
      keys.push(["mark behind", "against the scores: the runner-up has the higher one"]);
    }
    if (this.other && this.merges > 1) keys.push(["line apart", "only in one of the trees"]);
    return keys;
  }

  /** Fill the legend. */
  #explain() {
    const keys = this.#keys.map(([kind, text]) => html("span", { class: `key ${kind}`, text }));
    this.legend.replaceChildren(...keys);
    if (this.fixed || this.merges < 2) return;
    const note = (kind, text) => html("p", { class: `quiet ${kind}`, text });
    this.legend.append(note("whole", LEADS), note("steps", CANDIDATES), note("", TIES));
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

  /** The heading of pictures, which must not be misread where the page is not seen. */
  get #heading() {
    const { model, results, seed, temperature, warning } = this;
    const answer = brief(this.#answer);
    const what = results.length > 1 ? "trees" : "tree";
    const origin = results.some((one) => one.sampled)
      ? `sampled with seed ${seed} and temperature ${temperature}`
      : results.some((one) => !one.greedy) ? "not the model's own" : "";
    const tree = origin && (answer ? ` for the ${what} shown, ${origin}` : `${what} ${origin}`);
    const compared = this.other ? this.compared.textContent : "";
    const verdict = answer || tree ? `${model.name}: ${answer}${tree}.` : `${model.name}.`;
    return [verdict, warning, compared].filter(Boolean).join(" ");
  }

  #shown() {
    return {
      pictures: [...[...this.pictures, ...this.others].map((one) => one.svg), ...this.charts],
      sentences: this.results.map(({ text }) => visible(text)),
      heading: this.#heading,
      legend: this.legend,
    };
  }

  /** Request everything that a view needs; a newer call cancels it. */
  async load(view, texts) {
    this.wanted?.abort();
    const wanted = (this.wanted = new AbortController());
    const { signal } = wanted;
    const own = this.pair ? texts.filter((text) => text) : texts.slice(0, 1);
    const options = { model: this.model.name, texts: own, temperature: view.temperature };
    const seed = view.sampling ? view.seed : null;
    const key = JSON.stringify([own, seed, view.temperature]);
    this.root.classList.add("waiting");
    clearTimeout(this.stale);
    if (key !== this.key) {
      this.stale = setTimeout(() => {
        // other cards keep their places
        this.root.style.minHeight = `${this.root.offsetHeight}px`;
        this.#clear("Waiting for the server…");
      }, STALE);
    }
    try {
      const parse = ask("api/parse", { ...options, seed, samples: 0 }, signal);
      const predict = this.#predict({ ...options, seed }, signal);
      const [parsed, predicted] = await Promise.all([parse, predict]);
      if (signal.aborted) return;
      clearTimeout(this.stale);
      if (key !== this.key) this.heated = [];
      this.key = key;
      this.raw = parsed.results;
      this.results = parsed.results.map(readable);
      this.prediction = predicted;
      this.other = null;
      this.#settle(view);
      this.#chart(view);
      this.root.classList.remove("waiting");
      await this.#against(view, options, signal);
      if (signal.aborted) return;
      // the charts outline the best trees, even if the trees above are sampled
      const many = { ...options, seed: null, samples: SAMPLES };
      const [heated, predictions] = view.heat && !this.fixed && this.merges > 1
        ? await Promise.all([ask("api/parse", many, signal), this.#predict(many, signal)])
        : [null, null];
      if (signal.aborted) return;
      this.heated = (heated?.results ?? []).map(readable);
      if (predictions) {
        // the prediction of a pair depends on the trees of both sentences, so that of one has none
        const { trees, ...samples } = predictions.samples;
        const bare = trees.map((one) => ({ ...one, answer: null }));
        Object.assign(this.heated[0], { answer: predictions, samples: { ...samples, trees: bare } });
      }
      this.#chart(view);
    } catch (error) {
      if (signal.aborted) return;
      this.root.classList.remove("waiting");
      this.refuse(error instanceof Refusal ? error.message : String(error));
    }
  }

  /** Return the prediction of a pair along the trees that `options` describe; null otherwise. */
  async #predict({ texts, ...options }, signal) {
    if (!this.pair || texts.length < 2 || options.tree?.includes("(")) return null;
    const pair = { ...options, texts: [texts[0]], second: [texts[1]] };
    return (await ask("api/predict", pair, signal)).results[0];
  }

  /** Show a message instead of a tree. */
  refuse(message) {
    this.wanted?.abort();
    this.focus = null;
    this.#clear(message);
    this.root.classList.remove("waiting");
  }

  #clear(message) {
    clearTimeout(this.stale);
    this.key = null;
    this.results = [];
    this.pictures = [];
    this.others = [];
    this.prediction = null;
    this.other = null;
    this.heated = [];
    this.charts = [];
    this.verdict.replaceChildren(html("p", { class: "hint", text: visible(message) }));
    this.note.hidden = true;
    for (const part of [this.trees, this.panel.root, this.heat, this.beams]) part.replaceChildren();
    this.listed = null;
    this.compared.hidden = true;
    this.looked = null;
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
    this.temperature = view.temperature;
    this.seed = view.seed;
    this.#judge();
    this.#explain();
    this.draw();
    this.#tables();
    this.#list();
    this.page.changed();
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
      if (this.results.some((one) => !one.greedy)) {
        const what = this.pair ? "trees" : "tree";
        this.verdict.append(quiet(`for the ${what} shown, not the model's own`));
      }
    } else if (this.#answer) {
      this.verdict.replaceChildren(html("p", { class: "answer", text: inWords(this.#answer) }));
    } else if (this.pair) {
      const what = labels.length ? `: ${labels.join(", ")}` : "";
      this.verdict.replaceChildren(
        html("p", { class: "prompt", text: `No prediction yet. This model judges pairs of sentences${what}.` }),
        html("button", { type: "button", text: "Add a second sentence", onclick: this.page.second }),
      );
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
    this.warning = "";
    if (strange.length >= MOSTLY * total) {
      const known = total - strange.length;
      const which = known ? `Only ${known} of the ${total} words` : total > 1 ? `None of the ${total} words` : "The word";
      const verb = total === 1 ? "is not" : known === 1 ? "is" : "are";
      this.warning = `${which} ${verb} in the vocabulary of this model, so its tree and its prediction mean little.`;
      this.verdict.prepend(html("p", { class: "warning", text: this.warning }));
    }
    if (strange.length) {
      notes.push(`Out of vocabulary: ${shortened([...new Set(strange)].join(", "), 120)}.`);
    }
    this.note.textContent = notes.join(" ");
    this.note.hidden = notes.length === 0;
  }

  /** Replace a word; the focus stays at its place. */
  #edit(which, i, word) {
    const trace = this.results[which];
    if (i >= trace.words.length || !this.page.edited(which, trace, i, word)) return;
    this.focus = { which, i, word: true };
  }

  /** Return the node with the focus: {which, i, word}; null if it is elsewhere. */
  #focused() {
    const places = this.pictures.map(({ nodes }) => nodes.indexOf(document.activeElement));
    const which = places.findIndex((i) => i >= 0);
    if (which < 0) return null;
    return { which, i: places[which], word: places[which] < this.pictures[which].trace.words.length };
  }

  /** Move the focus to a node of the trees, or to the last one if there are fewer. */
  #focusOn({ which, i, word }) {
    const picture = this.pictures[which];
    if (!picture) return;
    const { nodes, trace } = picture;
    nodes[Math.min(i, (word ? trace.words : nodes).length - 1)].focus();
  }

  /** Draw the trees at the current width. */
  draw() {
    if (!this.results.length) return;
    const { activeElement: active } = document;
    // unless the reader has moved on
    const wanted = active === document.body || this.content.contains(active) ? this.focus : null;
    const focused = wanted ?? this.#focused();
    this.focus = null;
    const room = Math.max(240, this.trees.clientWidth - 2);
    this.room = room;
    const kept = [...this.trees.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    this.pictures = this.results.map(
      (trace, which) =>
        new Picture(trace, this.model.labels, room, {
          over: (i) => this.#hover({ which, i }),
          out: () => this.#hover(null),
          pick: (i) => this.#hold(which, i),
          drop: (i) => this.#edit(which, i, ""),
          key: this.page.key,
        }),
    );
    const captions = this.results.length > 1 ? ["First sentence", "Second sentence"] : [];
    const figure = (picture, caption) =>
      html(
        "figure", {},
        caption ? html("figcaption", { class: "quiet", text: caption }) : null,
        html("div", { class: "scroll" }, picture.svg),
      );
    this.trees.replaceChildren(...this.pictures.map((one, which) => figure(one, captions[which])));
    // the trees of another card are already on the page
    this.others = (this.other?.drawn ? this.other.results : []).map(
      (trace, which) =>
        new Picture(trace, this.model.labels, room, {
          over: (i) => this.echo(which, trace.nodes[i].span, trace.words.join(" ")),
          out: () => this.echo(0, null, null),
          pick: () => {}, drop: () => {}, key: this.page.key,
        }),
    );
    this.others.forEach((picture, which) => {
      const verdict = brief(this.other.answer);
      const name = [this.other.title, verdict].filter(Boolean).join(": ");
      this.trees.append(figure(picture, which ? captions[which] : name));
    });
    this.#mark();
    this.trees.querySelectorAll(".scroll").forEach((one, i) => (one.scrollLeft = kept[i] ?? 0));
    this.show(this.step);
    this.#look();
    if (focused) this.#focusOn(focused);
  }

  /** Request the trees to compare with, and show what they share. */
  async #against(view, options, signal) {
    const { against } = view;
    if (!against || against === "models") return;
    const refuse = (message) => {
      this.compared.textContent = `Cannot compare: ${visible(message)}`;
      this.compared.hidden = false;
    };
    if (this.fixed && against !== "was") {
      return refuse("the trees of this model are fixed, so it cannot follow another one.");
    }
    const wrong = AGAINST.has(against) ? "" : fault(against, this.results[0].raw);
    if (wrong) return refuse(wrong);
    const { name, title } = AGAINST.get(against) ?? GIVEN;
    const was = against === "was";
    const pinned = (this.pair ? view.was : view.was?.slice(0, 1))?.filter(Boolean) ?? [];
    const given = AGAINST.has(against) ? options.texts : options.texts.slice(0, 1);
    const texts = was ? pinned : given;
    if (!texts.length) return;
    const seed = was && view.sampling ? view.seed : null;
    const request = { ...options, texts, seed, tree: was ? "model" : against };
    try {
      const [{ results }, predicted] = await Promise.all([
        ask("api/parse", request, signal), this.#predict(request, signal),
      ]);
      if (signal.aborted) return;
      this.other = {
        name, title,
        results: results.map(readable),
        answer: this.pair ? predicted : results[0].answer,
        drawn: true,
      };
    } catch (error) {
      if (signal.aborted) throw error;
      return refuse(error.message);
    }
    this.#explain();
    this.draw();
    this.page.changed();
  }

  /** Compare with the trees of another card; without one, show a hint instead. */
  beside(card, hint) {
    const alike = card?.results[0]?.words.join(" ") === this.results[0]?.words.join(" ");
    this.other = card && alike
      ? { name: card.model.name, results: card.results.slice(0, 1), answer: null, drawn: false }
      : null;
    this.#explain();
    this.#mark();
    const apart = card && !alike && this.results.length && card.results.length;
    if (!card || apart) {
      this.compared.textContent = card ? `${card.model.name} splits the sentence into other words.` : hint;
      this.compared.hidden = false;
    }
  }

  /** Highlight what the trees to compare with lack, and say what is shared. */
  #mark() {
    const { other } = this;
    this.compared.hidden = !other;
    const found = (other?.results ?? []).slice(0, this.results.length).map((trace, which) =>
      compare(this.results[which], trace));
    this.pictures.forEach((picture, which) => picture.differ(found[which]?.apart[0] ?? []));
    this.others.forEach((picture, which) => picture.differ(found[which]?.apart[1] ?? []));
    if (!other) return;
    const [then, now] = [brief(other.answer), brief(this.#answer)];
    const change = then && now ? ` Prediction: ${now} here, ${then} there.` : "";
    this.compared.textContent = sharing(found[0], other.name) + change;
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
    const moved = step !== this.step;
    this.step = step;
    // bars show candidates while stepping, and leads in whole trees
    const whole = (one) => step === null || step >= one.trace.order.length;
    this.root.classList.toggle("stepping", !this.pictures.every(whole));
    const leads = [...this.pictures.filter(whole), ...this.others].some((one) => one.trace.order.length > 1);
    this.root.classList.toggle("whole", leads);
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
    if (moved) this.#look();
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

  /** Show the node under the pointer, the held node, the merge of this step, or the root. */
  #look() {
    if (!this.results.length) return;
    const pointed = this.over ?? this.held;
    // the sentences of a pair have different numbers of merges
    const merging = ({ order }) => this.step !== null && this.step < order.length;
    const stepping = this.results.some(merging);
    const which = Math.max(0, this.results.findIndex(merging));
    const { nodes, words } = this.results[which];
    const at = pointed ?? { which, i: stepping ? words.length + this.step : nodes.length - 1 };
    this.pictures.forEach((picture, which) => {
      const here = pointed?.which === which ? pointed.i : null;
      picture.mark(here, this.held?.which === which && this.held.i === here);
    });
    const held = this.held?.which === at.which && this.held.i === at.i;
    const { temperature } = this;
    const about = { stepping: stepping && !pointed, held, temperature };
    // a panel that is replaced between pressing and releasing a button loses the click
    const key = JSON.stringify([at, about]);
    if (key === this.looked?.key && this.results === this.looked.results) return;
    this.looked = { key, results: this.results };
    this.panel.show(this.results[at.which], at.which, at.i, about);
  }

  #chart(view) {
    this.heat.hidden = !view.heat || this.fixed;
    this.charts = [];
    if (this.heat.hidden) return this.heat.replaceChildren();
    if (this.merges < 2) return this.heat.replaceChildren(quiet("One or two words have only one tree."));
    if (!this.heated.length) return this.heat.replaceChildren(quiet(`Sampling ${SAMPLES} trees…`));
    const room = Math.max(240, this.trees.clientWidth - 2);
    this.heat.replaceChildren(
      html("h3", { text: `Does the tree matter? ${SAMPLES} sampled trees` }),
      ...this.heated.flatMap((trace, which) => {
        const name = `Spans of sentence ${which + 1} of ${this.model.name}`;
        const over = (span) => this.pictures[which]?.echo(span);
        const about = { count: SAMPLES, temperature: view.temperature, room, name };
        const { picture, parts } = spanChart(trace, about, over);
        this.charts.push(picture);
        // only the first sentence can be compared with brackets
        const against = which ? null : this.page.against;
        const caption = which ? [html("h3", { text: "Second sentence" })] : [];
        return [...caption, ...distribution(trace, SAMPLES, against), ...parts];
      }),
    );
  }

  /** Request and list the most probable trees, if their list is open. */
  async #list() {
    const texts = this.results.map(({ text }) => text);
    const key = JSON.stringify(texts);
    if (!this.probable.open || !texts.length || key === this.listed) return;
    this.listed = key;
    const { signal } = this.wanted;
    this.beams.replaceChildren(quiet("Searching…"));
    try {
      const { results } = await ask("api/parse", { model: this.model.name, texts, beams: BEAMS }, signal);
      if (key !== this.listed) return;
      this.beams.replaceChildren(
        quiet("Found by beam search. Shares are the probabilities of each tree's best order of merges, relative to each other."),
        ...results.flatMap((trace, which) => [
          ...(which ? [html("h3", { text: "Second sentence" })] : []),
          // only the first sentence can be compared with brackets
          probable(trace, which ? null : this.page.against),
        ]),
      );
    } catch (error) {
      if (key !== this.listed) return;
      this.listed = null;
      // a newer view lists its own trees
      if (!signal.aborted) this.beams.replaceChildren(quiet(visible(error.message)));
    }
  }

  #tables() {
    if (!this.details.open) return;
    this.table.replaceChildren(
      ...this.results.flatMap((trace) => {
        const table = html("table", {});
        tabulate(table, trace);
        return [table, html("p", { class: "brackets" }, ...bracketed(trace.brackets))];
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
