// The examples: a dialog to search them, and a random choice.

import { ask } from "./api.js";
import { byId, html, quiet } from "./dom.js";

let all = { groups: [], sentences: [], pairs: [] };
let loaded; // settles when the examples are there, or cannot be loaded

/** Return the examples of a task, or sentences if it has none of its own. */
const of = (task) => all.tasks?.[task] ?? all;

/** Load the examples; `put(text, second)` shows one of them, of the task that `task()` returns. */
export function offerExamples(put, task) {
  const picker = byId("picker");
  const take = (...texts) => {
    picker.close();
    put(...texts);
  };
  loaded = ask("static/examples.json").then(
    (found) => {
      all = found;
      // the reader may have opened the dialog already
      if (picker.open) list(take, task());
    },
    () => (byId("open-examples").hidden = byId("surprise").hidden = true),
  );
  byId("open-examples").addEventListener("click", () => {
    byId("search").value = "";
    list(take, task());
    picker.showModal();
  });
  byId("close-examples").addEventListener("click", () => picker.close());
  byId("search").addEventListener("input", () => list(take, task()));
}

/** Return a random example of a task other than `text`, often a pair if `pairs`. */
export async function randomExample(text, pairs, task) {
  await loaded;
  const examples = of(task);
  const more = pairs ? examples.pairs : [];
  const some = [...examples.sentences.map((one) => [one, ""]), ...more, ...more, ...more];
  const others = some.filter(([one]) => one !== text);
  return others[Math.floor(Math.random() * others.length)];
}

function list(take, task) {
  const examples = of(task);
  const wanted = byId("search").value.trim().replace(/\s+/g, " ").toLowerCase();
  const fits = (...texts) => texts.some((text) => text.toLowerCase().includes(wanted));
  const group = (name, buttons) => {
    const items = buttons.map((button) => html("li", {}, button));
    return items.length ? [html("h3", { text: name }), html("ul", {}, ...items)] : [];
  };
  const pairs = examples.pairs.filter((pair) => fits(...pair));
  let next = 0;
  const parts = [
    ...examples.groups.flatMap(({ name, count }) =>
      group(
        name,
        examples.sentences.slice(next, (next += count)).filter((text) => fits(text)).map((text) =>
          html("button", { type: "button", text, onclick: () => take(text, "") })),
      )),
    ...group(
      "Pairs",
      pairs.map(([first, second]) =>
        html(
          "button", { type: "button", onclick: () => take(first, second) },
          html("span", { text: first }), html("span", { class: "quiet", text: second }),
        )),
    ),
  ];
  byId("examples").replaceChildren(...(parts.length ? parts : [quiet("No examples found.")]));
}
