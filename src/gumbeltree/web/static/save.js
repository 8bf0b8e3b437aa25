// Pictures to share. PNGs are painted on a canvas, because the page's policy forbids images from blobs.

import { svg } from "./dom.js";
import { ruler } from "./tree.js";

// properties that a style sheet may set, with their defaults
const SHAPE = {
  "fill": null, "fill-opacity": "1", "stroke": "none", "stroke-width": "1px",
  "stroke-dasharray": "none", "stroke-linecap": "butt", "opacity": "1",
};
const TEXT = {
  "fill": null, "opacity": "1", "font-size": null, "font-weight": "400", "font-style": "normal",
};
const SVG = "http://www.w3.org/2000/svg";
const GAP = 18;
const LINE = 1.45; // height of a line over its font size
const FRAME = 0.9; // seconds
const LAST = 3; // seconds that the whole tree of a film stays
const LONGEST = 40; // merges; films of longer sentences would be huge

function offer(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Characters not allowed in XML. */
const NOT_XML = /[^\t\n\r\x20-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu;

const xml = (text) => text.replace(NOT_XML, "\ufffd");

/** Return a copy with the computed styles as attributes. */
function plain(element) {
  const copy = document.createElementNS(SVG, element.localName);
  if (element.childElementCount === 0) {
    copy.textContent = xml(element.textContent);
  }
  for (const { name, value } of element.attributes) {
    if (!/^(class|style|tabindex|role|aria-.*)$/.test(name)) copy.setAttribute(name, value);
  }
  if (element.localName !== "svg") {
    const style = getComputedStyle(element);
    const own = { g: { opacity: "1" }, text: TEXT }[element.localName] ?? SHAPE;
    for (const [name, usual] of Object.entries(own)) {
      copy.removeAttribute(name);
      const value = style.getPropertyValue(name);
      if (value !== usual) copy.setAttribute(name, value);
    }
    if (element.style.transform) {
      const [x, y] = element.style.transformOrigin.split(" ").map(parseFloat);
      const scale = parseFloat(element.style.transform.slice("scaleY(".length));
      const there = `translate(${x} ${y}) scale(1 ${scale})`;
      copy.setAttribute("transform", `${there} translate(${-x} ${-y})`);
    }
  }
  for (const child of element.children) {
    const seen = getComputedStyle(child);
    if (seen.opacity !== "0" && seen.visibility !== "hidden" && seen.fill !== "transparent") {
      copy.append(plain(child));
    }
  }
  return copy;
}

/** Break a text into lines that fit. */
function wrap(text, size, room) {
  const measure = ruler(size);
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (measure(longer) <= room || !lines.at(-1)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** Return the mark of a key in the legend, drawn from its style on the page. */
function mark(key, x, y) {
  const style = getComputedStyle(key, "::before");
  const [wide, tall] = [parseFloat(style.width), parseFloat(style.height)];
  const [line, below] = [style.borderTopWidth, style.borderBottomWidth].map(parseFloat);
  if (line && !below) {
    const dotted = style.borderTopStyle === "dotted" ? `${line} ${line}` : null;
    return svg("path", {
      d: `M${x} ${y}h${wide}`, stroke: style.borderTopColor, "stroke-width": line,
      "stroke-dasharray": dotted,
    });
  }
  const round = style.borderTopLeftRadius === "50%" ? wide / 2 : 2;
  const box = { x, y: y - tall / 2, width: wide, height: tall, rx: round };
  return svg("rect", below
    ? { ...box, fill: "none", stroke: style.borderTopColor, "stroke-width": line }
    : { ...box, fill: style.backgroundColor });
}

/**
 * Compose a picture on the background of the page.
 *
 * @param shown pictures: SVG elements, one below the other; sentences; heading: model and
 *   prediction; legend: its element
 * @param draw returns the content of a picture
 * @param every whether to include the parts of the legend that are hidden at this step
 */
function composed({ pictures, sentences, heading, legend }, draw = plain, every = false) {
  const sizes = pictures.map((one) => [one.width.baseVal.value, one.height.baseVal.value]);
  const width = Math.ceil(Math.max(320, ...sizes.map(([wide]) => wide)));
  const all = svg("svg", {
    xmlns: SVG, width, "font-family": getComputedStyle(document.body).fontFamily,
  });
  const ground = svg("rect", {
    width, fill: getComputedStyle(pictures[0].closest(".card")).backgroundColor,
  });
  all.append(ground);
  let y = GAP;
  const [ink, quiet] = [document.body, legend].map((one) => getComputedStyle(one).color);
  const write = (text, size, weight, fill) => {
    for (const line of wrap(text, size, width - 2 * GAP)) {
      const place = { x: GAP, y: (y + size).toFixed(1), fill };
      all.append(svg("text", { ...place, "font-size": `${size}px`, "font-weight": weight, text: xml(line) }));
      y += LINE * size;
    }
  };
  for (const sentence of sentences) write(sentence, 16, "400", ink);
  write(heading, 14, "600", ink);
  y += GAP / 2;
  pictures.forEach((one, i) => {
    const caption = one.closest("figure")?.querySelector("figcaption");
    if (caption && sizes.length > 1) write(caption.textContent, 12, "400", quiet);
    const group = svg("g", { transform: `translate(${(width - sizes[i][0]) / 2} ${y})` });
    group.append(draw(one, i));
    all.append(group);
    y += sizes[i][1] + GAP;
  });
  let x = GAP;
  const measure = ruler(12);
  const shown = (kind) => [...legend.querySelectorAll(kind)].filter((one) => every || one.offsetParent);
  for (const key of shown(".key")) {
    const swatch = parseFloat(getComputedStyle(key, "::before").width) + 6;
    const wide = swatch + measure(key.textContent);
    if (x > GAP && x + wide > width - GAP) [x, y] = [GAP, y + 18];
    all.append(
      mark(key, x, y),
      svg("text", {
        x: x + swatch, y: y + 4, "font-size": "12px", fill: quiet, text: xml(key.textContent),
      }),
    );
    x += wide + 14;
  }
  y += 12;
  for (const note of shown("p")) write(note.textContent, 11, "400", quiet);
  const height = Math.ceil(y + GAP / 2);
  for (const one of [all, ground]) one.setAttribute("height", height);
  all.setAttribute("viewBox", `0 0 ${width} ${height}`);
  return all;
}

/** Return the picture as it is shown, without running transitions. */
function drawn(shown) {
  for (const one of shown.pictures) one.classList.add("still");
  try {
    return composed(shown, content);
  } finally {
    for (const one of shown.pictures) one.classList.remove("still");
  }
}

function content(picture) {
  const group = svg("g");
  group.append(...plain(picture).childNodes);
  return group;
}

function writeSvg(all, name) {
  const text = new XMLSerializer().serializeToString(all);
  offer(new Blob([text], { type: "image/svg+xml" }), `${name}.svg`);
}

export function saveSvg(shown, name) {
  writeSvg(drawn(shown), name);
}

/**
 * Save an animation of the merges as SVG.
 *
 * @param trees the pictures that are animated; `shown.pictures` are their elements
 */
export function saveFilm(trees, shown, name) {
  const merges = Math.max(...trees.map((one) => one.trace.order.length));
  if (merges === 0) throw new Error("one word has no merges to animate");
  if (merges > LONGEST) {
    throw new Error(`the film would have ${merges} merges; the page animates at most ${LONGEST}`);
  }
  const total = FRAME * merges + LAST;
  const timed = (frame, step) => {
    const [from, to] = [step * FRAME, step === merges ? total : (step + 1) * FRAME];
    const points = [[0, step === 0 ? 1 : 0], [from, 1], [to, step === merges ? 1 : 0]];
    frame.setAttribute("class", step === merges ? "stays" : "passes");
    frame.append(
      svg("animate", {
        attributeName: "opacity", dur: `${total}s`, repeatCount: "indefinite", calcMode: "discrete",
        values: points.map(([, value]) => value).join(";"),
        keyTimes: points.map(([time]) => (time / total).toFixed(5)).join(";"),
      }),
    );
    return frame;
  };
  const before = trees.map((one) => one.step);
  for (const one of shown.pictures) one.classList.add("still");
  try {
    const all = composed(shown, (_, i) => {
      const frames = svg("g");
      for (let step = 0; step <= merges; step++) {
        trees[i].show(step);
        frames.append(timed(content(shown.pictures[i]), step));
      }
      return frames;
    }, true);
    const text = "@media(prefers-reduced-motion:reduce){.stays{opacity:1!important}.passes{display:none}}";
    all.prepend(svg("style", { text }));
    writeSvg(all, `${name}-film`);
  } finally {
    trees.forEach((one, i) => one.show(before[i]));
    for (const one of shown.pictures) one.classList.remove("still");
  }
}

function shape(element) {
  const path = new Path2D();
  const n = (name) => Number(element.getAttribute(name) ?? 0);
  if (element.localName === "path") return new Path2D(element.getAttribute("d"));
  if (element.localName === "circle") path.arc(n("cx"), n("cy"), n("r"), 0, 2 * Math.PI);
  if (element.localName === "rect") {
    path.roundRect(n("x"), n("y"), n("width"), n("height"), n("rx"));
  }
  return path;
}

function moved(context, transform) {
  for (const [, kind, inside] of transform.matchAll(/(\w+)\(([^)]*)\)/g)) {
    const [a, b = 0, c = 0] = inside.split(/[\s,]+/).map(Number);
    if (kind === "translate") context.translate(a, b);
    if (kind === "scale") context.scale(a, b);
    if (kind === "rotate") {
      context.translate(b, c);
      context.rotate((a * Math.PI) / 180);
      context.translate(-b, -c);
    }
  }
}

function paint(context, element) {
  const has = (name, other) => element.getAttribute(name) ?? other;
  context.save();
  moved(context, has("transform", ""));
  const alpha = context.globalAlpha * Number(has("opacity", 1));
  context.globalAlpha = alpha;
  if (element.localName === "text") {
    const family = element.ownerSVGElement.getAttribute("font-family");
    const weight = has("font-weight", "400");
    context.font = `${has("font-style", "")} ${weight} ${has("font-size")} ${family}`;
    context.textAlign = has("text-anchor", "start") === "middle" ? "center" : "left";
    context.textBaseline = has("dominant-baseline", "") === "central" ? "middle" : "alphabetic";
    context.fillStyle = has("fill", "black");
    context.fillText(element.textContent, Number(has("x", 0)), Number(has("y", 0)));
  } else if (element.childElementCount === 0 && element.localName !== "g") {
    const path = shape(element);
    if (has("fill", "none") !== "none") {
      context.globalAlpha = alpha * Number(has("fill-opacity", 1));
      context.fillStyle = has("fill");
      context.fill(path);
    }
    if (has("stroke", "none") !== "none") {
      context.globalAlpha = alpha;
      context.strokeStyle = has("stroke");
      context.lineWidth = parseFloat(has("stroke-width", 1));
      const dashes = has("stroke-dasharray", "none");
      context.setLineDash(dashes === "none" ? [] : dashes.split(/[\s,]+/).map(parseFloat));
      context.lineCap = has("stroke-linecap", "butt");
      context.stroke(path);
    }
    context.globalAlpha = alpha;
  }
  for (const child of element.children) paint(context, child);
  context.restore();
}

async function png(shown) {
  const all = drawn(shown);
  const [width, height] = ["width", "height"].map((side) => Number(all.getAttribute(side)));
  // larger canvases fail in some browsers
  const scale = Math.min(2, 16_000 / Math.max(width, height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  paint(context, all);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  if (blob === null) throw new Error("this picture is too large for the browser");
  return blob;
}

export async function savePng(shown, name) {
  offer(await png(shown), `${name}.png`);
}

/** Copy the picture to the clipboard. */
export async function copyPng(shown) {
  // the clipboard API needs localhost or https
  if (!navigator.clipboard?.write) throw new Error("this browser cannot copy pictures from here");
  await navigator.clipboard.write([new ClipboardItem({ "image/png": png(shown) })]);
}

export function saveText(text, name, type) {
  offer(new Blob([text], { type }), name);
}
