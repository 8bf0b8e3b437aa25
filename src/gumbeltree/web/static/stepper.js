// The stepper: a slider over the merges, buttons, keys and an animation.

import { byId } from "./dom.js";

const slider = byId("step");
const MOVES = { start: -Infinity, back: -1, forward: 1, end: Infinity };
let playing = null;
let step = null; // completed merges; null: all
let heard;

const last = () => Number(slider.max);
const current = () => step ?? last();

/** Call `changed(step)` whenever the reader moves to a step; null is the whole tree. */
export function onStep(changed) {
  heard = changed;
  slider.addEventListener("input", () => {
    stop();
    goTo(Number(slider.value));
  });
  for (const [id, move] of Object.entries(MOVES)) {
    byId(id).addEventListener("click", () => {
      stop();
      goTo(current() + move);
    });
  }
  byId("play").addEventListener("click", play);
}

/** Show a step out of `merges`. */
export function setStep(wanted, merges) {
  step = wanted === null || wanted >= merges ? null : wanted;
  slider.max = merges;
  slider.value = current();
  slider.disabled = merges === 0;
  const all = merges === 0 ? "no merges" : `all ${merges} ${merges === 1 ? "merge" : "merges"}`;
  const said = step === null ? all : `merge ${step + 1} of ${merges}`;
  slider.setAttribute("aria-valuetext", said);
  byId("step-value").textContent = said;
}

function goTo(wanted) {
  const kept = Math.max(0, Math.min(wanted, last()));
  setStep(kept, last());
  heard(step);
}

/** Stop the animation. */
export function stop() {
  clearInterval(playing);
  playing = null;
  byId("play").setAttribute("aria-label", "Play");
  byId("play").classList.remove("playing");
}

function play() {
  if (playing !== null) return stop();
  if (last() === 0) return;
  if (step === null) goTo(0);
  byId("play").setAttribute("aria-label", "Pause");
  byId("play").classList.add("playing");
  const pace = Math.max(90, Math.min(900, 15_000 / last()));
  playing = setInterval(() => {
    goTo(current() + 1);
    if (step === null) stop();
  }, pace);
}

/** Handle a key; return whether it was one of the stepper's. */
export function stepKey({ key }) {
  const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  if (!(key in moves)) return false;
  stop();
  goTo(current() + moves[key]);
  return true;
}
