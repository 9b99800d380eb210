// Small charts as SVG. Everything is set as attributes and text, nothing as markup.

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function titled(text) {
  const title = svg("title", {});
  title.textContent = text;
  return title;
}

function image(width, height, text, ...children) {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": text }, titled(text), ...children);
}

/** A square for each slot of a node, filled where it is used. */
export function slots(used, total) {
  const shown = Math.min(total, 32), line = 8, text = `${used} of ${total} used`;
  const squares = Array.from({ length: shown }, (_, at) => {
    const place = { x: (at % line) * 12 + 1, y: Math.floor(at / line) * 12 + 1, width: 9, height: 9 };
    return svg("rect", { class: at < Math.ceil((used * shown) / total) ? "slot used" : "slot", ...place });
  });
  return image(Math.min(shown, line) * 12, Math.max(Math.ceil(shown / line), 1) * 12, text, ...squares);
}

/** A line through values, with gaps where there are none. */
function line(values, width, height, most) {
  const step = width / Math.max(values.length - 1, 1);
  let pen = "M", path = "";
  values.forEach((value, at) => {
    if (value === null || value === undefined) { pen = "M"; return; }
    const x = (at * step).toFixed(1), y = (height - 1 - (Math.min(value / most, 1)) * (height - 2)).toFixed(1);
    const alone = pen === "M" && (values[at + 1] === null || values[at + 1] === undefined);
    path += `${pen}${x},${y}${alone ? `h${step.toFixed(1)}` : ""}`;
    pen = "L";
  });
  return path;
}

/**
 * Values over time as a line, between nothing and their greatest, or a greatest that is given.
 * `more` is a second line in the same measure.
 */
export function spark(values, describe, { most = 0, more = null, width = 96, height = 22, name = "" } = {}) {
  const known = [...values, ...(more ?? [])].filter((value) => value !== null && value !== undefined);
  const top = Math.max(...known, most, 1e-9);
  const last = values.findLast((value) => value !== null && value !== undefined);
  const text = known.length ? `${name && `${name}: `}now ${describe(last)}, at most ${describe(Math.max(...known))}` : `${name && `${name}: `}nothing yet`;
  const lines = [svg("path", { class: "spark", d: line(values, width, height, top) })];
  if (more) lines.push(svg("path", { class: "spark second", d: line(more, width, height, top) }));
  return image(width, height, text, ...lines);
}

/** The same, as wide as its place, with what it says above and the time below. */
export function chart(name, values, describe, options = {}) {
  const figure = document.createElement("figure"), caption = document.createElement("figcaption");
  const drawn = spark(values, describe, { ...options, name, width: 600, height: 90 });
  drawn.setAttribute("preserveAspectRatio", "none");
  drawn.removeAttribute("width");
  caption.append(drawn.getAttribute("aria-label"));
  const axis = document.createElement("div");
  axis.className = "axis";
  const minutes = Math.round(options.seconds / 60);
  for (const text of [`${minutes} min ago`, `${Math.round(minutes / 2)} min`, "now"]) axis.append(Object.assign(document.createElement("span"), { textContent: text }));
  figure.append(caption, drawn, axis);
  return figure;
}
