// Tries a change of one limit on a log. The gateway has another process decide the log's requests, and changes nothing.

import { byId, make, percent, post, whole } from "/page/draw.js";

/** A replay takes longer than other answers. */
const TIMEOUT_MS = 60000;

let limits = [];
let known = null;
let isTrying = false;

/** The logs and the settings that can be tried; without a log there is nothing to show. */
export function showTrials(logs, all) {
  const fingerprint = JSON.stringify([logs, all.map(({ name, settings }) => [name, settings])]);
  if (fingerprint === known) return;
  [limits, known] = [all.filter(({ settings }) => settings !== null), fingerprint];
  byId("try").hidden = logs.length === 0 || limits.length === 0;
  choose(byId("try-log"), logs);
  choose(byId("try-limit"), limits.map(({ name }) => name));
  showSettings();
}

function choose(select, names) {
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => make("option", "", name)));
  if (names.includes(chosen)) select.value = chosen;
}

/** A field for each setting of the chosen limit, filled with what is in force. */
function showSettings() {
  const limit = limits.find(({ name }) => name === byId("try-limit").value);
  byId("try-settings").replaceChildren(...Object.entries(limit?.settings ?? {}).map(([path, value]) => {
    const input = make("input", "");
    [input.name, input.value, input.defaultValue] = [path, value, value];
    [input.required, input.spellcheck] = [true, false];
    return make("label", "", path.startsWith("plans.") ? `plan ${path.slice(6).replace(/\.(\w+)$/, ": $1")}` : path, input);
  }));
}

export function prepareTrials() {
  byId("try-limit").addEventListener("change", showSettings);
  byId("try-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!isTrying) tryOut();
  });
}

async function tryOut() {
  const limit = byId("try-limit").value;
  const changed = [...byId("try-settings").querySelectorAll("input")].filter((input) => input.value !== input.defaultValue);
  const place = byId("try-answer");
  if (changed.length === 0) {
    place.replaceChildren(make("p", "bad", `Nothing is changed: write another value into a setting of ${limit}.`));
    return;
  }
  const set = Object.fromEntries(changed.map((input) => [`limits.${written(limit)}.${input.name}`, input.value.trim()]));
  isTrying = true;
  place.replaceChildren(make("p", "sub", `The requests of ${byId("try-log").value} are decided; that takes a while.`));
  try {
    const headers = { authorization: `Bearer ${byId("try-token").value}` };
    place.replaceChildren(...compared(limit, await post("/v1/replay", { log: byId("try-log").value, set }, headers, TIMEOUT_MS)));
  } catch (error) {
    place.replaceChildren(make("p", "bad", error.message));
  } finally {
    isTrying = false;
  }
}

/** The name of a limit as a part of a path. */
function written(name) {
  return /^[\w\-/:*]+$/.test(name) ? name : JSON.stringify(name);
}

function compared(name, { rules, against, comparison, notes }) {
  const of = (report) => {
    const keys = report.limits.find(({ limit }) => limit === name)?.denied_keys ?? null;
    return [`${whole(report.denied)} (${percent(report.denied, report.offered)})`, keys === null ? "too many to count" : whole(keys)];
  };
  const [today, changed] = [of(against), of(rules)];
  const sums = table(["in the log", "today", "with the change"], [
    ["requests", whole(against.offered), whole(rules.offered)],
    ["denied", today[0], changed[0]],
    [`keys denied by ${name}`, today[1], changed[1]],
  ]);
  const more = comparison.denied_only_here.top;
  const heading = make("p", "verdict", `Requests newly denied: ${whole(comparison.only_first)}, no longer denied: ${whole(comparison.only_second)}`);
  const callers = more.length > 0 ? [make("h3", "", "denied only with the change"), table(["caller", "requests"], more.map(({ who, denied }) => [who, whole(denied)]))] : [];
  return [heading, sums, ...callers, ...notes.map((note) => make("p", "sub", note))];
}

/** Rows of texts: the first column has names, the others numbers. */
function table(titles, rows) {
  const cell = (text, at) => {
    const element = make(at === 0 ? "th" : "td", at === 0 ? "" : "number", text);
    if (at === 0) element.scope = "row";
    return element;
  };
  const title = (text, at) => {
    const element = make("th", at === 0 ? "" : "number", text);
    element.scope = "col";
    return element;
  };
  const body = make("tbody", "", ...rows.map((row) => make("tr", "", ...row.map(cell))));
  return make("table", "", make("thead", "", make("tr", "", ...titles.map(title))), body);
}
