// The live page: asks the gateway that serves it every two seconds, and shows what it says.

import { byId, clockTime, counted, drawSpark, duration, facts, follow, isDenial, keyLine, make, percent, rate, say, spark, whole } from "/page/draw.js";
import { prepareQuestions, showDecisions as showDecisionsToAskFor, showLimits as showLimitsToAskFor } from "/page/ask.js";
import { prepareTrials, showTrials } from "/page/try.js";

const EVERY_MS = 2000;
const MAX_ROWS = 100;
const NO_MATCH = "Nothing matches the filter.";

let lastAnswer = null;

async function ask(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(10000) });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

async function update() {
  try {
    const paths = ["status", "limits", "routes", "offenders", "decisions"];
    const [status, limits, routes, offenders, decisions] = await Promise.all(paths.map((path) => ask(`/v1/${path}`)));
    lastAnswer = Date.now();
    showStatus(status);
    showTiles(routes.routes, limits.limits);
    showLimits(limits.limits);
    showRoutes(routes.routes);
    showOffenders(offenders);
    showDecisions(decisions);
    showLimitsToAskFor(limits.limits, status.plans);
    showDecisionsToAskFor(decisions.decisions);
    showTrials(status.replay_logs, limits.limits);
    say(byId("chip-page"), "live", "chip good");
    document.body.dataset.live = "yes";
  } catch (error) {
    const since = lastAnswer ? ` for ${duration((Date.now() - lastAnswer) / 1000)}` : "";
    say(byId("chip-page"), `no answer${since}`, "chip bad");
    document.body.dataset.live = "no";
  }
}

async function keepUpdating() {
  for (;;) {
    if (!document.hidden) await update();
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}

// === what is shown ===

function sum(rows, of) {
  return rows.reduce((all, row) => all + of(row.rates.moment), 0);
}

function showTiles(routes, limits) {
  const requests = sum(routes, (rates) => rates.requests_per_second);
  const denied = sum(routes, (rates) => rates.denied_per_second);
  const failed = sum(routes, (rates) => rates.failed_per_second);
  say(byId("tile-requests"), rate(requests));
  say(byId("tile-denied"), rate(denied), denied > 0 ? "over" : "");
  say(byId("tile-share"), percent(denied, requests), denied > 0 ? "over" : "");
  say(byId("tile-failed"), rate(failed), failed > 0 ? "bad" : "");
  say(byId("tile-keys"), whole(limits.reduce((all, limit) => all + limit.keys, 0)));
}

/** Two series added up; one in which nothing happened is empty. */
function both(one, other) {
  const length = Math.max(one.length, other.length);
  return Array.from({ length }, (_, at) => (one[at] ?? 0) + (other[at] ?? 0));
}

function number(cell, perSecond, tone) {
  say(cell, rate(perSecond), perSecond > 0 ? `number ${tone}` : "number zero");
}

function share(element, part, all) {
  const ratio = all > 0 ? part / all : 0;
  say(element, percent(part, all), `share ${ratio >= 0.5 ? "much" : ratio > 0 ? "some" : "zero"}`);
}

/** Those that the filter lets through, as many as fit on a page. */
function some(rows, kind) {
  const filter = byId("filter").value.trim().toLowerCase();
  const names = (row) => [row.name, ...(row.limits ?? row.routes)];
  const found = rows.filter((row) => names(row).some((name) => name.toLowerCase().includes(filter)));
  const more = byId(`${kind}-more`);
  more.hidden = found.length <= MAX_ROWS;
  say(more, `and ${whole(found.length - MAX_ROWS)} more: filter by name`);
  return found.slice(0, MAX_ROWS);
}

/** A row of empty cells, with `about` below the name in its head. */
function rowOf(...about) {
  const head = make("th", "", make("span", "name"), ...about);
  head.scope = "row";
  const cells = ["sub wide", "number", "number", "number", "spark", "number wide"].map((kind) => make("td", kind));
  cells[3].append(make("span", "share"));
  cells[4].append(spark());
  return make("tr", "", head, ...cells);
}

function showLimits(limits) {
  follow(byId("limits").tBodies[0], some(limits, "limits"), (limit) => limit.name, () => {
    const summary = make("summary", "");
    summary.title = "what each plan gets";
    return rowOf(make("details", "", summary, make("dl", "")), make("div", "unknown bad"));
  }, (row, limit) => {
    const [head, by, admitted, over, shared, picture, keys] = row.children;
    say(head.querySelector(".name"), limit.name);
    const otherwise = limit.over_limit === "denied" ? "" : `, ${limit.over_limit.replace("_", " ")}`;
    say(head.querySelector("summary"), `${limit.algorithm.replaceAll("_", " ")}, ${limit.mode}${otherwise}`);
    facts(head.querySelector("dl"), limit.plans.map(({ plan, terms }) => [plan ?? "everybody", terms]));
    say(by, limit.key.length === 0 ? "one bucket for all" : limit.key.join(" + "));
    const rates = limit.rates.moment;
    const passed = rates.admitted_per_second + rates.delayed_per_second;
    number(admitted, passed, "");
    number(over, rates.over_per_second, "over");
    over.title = `over the limit: ${limit.over_limit}`;
    share(shared.firstElementChild, rates.over_per_second, passed + rates.over_per_second);
    const unknown = rates.unknown_per_second;
    say(head.querySelector(".unknown"), unknown > 0 ? `${rate(unknown)}/s unknown: Redis could not be asked` : "");
    if (unknown > 0 && passed + rates.over_per_second === 0) {
      for (const cell of [admitted, over]) say(cell, "–", "number zero");
      say(shared.firstElementChild, "unknown", "share bad");
    }
    const all = both(limit.series.admitted, limit.series.over);
    drawSpark(picture.firstElementChild, all, limit.series.over, `last minute of ${limit.name}: now ${rate(passed)} admitted and ${rate(rates.over_per_second)} over the limit each second`);
    say(keys, whole(limit.keys), limit.keys >= 0.9 * limit.max_keys ? "number wide bad" : "number wide");
    keys.title = `of at most ${whole(limit.max_keys)}`;
  }, limits.length > 0 ? NO_MATCH : "There are no limits.");
}

function showRoutes(routes) {
  follow(byId("routes").tBodies[0], some(routes, "routes"), (route) => route.name, () => rowOf(make("div", "sub")), (row, route) => {
    const [head, limits, requests, denied, shared, picture, failed] = row.children;
    say(head.querySelector(".name"), route.name);
    const methods = route.methods.length > 0 ? `${route.methods.join(" ")} ` : "";
    say(head.querySelector(".sub"), `${methods}${route.hosts.join(", ")}${route.path} → ${route.upstream}`);
    say(limits, route.limits.length === 0 ? "none" : route.limits.join(", "));
    const rates = route.rates.moment;
    number(requests, rates.requests_per_second, "");
    number(denied, rates.denied_per_second, "over");
    share(shared.firstElementChild, rates.denied_per_second, rates.requests_per_second);
    drawSpark(picture.firstElementChild, route.series.requests, route.series.denied, `last minute of ${route.name}: now ${rate(rates.requests_per_second)} requests and ${rate(rates.denied_per_second)} denied each second`);
    number(failed, rates.failed_per_second, "wide bad");
    failed.classList.add("wide");
  }, routes.length > 0 ? NO_MATCH : "There are no routes.");
}

function showOffenders({ from_seconds, until_seconds, denied, error, offenders }) {
  const time = duration(Math.max(0, until_seconds - from_seconds));
  const bound = error > 0 ? ` Numbers are too high by their error at most; every key with more than ${whole(error)} is here.` : "";
  say(byId("offenders-about"), `${whole(denied)} denied in the last ${time}.${bound}`);
  follow(byId("offenders").tBodies[0], offenders.slice(0, 20), (one) => `${one.limit}\u0000${keyLine(one.key)}`, (one) => {
    const button = make("button", "small", "look up");
    button.type = "button";
    button.setAttribute("aria-label", `look up ${keyLine(one.key)} under ${one.limit}`);
    button.addEventListener("click", () => document.dispatchEvent(new CustomEvent("look-up", { detail: one })));
    // of what may be a secret only the beginning is known
    button.hidden = one.key.some(({ value }) => value === null || /\.\.\.( \(\d+ bytes?\))?$/.test(value));
    const cells = [make("td", "key", keyLine(one.key)), make("td", "", one.limit), make("td", "number"), make("td", "number zero wide"), make("td", "number", button)];
    return make("tr", "", ...cells);
  }, (row, one) => {
    say(row.children[2], whole(one.denied));
    say(row.children[3], one.error > 0 ? whole(one.error) : "exact");
  }, "Nobody was denied.");
}

function showDecisions({ left_out, decisions }) {
  say(byId("decisions-about"), left_out > 0 ? "Denied, banned, delayed, diverted and marked; a sample, where there are many." : "Denied, banned, delayed, diverted and marked.");
  const name = (one) => `${one.timestamp_seconds} ${one.limit} ${keyLine(one.key)}`;
  follow(byId("decisions").tBodies[0], decisions.slice(0, 20), name, (one) => {
    const time = one.wait_seconds ?? one.retry_after_seconds;
    const cells = [
      make("td", "zero time", clockTime(one.timestamp_seconds)),
      make("td", isDenial(one.outcome) ? "over" : "", one.outcome),
      make("td", "key", keyLine(one.key)),
      make("td", "", one.limit),
      make("td", "wide", one.route),
      make("td", "number wide", time === null ? "–" : duration(time)),
    ];
    return make("tr", "", ...cells);
  }, () => {}, "Nothing of the kind yet.");
}

function showStatus(status) {
  const { reload, store, state, upstreams } = status;
  const attempt = reload.last_attempt;
  const refused = attempt.result === "refused";
  say(byId("version"), status.version);
  say(byId("chip-config"), refused ? "new configuration refused" : `configuration ${status.config_hash.slice(0, 8)}`, refused ? "chip bad" : "chip good");
  const breaker = store.breaker;
  byId("chip-store").hidden = breaker === undefined;
  if (breaker !== undefined) {
    const words = { closed: "Redis answers", open: "Redis is unavailable", half_open: "Redis is tried again" };
    say(byId("chip-store"), words[breaker] ?? breaker, breaker === "closed" ? "chip good" : "chip bad");
  }
  const nodes = upstreams.flatMap((upstream) => upstream.nodes);
  const healthy = nodes.filter((node) => node.healthy && !node.ejected).length;
  say(byId("chip-nodes"), `${healthy} of ${nodes.length} nodes healthy`, healthy === nodes.length ? "chip good" : healthy > 0 ? "chip warn" : "chip bad");
  say(byId("chip-uptime"), status.stopping ? "stopping" : `up ${duration(status.uptime_seconds)}`);

  const age = (seconds) => `${duration(Math.max(0, status.timestamp_seconds - seconds))} ago`;
  facts(byId("about-config"), [
    ["in force", `${status.config_hash.slice(0, 16)}, since ${age(reload.in_force_since_seconds)}`],
    ["last read", `${attempt.result} (${attempt.trigger}), ${age(attempt.timestamp_seconds)}`, refused ? "bad" : ""],
    ["holds", ["routes", "limits", "plans"].map((things) => counted(status[things].length, things)).join(", ")],
    ["credentials", status.credentials === null ? "not counted" : whole(status.credentials)],
  ]);
  const lines = [...(attempt.errors ?? []), ...(attempt.warnings ?? [])].slice(0, 20).map((text, at) => ({ text, at }));
  follow(byId("config-lines"), lines, ({ at }) => String(at), () => make("li", refused ? "bad" : ""), (line, { text }) => say(line, text, refused ? "bad" : ""));
  const saved = state.last_snapshot;
  const cluster = status.cluster;
  const lost = (cluster?.peers ?? []).filter((peer) => !peer.reachable).map((peer) => peer.address);
  byId("chip-cluster").hidden = !cluster;
  say(byId("chip-cluster"), lost.length > 0 ? `${lost.length} ${lost.length === 1 ? "gateway" : "gateways"} not reachable` : "all gateways reachable", lost.length > 0 ? "chip bad" : "chip good");
  facts(byId("about-store"), [
    ["Redis", breaker === undefined ? "not configured" : breaker.replace("_", " "), breaker === "open" ? "bad" : ""],
    ["gateways", breaker === undefined ? null : `${store.nodes} share limits`],
    ["taken ahead", breaker === undefined ? null : `${whole(store.leased_tokens)} tokens`],
    ["overshoot", breaker === undefined ? null : `${whole(store.overshoot_tokens)} tokens in outages`],
    ["cluster", cluster ? `${cluster.standing}, ${cluster.members.length} members, ring ${cluster.ring.slice(0, 8)}` : null],
    ["not reachable", lost.length > 0 ? lost.join(", ") : null, "bad"],
    ["state file", state.file ?? "none: a restart forgets"],
    ["written", saved ? `${age(saved.timestamp_seconds)}, ${whole(saved.keys)} keys` : null],
    ["error", state.last_error, "bad"],
    ["changes", status.takes_changes ? "with the token" : "none: there is no token"],
  ]);
  facts(byId("about-upstreams"), upstreams.map((upstream) => {
    const named = (node) => `${node.resolved ?? node.address}${node.healthy ? " (ejected)" : ""}`;
    const away = upstream.nodes.filter((node) => !node.healthy || node.ejected).map(named);
    const words = away.length === 0 ? `${upstream.nodes.length} healthy` : `${away.join(", ")} of ${upstream.nodes.length} not healthy`;
    return [upstream.name, words, away.length > 0 ? "bad" : ""];
  }));
}

byId("filter").addEventListener("input", update);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) update();
});
prepareQuestions();
prepareTrials();
keepUpdating();
