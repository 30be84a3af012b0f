// Asks the gateway, makes elements and keeps them up to date. Whatever comes from the gateway gets onto the page as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** Whether a decision denies a request, by the limit itself or by its ban of the key. */
export const isDenial = (outcome) => outcome === "denied" || outcome === "banned";

/** Asks the gateway a question. */
export async function post(path, question, headers = {}, patienceMs = 10000) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: JSON.stringify(question),
    signal: AbortSignal.timeout(patienceMs),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error ?? `the gateway answers ${response.status}`);
  return answer;
}

/** An element with a class and children: elements, or texts. */
export function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets the text of an element where it is another one, so that a selection survives. */
export function say(element, text, className) {
  const shown = String(text);
  if (element.textContent !== shown) element.textContent = shown;
  if (className !== undefined && element.className !== className) element.className = className;
}

/**
 * Makes the rows of a table follow `items`: `key` tells them apart, `make` makes a row, `update` brings it up to date.
 * Rows that stay are not made anew: what is open, focused or selected in them stays so. Items with the same key are numbered.
 */
export function follow(body, items, key, makeRow, update, nothing) {
  const known = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const times = new Map();
  let place = body.firstElementChild;
  for (const item of items) {
    const same = times.get(key(item)) ?? 0;
    times.set(key(item), same + 1);
    const name = same === 0 ? key(item) : `${key(item)} ${same}`;
    let row = known.get(name);
    known.delete(name);
    if (!row) {
      row = makeRow(item);
      row.dataset.key = name;
    }
    if (row === place) place = place.nextElementSibling;
    else body.insertBefore(row, place);
    update(row, item);
  }
  for (const row of known.values()) row.remove();
  if (items.length === 0 && nothing) {
    const cell = make("td", "", nothing);
    cell.colSpan = 7;
    const row = make("tr", "none", cell);
    row.dataset.key = "\u0000nothing";
    body.append(row);
  }
}

/** A definition list of [term, text, class] in place of what an element held. */
export function facts(list, pairs) {
  const lines = pairs.filter(([, text]) => text !== null && text !== undefined);
  follow(list, lines, ([term]) => term, ([term]) => make("div", "", make("dt", "", term), make("dd", "")), (row, [, text, tone]) => {
    say(row.lastElementChild, text, tone ?? "");
  });
}

/** The picture of a minute: all of it, and the part that stands out. */
export function spark() {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 60 20");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  for (const name of ["all", "part"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", name);
    svg.append(path);
  }
  return svg;
}

export function drawSpark(svg, all, part, label) {
  const most = Math.max(1, ...all);
  svg.children[0].setAttribute("d", steps(all, most));
  svg.children[1].setAttribute("d", steps(part, most));
  svg.setAttribute("aria-label", label);
}

/** A bar for each second, the last one at the right. */
function steps(values, most) {
  const first = 60 - values.length;
  return values
    .map((value, at) => (value > 0 ? `M${first + at} 20v${-Math.max(1, (20 * value) / most).toFixed(2)}h1V20z` : ""))
    .join("");
}

/** A rate, in as many digits as say something. */
export function rate(perSecond) {
  if (perSecond === 0) return "0";
  if (perSecond < 0.05) return "<0.1";
  if (perSecond < 100) return perSecond.toFixed(1);
  return Math.round(perSecond).toLocaleString("en").replaceAll(",", "\u202f");
}

export function whole(number) {
  return number.toLocaleString("en").replaceAll(",", "\u202f");
}

/** `1 route`, `2 routes`; `things` is the plural. */
export function counted(number, things) {
  return `${whole(number)} ${number === 1 ? things.replace(/s$/, "") : things}`;
}

export function percent(part, all) {
  if (!(all > 0) || part === 0) return "0 %";
  const share = (100 * part) / all;
  return share < 1 ? "<1 %" : share > 99 && share < 100 ? ">99 %" : `${Math.round(share)} %`;
}

/** A length of time in its two largest units. */
export function duration(seconds) {
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${Math.round(seconds * 1e3)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const at = units.findIndex(([, length]) => seconds >= length);
  const [large, small] = [units[at], units[at + 1]];
  const rest = Math.floor((seconds % large[1]) / small[1]);
  return `${Math.floor(seconds / large[1])} ${large[0]}${rest > 0 ? ` ${rest} ${small[0]}` : ""}`;
}

export function clockTime(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** The values of a key in one line. */
export function keyLine(parts) {
  if (parts.length === 0) return "all";
  return parts.map(({ part, value }) => value ?? `no ${part}`).join(", ");
}
