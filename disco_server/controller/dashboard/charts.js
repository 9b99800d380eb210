// Small charts as SVG. Everything is set as attributes and text, nothing as markup.

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function titled(text) {
  const title = svg("title", {});
  title.textContent = text;
  return title;
}

/** A square for each slot of a node, filled where it is used. */
export function slots(used, total) {
  const shown = Math.min(total, 64);
  const image = svg("svg", { width: shown * 12, height: 12, role: "img", "aria-label": `${used} of ${total} used` });
  image.append(titled(`${used} of ${total} used`));
  for (let at = 0; at < shown; at += 1) {
    image.append(svg("rect", { class: at < used ? "slot used" : "slot", x: at * 12 + 1, y: 1, width: 9, height: 9 }));
  }
  return image;
}

/** The values of the last minute as a line from nothing to their greatest. */
export function spark(values, describe) {
  const width = 110, height = 22, most = Math.max(...values, 1e-9);
  const last = values.length ? describe(values.at(-1)) : "nothing yet";
  const text = `now ${last}, at most ${describe(values.length ? Math.max(...values) : 0)}`;
  const points = values.map((value, at) => {
    const x = width - (values.length - 1 - at) * (width / 59);
    return `${x.toFixed(1)},${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`;
  });
  return svg("svg", { width, height, role: "img", "aria-label": text }, titled(text), svg("polyline", { class: "spark", points: points.join(" ") }));
}

const LEFT = 64, LANE = 26, GAP = 6, WIDTH = 1000;

function shares(values, y, height, kind) {
  const step = WIDTH / values.length;
  return values.flatMap((share, at) => {
    if (share <= 0) return [];
    const tall = Math.max(share * height, 1);
    return [svg("rect", { class: kind, x: (LEFT + at * step).toFixed(2), y: (y + height - tall).toFixed(2), width: step.toFixed(2), height: tall.toFixed(2) })];
  });
}

/** What each rank did in the last seconds: how much of each part went into what. */
export function timeline(ranks, seconds, time) {
  const height = ranks.length * (LANE + GAP) + 18;
  const image = svg("svg", { viewBox: `0 0 ${LEFT + WIDTH + 4} ${height}`, width: "100%", role: "img", "aria-label": `the last ${seconds} seconds of ${ranks.length} ranks` });
  ranks.forEach((rank, row) => {
    const y = row * (LANE + GAP);
    const label = svg("text", { x: 0, y: y + LANE / 2 + 4 });
    label.textContent = `rank ${rank.worker}`;
    image.append(label, svg("rect", { class: "lane", x: LEFT, y, width: WIDTH, height: LANE }));
    image.append(...shares(rank.busy, y, LANE, "busy"));
    // Waiting lies below moving, and both within the commands in which they happen.
    const inside = rank.wait.map((share, at) => Math.min(share + rank.collective[at], 1));
    image.append(...shares(inside, y, LANE, "move"));
    image.append(...shares(rank.wait, y, LANE, "wait"));
    for (const command of rank.longest) {
      const from = Math.max(LEFT + WIDTH * (1 - command.ago / seconds), LEFT);
      const to = LEFT + WIDTH * (1 - Math.max(command.ago - command.seconds, 0) / seconds);
      const area = svg("rect", { x: from.toFixed(2), y, width: Math.max(to - from, 2).toFixed(2), height: LANE, "fill-opacity": 0 });
      area.append(titled(`${command.what} (#${command.seq}), ${command.running ? "for" : "took"} ${time(command.seconds)}`));
      image.append(area);
    }
  });
  for (let ago = seconds; ago >= 0; ago -= seconds / 5) {
    const mark = svg("text", { x: LEFT + WIDTH * (1 - ago / seconds), y: height - 3, "text-anchor": ago ? (ago === seconds ? "start" : "middle") : "end" });
    mark.textContent = ago ? `${ago} s ago` : "now";
    image.append(mark);
  }
  return image;
}
