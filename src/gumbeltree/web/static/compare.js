// Comparing two trees: the phrases that they share, also across an edit of the sentence.

import { best, inWords, percent, shortened } from "./text.js";

/** What a tree can be compared with: the text of the option, and how the page calls it. */
export const AGAINST = new Map([
  ["", { option: "nothing" }],
  ["models", { option: "another model" }],
  ...["left-branching", "right-branching", "balanced"].map((shape) => [
    shape.replace("-branching", ""),
    { option: `${shape} tree`, name: `the ${shape} tree`, title: `${shape[0].toUpperCase()}${shape.slice(1)} tree` },
  ]),
  ["was", { option: "this tree, pinned", name: "the pinned tree", title: "Pinned" }],
]);
/** Anything else is a tree in brackets. */
export const GIVEN = { option: "brackets…", name: "the given tree", title: "Given brackets" };

const wordsOf = (brackets) => brackets.match(/[^\s()]+/g) ?? [];

/** Return other brackets of the same words, right-branching or left-branching ones. */
export function example(brackets) {
  const words = wordsOf(brackets);
  const right = words.reduceRight((rest, word) => `( ${word} ${rest} )`);
  return right === brackets ? words.reduce((rest, word) => `( ${rest} ${word} )`) : right;
}

/** Say what is wrong with brackets that a reader entered; empty if they fit the tree `own`. */
export function fault(brackets, own) {
  const nodes = [[]]; // the parts of each node that is open, below those of the whole text
  for (const part of brackets.match(/[()]|[^\s()]+/g) ?? []) {
    if (part === "(") nodes.push([]);
    else if (part !== ")") nodes.at(-1).push(part);
    else {
      const parts = nodes.pop();
      const node = `( ${parts.join(" ")} )`;
      if (!nodes.length) return "there is a “)” without its “(”.";
      if (parts.length !== 2) {
        return `each pair of brackets must contain two words or phrases, but ${shortened(node, 80)} ` +
          `contains ${parts.length}.`;
      }
      nodes.at(-1).push(node);
    }
  }
  if (nodes.length > 1) return "a “(” has no “)”.";
  const [given, words] = [wordsOf(brackets), wordsOf(own)];
  const at = words.findIndex((word, i) => word !== given[i]);
  if (at >= 0 && at < given.length) {
    return `word ${at + 1} in the brackets is “${shortened(given[at], 40)}”, but in the sentence ` +
      `it is “${shortened(words[at], 40)}”.`;
  }
  if (given.length !== words.length) {
    return `the brackets contain ${given.length} words, but the sentence has ${words.length}.`;
  }
  return nodes[0].length > 1 ? "put one more pair of brackets around the whole sentence." : "";
}

/** Return a function that maps a boundary between words of `old` to `now`; null inside an edit. */
function aligned(old, now) {
  const most = Math.min(old.length, now.length);
  let before = 0;
  while (before < most && old[before] === now[before]) before++;
  let after = 0;
  while (after < most - before && old.at(-1 - after) === now.at(-1 - after)) after++;
  const grown = now.length - old.length;
  return (boundary, starts) => {
    const [early, late] = [boundary <= before, boundary >= old.length - after];
    if (late && (starts || !early)) return boundary + grown;
    // a word that replaces another keeps its boundaries
    return early || grown === 0 ? boundary : null;
  };
}

/** Return the phrases of a tree in the words of another, except single words and the sentence. */
function phrases(trace, words) {
  const moved = aligned(trace.words, words);
  const found = new Map();
  trace.nodes.forEach(({ span }, i) => {
    const [start, end] = [moved(span[0], true), moved(span[1], false)];
    if (start === null || end === null) return;
    if (end - start > 1 && end - start < words.length) found.set(`${start},${end}`, i);
  });
  return found;
}

/**
 * Compare a tree with another one.
 *
 * @returns shared, own and others: numbers of phrases; f1: null if there are none;
 *   apart: for each tree, the nodes that the other one lacks
 */
export function compare(trace, other) {
  const own = phrases(trace, trace.words);
  const theirs = phrases(other, trace.words);
  const shared = [...own.keys()].filter((span) => theirs.has(span));
  const lacking = (from, where) => [...from].filter(([span]) => !where.has(span)).map(([, i]) => i);
  const total = own.size + theirs.size;
  return {
    shared: shared.length, own: own.size, others: theirs.size,
    f1: total ? (2 * shared.length) / total : null,
    apart: [lacking(own, theirs), lacking(theirs, own)],
  };
}

/** Say in one sentence what two trees share. */
export function sharing({ shared, own, f1 }, name) {
  if (f1 === null) return `No phrases to compare with ${name}.`;
  if (f1 === 1) return `The same phrases as in ${name} (F1 100%).`;
  return `${shared} of ${own} phrases ${shared === 1 ? "is" : "are"} also in ${name} (F1 ${percent(f1)}).`;
}

/** Return a prediction in a few words; empty if there is none. */
export function brief(answer) {
  if (!answer) return "";
  if (!answer.label) return inWords(answer);
  const [label, p] = best(answer.probabilities);
  return `${label} ${percent(p)}`;
}
