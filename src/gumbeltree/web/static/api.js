// Requests to the server, repeated while it is busy or unreachable.

/** An error response. */
export class Refusal extends Error {}

// status of a proxy whose server is down
const AWAY = new Set([502]);
const PATIENCE = 3000; // milliseconds without a response until the server counts as hung
let listener = () => {};
let coming = null;
const hung = new Set(); // requests without a response other than that the server is busy
let said = true;

/** Call `heard(false)` when the server stops responding and `heard(true)` when it is back. */
export function onConnection(heard) {
  listener = heard;
}

function report() {
  const here = coming === null && hung.size === 0;
  if (here !== said) listener((said = here));
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, 1000 * seconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Fetch, and report the server as hung while no response comes; `request` identifies retries. */
async function patiently(path, options, patience, request) {
  const timer = setTimeout(() => {
    hung.add(request);
    report();
  }, patience);
  try {
    const answer = await fetch(path, options);
    if (answer.status !== 503) hung.clear();
    // a server whose models are stuck refuses further requests
    else if (hung.size) hung.add(request);
    return answer;
  } finally {
    clearTimeout(timer);
    report();
  }
}

/** Wait until the server responds; all callers share one request at a time. */
function back() {
  coming ??= (async () => {
    for (let wait = 0.5; ; wait = Math.min(5, 1.5 * wait)) {
      await pause(wait);
      try {
        const signal = AbortSignal.timeout(PATIENCE);
        const answer = await fetch("api/models", { cache: "no-store", signal });
        if (!AWAY.has(answer.status)) break;
      } catch {
        // still unreachable
      }
    }
    coming = null;
    report();
  })();
  report();
  return coming;
}

function abortable(promise, signal) {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) return stop();
    signal.addEventListener("abort", stop, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}

function reason(detail, status) {
  if (typeof detail === "string") return detail;
  if (Array.isArray(detail)) return detail.map((item) => item.msg ?? "").join("; ");
  return `the server responded with status ${status}`;
}

/** Return the JSON at `path`; a `body` is sent as a POST request. */
export async function ask(path, body, signal) {
  const options = { signal };
  if (body !== undefined) {
    options.method = "POST";
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  // sampling many trees may take long
  const patience = body?.samples ? 5 * PATIENCE : PATIENCE;
  const request = {};
  try {
    return await persist(path, options, patience, request);
  } finally {
    const forget = () => {
      hung.delete(request);
      report();
    };
    // a hung request that is cancelled counts until the one that replaces it had its time
    if (signal?.aborted && hung.has(request)) setTimeout(forget, 1.2 * patience);
    else forget();
  }
}

/** Return the JSON of a response, after as many retries as it takes. */
async function persist(path, options, patience, request) {
  const { signal } = options;
  for (;;) {
    let answer;
    let content = null;
    try {
      answer = await patiently(path, options, patience, request);
      if (!AWAY.has(answer.status)) content = await answer.json().catch(() => null);
    } catch (error) {
      if (signal?.aborted) throw error;
      answer = null;
    }
    if (signal?.aborted) throw signal.reason;
    if (answer === null || AWAY.has(answer.status)) {
      await abortable(back(), signal);
    } else if (answer.status === 503) {
      const seconds = Number(answer.headers.get("Retry-After"));
      await pause(seconds > 0 ? Math.min(seconds, 30) : 1, signal);
    } else if (!answer.ok || content === null) {
      throw new Refusal(reason(content?.detail, answer.status));
    } else {
      return content;
    }
  }
}
