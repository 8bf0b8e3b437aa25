// The page: its controls, the view in its address, and one card per model.

import { ask, onConnection } from "./api.js";
import { Card } from "./card.js";
import { AGAINST, example, GIVEN } from "./compare.js";
import { byId, html } from "./dom.js";
import { offerExamples, randomExample } from "./examples.js";
import { fromFragment, initial, rounded, TEMPERATURES, toFragment } from "./state.js";
import { onStep, setStep, stepKey, stop } from "./stepper.js";
import { shortened, visible } from "./text.js";
import { follow } from "./theme.js";

const TYPING = 30; // milliseconds without typing before a request is sent
const SPEAKING = 900;
const FIRST = "The food was wonderful, but the service was painfully slow.";
const FIRST_PAIR = ["A man is playing a guitar on a stage.", "A man is playing music."];
const FIRST_OF = { // tasks whose texts are no sentences
  listops: ["[MAX 2 9 [MIN 4 7 8 ] 0 ]", ""],
  logic: ["( not ( a ( and b ) ) )", "( ( not a ) ( or ( not b ) ) )"],
};

let view = initial();
let limits = { characters: Infinity, words: Infinity };
const cards = new Map();
let typing, speaking, linking;

const field = {
  text: byId("text"), second: byId("second"), sampling: byId("sampling"), seed: byId("seed"),
  temperature: byId("temperature"), heat: byId("heat"), against: byId("against"),
  brackets: byId("brackets"),
};

const cleaned = (text) => (text.toWellFormed?.() ?? text).replace(/\s+/g, " ").trim();

/** Truncate a text to the limits of the server, which rejects longer ones. */
function cut(text) {
  let end = text.length;
  let words = 0;
  // each punctuation mark counts as a word, so no tokenizer finds more words
  for (const { index } of text.matchAll(/[\p{L}\p{M}\p{N}]+|[^\s\p{L}\p{M}\p{N}]/gu)) {
    if (++words > limits.words) {
      end = index;
      break;
    }
  }
  if (end > limits.characters) {
    const space = text.lastIndexOf(" ", limits.characters);
    end = space > 0 ? space : limits.characters;
  }
  return cleaned(text.slice(0, end));
}
const chosen = () => [...cards.values()].filter(({ model }) => view.models?.includes(model.name));

function link() {
  clearTimeout(linking);
  const address = `#${toFragment(view)}`;
  if (address !== location.hash) history.replaceState(null, "", address);
}

/** Update the address after a delay: browsers limit how often it may change. */
function linkSoon() {
  clearTimeout(linking);
  linking = setTimeout(link, 250);
}

function controls() {
  if (field.text.value !== view.text) field.text.value = view.text;
  if (field.second.value !== view.second) field.second.value = view.second;
  field.sampling.checked = view.sampling;
  field.seed.value = view.seed;
  field.seed.disabled = byId("again").disabled = !view.sampling;
  field.temperature.value = Math.log10(view.temperature);
  field.temperature.setAttribute("aria-valuetext", String(view.temperature));
  byId("temperature-value").textContent = view.temperature;
  field.heat.checked = view.heat;
  const given = !AGAINST.has(view.against);
  field.against.value = given ? "brackets" : view.against;
  byId("given").hidden = !given;
  if (given) field.brackets.value = view.against;
  // one model alone has no other to compare with
  const models = field.against.querySelector("[value=models]");
  models.hidden = models.disabled = cards.size < 2 && view.against !== "models";
  for (const box of byId("models").querySelectorAll("input")) {
    box.checked = view.models.includes(box.value);
  }
  const pairs = chosen().some((card) => card.pair);
  byId("second-part").hidden = !pairs;
  // one model of pairs can be added by asking for the second sentence
  byId("open-second").hidden = pairs || ![...cards.values()].some((card) => card.pair);
  for (const one of [field.text, field.second]) grow(one);
}

function grow(area) {
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight + 2, 190)}px`;
}

function load() {
  const whole = [cleaned(view.text), cleaned(view.second)];
  const texts = whole.map(cut);
  byId("cut").hidden = texts.every((text, i) => text === whole[i]);
  const shown = chosen();
  const place = byId("cards");
  const names = JSON.stringify(view.models);
  if (place.dataset.models !== names) {
    place.dataset.models = names;
    place.replaceChildren(...shown.map((card) => card.root));
  }
  const hint = !texts[0]
    ? "Type a sentence above, or choose an example."
    : shown.length === 0
      ? "Select at least one model above."
      : "";
  byId("hint").textContent = hint;
  byId("hint").hidden = !hint;
  place.hidden = Boolean(hint);
  byId("stepper").hidden = Boolean(hint);
  document.title = hint ? "gumbeltree explorer" : `${shortened(visible(texts[0]), 60)} · gumbeltree`;
  if (hint) {
    stop();
    for (const card of cards.values()) card.refuse("");
    speak(hint);
    return;
  }
  arrange(texts);
  for (const card of shown) card.load(view, texts);
}

/** Put the cards side by side for short sentences, below each other for long ones. */
function arrange(texts) {
  const words = Math.max(...texts.map((text) => text.split(" ").length));
  byId("cards").classList.toggle("wide", words > 20);
}

function stepped() {
  setStep(view.step, Math.max(0, ...chosen().map((card) => card.merges)));
  for (const card of chosen()) card.show(view.step);
}

/** Align the words of trees that are side by side. */
function level() {
  const shown = chosen();
  const beside = shown.length > 1 && shown[0].root.offsetTop === shown[1].root.offsetTop;
  const lowest = Math.max(0, ...shown.map((card) => card.base));
  for (const card of shown) card.lower(beside ? lowest - card.base : 0);
}

function speak(text) {
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    const trees = chosen().map((card) => card.summary());
    byId("live").textContent = text ?? trees.filter(Boolean).join(" ");
  }, SPEAKING);
}

function say(text) {
  const toast = byId("toast");
  toast.textContent = text;
  toast.classList.add("shown");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => toast.classList.remove("shown"), 2200);
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") release();
  else if (!stepKey(event)) return;
  event.preventDefault();
}

function release() {
  view.node = null;
  for (const card of cards.values()) card.release();
  linkSoon();
}

function changed(change) {
  notice(null);
  Object.assign(view, change);
  controls();
  linkSoon();
  load();
}

function typed() {
  stop();
  notice(null);
  const [text, second] = [field.text.value, field.second.value];
  Object.assign(view, { text, second, step: null, node: null });
  for (const one of [field.text, field.second]) grow(one);
  linkSoon();
  later();
}

function later() {
  clearTimeout(typing);
  typing = setTimeout(load, TYPING);
}

function put(text, second) {
  stop();
  const kept = view.against === "was" || !AGAINST.has(view.against) ? "" : view.against;
  const models = second ? withPairs() : view.models;
  changed({ text, second, models, step: null, node: null, against: kept, was: null });
}

/** Return the chosen models, with a pair model among them. */
function withPairs() {
  if (chosen().some((card) => card.pair)) return view.models;
  const pair = [...cards.values()].find((card) => card.pair);
  return pair ? [...view.models, pair.model.name] : view.models;
}

/** Compare the trees with `against`: a key of AGAINST, "brackets" to ask for them, or brackets. */
function compareWith(against) {
  const asked = against === "brackets";
  // the reader edits the brackets of the tree shown
  if (asked) against = chosen()[0]?.results[0]?.raw ?? "";
  const was = against === "was" ? [view.text, view.second].map(cleaned) : null;
  let { models } = view;
  if (against === "models" && models.length === 1) {
    const other = [...cards.keys()].find((name) => !models.includes(name));
    if (other) models = [...cards.keys()].filter((name) => name === other || models.includes(name));
  }
  changed({ against, was, models });
  if (asked && against) field.brackets.focus();
}

/** Compare with the brackets in the field, unless the trees already are. */
function compareWithBrackets() {
  const wanted = field.brackets.value.trim();
  if (!byId("given").hidden && wanted !== view.against) compareWith(wanted);
}

/** Say how to edit the brackets, with an example made from the sentence. */
function explainBrackets() {
  const own = chosen()[0]?.results[0]?.raw ?? "";
  const other = own.includes("(") ? visible(shortened(example(own), 160)) : "";
  byId("brackets-hint").textContent = other
    ? `Move the brackets, for example to ${other}, and press Enter.`
    : "One word has no merges to compare.";
}

/** Return the task of the models shown, if they share one. */
function task() {
  const tasks = new Set(chosen().map((card) => card.model.measured?.data));
  return tasks.size === 1 ? [...tasks][0] : undefined;
}

async function surprise() {
  const found = await randomExample(view.text, chosen().some((card) => card.pair), task());
  if (found) put(...found);
}

/** Show a notice above the page until the view changes; null hides it. */
function notice(text) {
  byId("notice").textContent = text ?? "";
  byId("notice").hidden = !text;
}

function openSettings(open) {
  byId("settings").hidden = !open;
  byId("open-settings").setAttribute("aria-expanded", String(open));
}

async function copyLink() {
  link();
  try {
    await navigator.clipboard.writeText(location.href);
  } catch {
    // the clipboard API needs localhost or https
    const area = html("textarea", { class: "unseen", text: location.href });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("Link copied");
}

function listen() {
  for (const one of [field.text, field.second]) one.addEventListener("input", typed);
  field.sampling.addEventListener("change", () => changed({ sampling: field.sampling.checked }));
  field.seed.addEventListener("change", () => {
    const seed = Math.trunc(Number(field.seed.value));
    changed({ seed: seed >= 0 && seed <= Number.MAX_SAFE_INTEGER ? seed : 1 });
  });
  byId("again").addEventListener("click", () => changed({ seed: view.seed + 1 }));
  field.temperature.addEventListener("input", () => {
    view.temperature = rounded(10 ** Number(field.temperature.value));
    controls();
    linkSoon();
    later();
  });
  for (const [value, { option }] of [...AGAINST, ["brackets", GIVEN]]) {
    field.against.append(html("option", { value, text: option }));
  }
  field.against.addEventListener("change", () => compareWith(field.against.value));
  field.brackets.addEventListener("keydown", (event) => event.key === "Enter" && compareWithBrackets());
  field.brackets.addEventListener("blur", compareWithBrackets);
  field.heat.addEventListener("change", () => changed({ heat: field.heat.checked }));
  onStep((step) => {
    view.step = step;
    for (const card of chosen()) card.show(step);
    linkSoon();
  });
  byId("copy").addEventListener("click", copyLink);
  byId("surprise").addEventListener("click", surprise);
  byId("open-settings").addEventListener("click", () => openSettings(byId("settings").hidden));
  byId("open-second").addEventListener("click", page.second);
  offerExamples(put, task);
  byId("skip").addEventListener("click", (event) => {
    // the fragment of the address belongs to the view
    event.preventDefault();
    byId("main").focus();
  });
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    // these elements use the arrow keys themselves
    if (!event.target.closest?.("input, textarea, select, dialog, .node, .scroll")) key(event);
  });
  addEventListener("hashchange", () => restore(fromFragment(location.hash)));
  new ResizeObserver(() => {
    for (const card of chosen()) card.resized(view);
    level();
  }).observe(byId("cards"));
}

function restore(wanted) {
  if (!wanted) return;
  stop();
  const here = wanted.models?.filter((name) => cards.has(name));
  const models = here?.length || wanted.models?.length === 0 ? here : usual(wanted);
  view = { ...wanted, models };
  controls();
  load();
  const missing = wanted.models?.filter((name) => !cards.has(name)) ?? [];
  if (missing.length) {
    const instead = here.length ? "" : ` It shows ${models.join(", ")} instead.`;
    notice(`This link names ${visible(missing.join(", "))}, which the server does not have.${instead}`);
  }
  const tuned = view.sampling || view.temperature !== 1 || view.heat || view.against;
  if (tuned) openSettings(true);
}

/** Return the models to show by default: one that needs no second sentence, if there is one. */
function usual({ second }) {
  const all = [...cards.values()];
  const fits = all.find((card) => card.pair === Boolean(second)) ?? all[0];
  return fits ? [fits.model.name] : [];
}

const page = {
  changed: () => {
    // fixed trees have no span probabilities
    const shown = chosen();
    const useful = shown.length === 0 || shown.some((card) => !card.fixed);
    field.heat.closest("fieldset").hidden = !useful;
    stepped();
    if (view.against === "models") {
      const hint = cards.size > 1
        ? "Select a second model above to compare its tree with this one."
        : "There is no other model to compare with.";
      for (const card of shown) card.beside(shown.find((one) => one !== card) ?? null, hint);
    }
    explainBrackets();
    level();
    speak(null);
  },
  hovered: (from, which, span) => {
    const words = span ? from.results[which].words.join(" ") : null;
    for (const card of chosen()) if (card !== from) card.echo(which, span, words);
  },
  held: (from, which, span) => {
    view.node = span ? { model: from.model.name, which, span } : null;
    for (const card of chosen()) if (card !== from) card.release();
    linkSoon();
  },
  edited: (which, trace, i, word) => {
    const [start, end] = trace.offsets[i];
    // the server counts characters, JavaScript halves of some
    const letters = Array.from(trace.text);
    const text = cleaned([...letters.slice(0, start), word, ...letters.slice(end)].join(""));
    if (!text) return false;
    stop();
    const was = [view.text, view.second].map(cleaned);
    const edit = which ? { second: text } : { text };
    changed({ ...edit, step: null, node: null, against: "was", was });
    return true;
  },
  against: compareWith,
  second: () => {
    changed({ models: withPairs() });
    field.second.focus();
  },
  key,
  say,
};

async function begin() {
  follow(byId("theme"));
  listen();
  onConnection((here) => {
    byId("away").hidden = here;
    if (here) say("Connected");
  });
  let found;
  try {
    found = await ask("api/models");
  } catch (error) {
    byId("hint").textContent = error.message;
    return;
  }
  limits = found.limits;
  byId("cut").textContent =
    `Truncated to ${limits.words} words or ${limits.characters} characters.`;
  // models of single sentences come first
  const models = [...found.models].sort((a, b) => a.sentences - b.sentences);
  for (const model of models) {
    cards.set(model.name, new Card(model, page));
    const box = html("input", { type: "checkbox", value: model.name });
    box.addEventListener("change", () => {
      const boxes = [...byId("models").querySelectorAll("input")];
      changed({ models: boxes.filter((one) => one.checked).map((one) => one.value), node: null });
    });
    const kind = model.sentences === 2 ? "pairs" : "sentences";
    byId("models").append(
      html(
        "label", { class: "chip" },
        box, html("span", { text: model.name }), html("small", { text: kind }),
      ),
    );
  }
  field.temperature.min = Math.log10(TEMPERATURES.low);
  field.temperature.max = Math.log10(TEMPERATURES.high);
  const usual = models[0]?.sentences === 2 ? FIRST_PAIR : [FIRST, ""];
  const [text, second] = FIRST_OF[models[0]?.measured?.data] ?? usual;
  const start = { ...initial(), text, second };
  restore(fromFragment(location.hash) ?? start);
  document.body.classList.add("ready");
}

begin();
