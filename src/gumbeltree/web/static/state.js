// The view of the page and the link that restores it.

export const TEMPERATURES = { low: 0.1, high: 10 };

/** Return the default view. */
export function initial() {
  return {
    text: "",
    second: "",
    models: null, // names; null: default
    step: null, // completed merges; null: all
    sampling: false,
    seed: 1,
    temperature: 1,
    heat: false,
    against: "", // what the trees are compared with: a key of AGAINST, or brackets
    was: null, // the pinned sentences
    node: null, // the held node: {model, which, span}
  };
}

/** Clip a temperature and round it to three digits. */
export function rounded(temperature) {
  const kept = Math.min(TEMPERATURES.high, Math.max(TEMPERATURES.low, temperature));
  return Number(kept.toPrecision(3));
}

/** Return the URL fragment of a view. */
export function toFragment(view) {
  const parts = new URLSearchParams();
  parts.set("text", view.text);
  if (view.second) parts.set("second", view.second);
  for (const name of view.models ?? []) parts.append("model", name);
  if (view.models?.length === 0) parts.append("model", "");
  if (view.step !== null) parts.set("step", view.step);
  if (view.sampling) parts.set("seed", view.seed);
  if (view.temperature !== 1) parts.set("temperature", view.temperature);
  if (view.heat) parts.set("heat", "1");
  if (view.against) parts.set("against", view.against);
  for (const text of view.was ?? []) parts.append("was", text);
  if (view.node) {
    const { model, which, span } = view.node;
    parts.set("node", [which, ...span, model].join(":"));
  }
  return parts.toString();
}

const WHOLE = /^\d{1,15}$/;

/** Return the view of a URL fragment, ignoring invalid parts; null without a text. */
export function fromFragment(fragment) {
  const parts = new URLSearchParams(fragment.replace(/^#/, ""));
  if (!parts.has("text")) return null;
  const view = initial();
  view.text = parts.get("text");
  view.second = parts.get("second") ?? "";
  if (parts.has("model")) view.models = parts.getAll("model").filter((name) => name);
  if (WHOLE.test(parts.get("step") ?? "")) view.step = Number(parts.get("step"));
  if (WHOLE.test(parts.get("seed") ?? "")) {
    view.sampling = true;
    view.seed = Number(parts.get("seed"));
  }
  const temperature = Number(parts.get("temperature") ?? 1);
  if (temperature > 0) view.temperature = rounded(temperature);
  view.heat = parts.get("heat") === "1";
  view.against = parts.get("against") ?? "";
  if (parts.has("was")) view.was = parts.getAll("was").slice(0, 2);
  const node = /^([01]):(\d+):(\d+):(.+)$/.exec(parts.get("node") ?? "");
  if (node) {
    const [which, start, end] = node.slice(1, 4).map(Number);
    view.node = { model: node[4], which, span: [start, end] };
  }
  return view;
}
