// The panel of one node: why it was merged, what the runner-up leads to, and similar phrases.

import { ask } from "./api.js";
import { brief, compare, sharing } from "./compare.js";
import { html, quiet } from "./dom.js";
import { bars } from "./tables.js";
import { decimal, percent, shortened, visible } from "./text.js";
import { isFixed, phraseOf, runnerUp } from "./tree.js";

const NEIGHBOURS = 5;
const REST = 180; // milliseconds to wait before requesting more about a node
const KEPT = 500; // responses

/** Panels of one model. */
export class Panel {
  /**
   * @param model its entry in /api/models
   * @param on callbacks: edited(which, i, word), against(brackets)
   */
  constructor(model, on) {
    this.model = model;
    this.on = on;
    this.known = new Map(); // responses by request
    this.root = html("section", { class: "node-panel", "aria-label": `Node of ${model.name}` });
  }

  /** Show node `i` of a tree; `stepping` if it is the merge of the current step. */
  show(trace, which, i, { stepping, held, temperature }) {
    clearTimeout(this.resting);
    this.asking?.abort();
    const node = trace.nodes[i];
    const parts = [this.#facts(trace, which, i, stepping, held)];
    const wanted = [];
    if (node.children && trace.layers[node.step].runner_up !== null && !isFixed(trace)) {
      const place = html("div", { class: "led" });
      parts.push(this.#choice(trace, node, place));
      wanted.push(() => this.#otherwise(trace, which, node, temperature, place));
    }
    const near = html("div", { class: "near" });
    // an index contains whole sentences only
    const whole = node.span[1] - node.span[0] === trace.words.length;
    const indexed = this.model.index && whole;
    const title = indexed ? "Nearest sentences" : "Nearest phrases";
    parts.push(html("div", { class: "near-part" }, html("h3", { text: title }), near));
    wanted.push(() => this.#neighbours(trace, indexed ? null : node.span, near));
    this.root.replaceChildren(...parts);
    this.asking = new AbortController();
    this.resting = setTimeout(() => wanted.forEach((one) => one()), REST);
  }

  #facts(trace, which, i, stepping, held) {
    const node = trace.nodes[i];
    const facts = html("dl", { class: "facts" });
    const fact = (name, text) => facts.append(html("dt", { text: name }), html("dd", { text }));
    if (node.children) {
      fact("merge", `${node.step + 1} of ${trace.order.length}`);
      const kind = trace.trees === "soft" ? "heaviest of a mixture" : `fixed (${trace.trees})`;
      if (isFixed(trace)) fact("tree", kind);
      else fact("score", decimal(node.score));
    } else {
      fact("word", `${i + 1} of ${trace.words.length}`);
      if (trace.unknown[i]) fact("vocabulary", "unknown");
    }
    const whole = node.span[1] - node.span[0] === trace.words.length;
    const title = stepping ? `Merge ${node.step + 1}` : whole ? "Whole sentence" : "Phrase";
    const part = html(
      "div", { class: "phrase-part" },
      html("h3", { text: title }),
      html("p", { class: "phrase", text: shortened(phraseOf(trace, node), 220) }),
      facts,
    );
    if (!node.children && held) part.append(this.#editor(trace, which, i));
    if (node.classes) {
      part.append(
        html(
          "div", { class: "classes-part" },
          html("h3", { text: "Prediction at this node" }),
          bars(node.classes, this.model.labels, "Prediction at this node"),
        ),
      );
    }
    return part;
  }

  #editor(trace, which, i) {
    const word = html("input", {
      type: "text", "aria-label": `Replace ${trace.words[i]} with`, placeholder: "another word",
    });
    const button = (text, action) => html("button", { type: "button", class: "small", text, onclick: action });
    const replace = () => word.value.trim() && this.on.edited(which, i, word.value.trim());
    word.addEventListener("keydown", (event) => event.key === "Enter" && replace());
    return html(
      "div", { class: "editor row", role: "group", "aria-label": "Edit the word" },
      word, button("Replace", replace), button("Drop", () => this.on.edited(which, i, "")),
    );
  }

  /** Explain why a merge won. */
  #choice(trace, node, place) {
    const { lead, near_tie: tie } = trace.layers[node.step];
    const rival = runnerUp(trace, node.step);
    // log-odds between the two candidates
    const wins = percent(1 / (1 + Math.exp(-lead)));
    const text = tie
      ? `A near tie: drawn from the two, this merge would win ${wins} of the time.`
      : lead < 0
        ? "The runner-up has the higher score, but it was not merged."
        : `Drawn from the two, this merge would win ${wins} of the time.`;
    return html(
      "div", { class: "choice-part" },
      html("h3", { text: "Chosen against" }),
      html("p", { class: "phrase", text: shortened(rival, 120) }),
      html("dl", { class: "facts" }, html("dt", { text: "lead" }), html("dd", { text: decimal(lead) })),
      quiet(text), place,
    );
  }

  /** Return a response, from memory if possible. */
  async #ask(path, body) {
    const key = JSON.stringify([path, body]);
    if (!this.known.has(key)) {
      const { signal } = this.asking;
      const answer = await ask(path, body, signal);
      if (signal.aborted) throw signal.reason;
      if (this.known.size > KEPT) this.known.clear();
      this.known.set(key, answer);
    }
    return this.known.get(key);
  }

  /** Show the tree that follows if the runner-up is merged instead. */
  async #otherwise(trace, which, node, temperature, place) {
    const prefix = [...trace.order.slice(0, node.step), trace.layers[node.step].runner_up];
    const body = { model: this.model.name, texts: [trace.text], temperature, prefix };
    let other;
    try {
      other = (await this.#ask("api/parse", body)).results[0];
    } catch (error) {
      if (error.name !== "AbortError") place.replaceChildren(quiet(error.message));
      return;
    }
    const words = other.words.map(visible);
    const said = sharing(compare({ ...other, words }, trace), "the tree shown");
    const answer = brief(other.answer);
    place.replaceChildren(
      html("h3", { text: "The runner-up would have led to" }),
      html("p", { text: [answer && `${answer}.`, said].filter(Boolean).join(" ") }),
    );
    // only the first sentence can be compared with brackets
    if (which) return;
    place.append(
      html("button", {
        type: "button", class: "small", text: "Compare with that tree",
        onclick: () => this.on.against(other.brackets),
      }),
    );
  }

  async #neighbours(trace, span, place) {
    try {
      const body = { model: this.model.name, text: trace.text, span, k: NEIGHBOURS };
      const { source, neighbours } = await this.#ask("api/neighbours", body);
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
      place.replaceChildren(neighbours.length ? list : quiet("None found."), quiet(from));
    } catch (error) {
      if (error.name === "AbortError") return;
      // other trees may have phrases that the model's own tree lacks
      const text = trace.greedy ? error.message : "Not a phrase of the model's own tree.";
      place.replaceChildren(quiet(text));
    }
  }
}
