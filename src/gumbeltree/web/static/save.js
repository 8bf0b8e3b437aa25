// Downloads. PNGs are painted on a canvas, because the page's policy forbids images from blobs.

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

function offer(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Characters not allowed in XML. */
const NOT_XML = /[^\t\n\r\x20-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu;

/** Return a copy with the computed styles as attributes. */
function plain(element) {
  const copy = document.createElementNS(SVG, element.localName);
  if (element.childElementCount === 0) {
    copy.textContent = element.textContent.replace(NOT_XML, "\ufffd");
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

/** Stack pictures vertically on the background of the page. */
function stacked(pictures) {
  const sizes = pictures.map((one) => [one.width.baseVal.value, one.height.baseVal.value]);
  const width = Math.ceil(Math.max(...sizes.map(([wide]) => wide)));
  const height = Math.ceil(sizes.reduce((sum, [, tall]) => sum + tall + GAP, GAP));
  const all = document.createElementNS(SVG, "svg");
  all.setAttribute("xmlns", SVG);
  all.setAttribute("width", width);
  all.setAttribute("height", height);
  all.setAttribute("font-family", getComputedStyle(document.body).fontFamily);
  all.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const ground = document.createElementNS(SVG, "rect");
  ground.setAttribute("width", width);
  ground.setAttribute("height", height);
  ground.setAttribute("fill", getComputedStyle(pictures[0].closest(".card")).backgroundColor);
  all.append(ground);
  let y = GAP;
  pictures.forEach((one, i) => {
    const group = document.createElementNS(SVG, "g");
    group.setAttribute("transform", `translate(${(width - sizes[i][0]) / 2} ${y})`);
    group.append(...plain(one).childNodes);
    all.append(group);
    y += sizes[i][1] + GAP;
  });
  return all;
}

export function saveSvg(pictures, name) {
  const text = new XMLSerializer().serializeToString(stacked(pictures));
  offer(new Blob([text], { type: "image/svg+xml" }), `${name}.svg`);
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

export async function savePng(pictures, name) {
  const all = stacked(pictures);
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
  offer(blob, `${name}.png`);
}

export function saveText(text, name, type) {
  offer(new Blob([text], { type }), name);
}
