// Questions about one customer, or about one key: named by its parts, or by a request.

import { byId, clockTime, duration, isDenial, keyLine, make, post, whole } from "/page/draw.js";

let limits = [];
let shownFingerprint = null;
let decisions = [];

/** The limits and plans that can be asked about. */
export function showLimits(known, plans) {
  const fingerprint = JSON.stringify([known.map((limit) => [limit.name, limit.key, limit.plans]), plans]);
  if (fingerprint === shownFingerprint) return;
  const chosen = byId("key-limit").value;
  [limits, shownFingerprint] = [known, fingerprint];
  options(byId("key-limit"), known.map((limit) => [limit.name, limit.name]));
  if (known.some((limit) => limit.name === chosen)) byId("key-limit").value = chosen;
  for (const select of [byId("key-plan"), byId("customer-plan")]) {
    options(select, [["", "that of the customer"], ...plans.map((plan) => [plan, plan])]);
  }
  byId("customer-plan-label").hidden = !byCustomer().some(hasSeveralPlans);
  showParts();
}

/** The last decisions, the newest first; customers among them are offered by name. */
export function showDecisions(known) {
  decisions = known;
  const names = [...new Set(known.map(customerOf).filter((name) => name !== undefined))];
  options(byId("customer-names"), names.map((name) => [name, name]));
}

/** The customer that a decision was about, if its limit counts by customer. */
function customerOf({ key }) {
  return key.find(({ part }) => part === "customer")?.value;
}

function options(select, pairs) {
  select.replaceChildren(...pairs.map(([value, text]) => {
    const option = make("option", "", text);
    option.value = value;
    return option;
  }));
}

/** The limits that count by customer alone. */
function byCustomer() {
  return limits.filter(({ key }) => key.length === 1 && key[0] === "customer");
}

function hasSeveralPlans({ plans }) {
  return plans.length > 1;
}

/** A field for each part of the chosen limit's key. */
function showParts() {
  const limit = limits.find((one) => one.name === byId("key-limit").value);
  const parts = limit?.key ?? [];
  byId("key-parts").replaceChildren(...parts.map((part) => {
    const input = make("input", "");
    input.required = true;
    input.name = part;
    input.spellcheck = false;
    return make("label", "", part, " ", input);
  }));
  byId("key-plan-label").hidden = !limit || !hasSeveralPlans(limit);
}

export function prepareQuestions() {
  byId("key-limit").addEventListener("change", showParts);
  byId("customer-form").addEventListener("submit", (event) => {
    event.preventDefault();
    findCustomer();
  });
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    lookUp();
  });
  byId("request-form").addEventListener("submit", (event) => {
    event.preventDefault();
    explain();
  });
  document.addEventListener("look-up", ({ detail }) => {
    byId("key-limit").value = detail.limit;
    byId("key-plan").value = "";
    showParts();
    for (const { part, value } of detail.key) {
      const input = [...byId("key-parts").querySelectorAll("input")].find((one) => one.name === part);
      if (input) input.value = value ?? "";
    }
    byId("ask").scrollIntoView({ block: "start" });
    lookUp();
  });
}

async function show(question) {
  const place = byId("answer");
  try {
    place.replaceChildren(...(await question()));
  } catch (error) {
    place.replaceChildren(make("p", "bad", error.message));
  }
}

/** The answer about a key. A gateway that cannot tell its plan is asked again, with the plan of the newest decision about it. */
async function peek(question) {
  try {
    return await post("/v1/keys/peek", question);
  } catch (error) {
    const isAbout = ({ limit, key }) => (limit === question.limit || "customer" in question.key)
      && Object.entries(question.key).every(([name, text]) => key.some(({ part, value }) => part === name && value === text));
    const plan = decisions.find(isAbout)?.plan;
    if (question.plan || !plan) throw error;
    return post("/v1/keys/peek", { ...question, plan });
  }
}

function lookUp() {
  return show(async () => {
    const key = {};
    for (const input of byId("key-parts").querySelectorAll("input")) key[input.name] = input.value.trim();
    const plan = byId("key-plan-label").hidden ? "" : byId("key-plan").value;
    const answer = await peek({ limit: byId("key-limit").value, key, ...(plan ? { plan } : {}) });
    return [make("p", "verdict", make("span", "key", keyLine(answer.key)), ` under ${answer.limit}`), ...lookedUp(answer)];
  });
}

function lookedUp(answer) {
  const plans = answer.plan ? `, plan ${answer.plan}` : "";
  return [make("p", "sub", `${answer.terms}${plans}; known from: ${answer.decided.replace("_", " ")}`), standing(answer, answer.quota)];
}

/** Where a customer stands under the limits that count by customer alone, and why its last requests were not simply admitted. */
function findCustomer() {
  return show(async () => {
    const customer = byId("customer-name").value.trim();
    const plan = byId("customer-plan").value;
    const blocks = await Promise.all(byCustomer().map(async ({ name }) => {
      const question = { limit: name, key: { customer }, ...(plan ? { plan } : {}) };
      const about = await peek(question).then(lookedUp, (error) => [make("p", "sub", error.message)]);
      return make("div", "limit applies", make("p", "", make("b", "", name)), ...about);
    }));
    const last = decisions.filter((one) => customerOf(one) === customer).slice(0, 5).map((one) => {
      const time = one.wait_seconds ?? one.retry_after_seconds;
      const wait = time === null ? "" : isDenial(one.outcome) ? `, again in ${duration(time)}` : `, for ${duration(time)}`;
      return make("p", "", `${clockTime(one.timestamp_seconds)} `, make("b", isDenial(one.outcome) ? "over" : "", one.outcome), ` by ${one.limit} on ${one.route}${wait}`);
    });
    const nothing = make("p", "sub", "None of the last decisions that are kept was a denial, a delay, a diversion or a mark of this customer.");
    return [make("p", "verdict", make("span", "key", customer)), ...blocks, ...(last.length > 0 ? last : [nothing])];
  });
}

function explain() {
  return show(async () => {
    const headers = {};
    for (const line of byId("request-headers").value.split("\n").filter((text) => text.trim() !== "")) {
      const colon = line.indexOf(":");
      if (colon < 1) throw new Error(`a header field is written name: value, not ${line}`);
      const name = line.slice(0, colon).trim();
      headers[name] = [...(headers[name] ?? []), line.slice(colon + 1).trim()];
    }
    const [client, body] = [byId("request-client").value.trim(), byId("request-body").value];
    const question = { method: byId("request-method").value.trim(), url: byId("request-url").value.trim(), headers };
    return explained(await post("/v1/explain", { ...question, ...(client ? { client } : {}), ...(body.trim() ? { body } : {}) }));
  });
}

function explained({ request, route, caller, bypassed, upstream, limits: met, answer, now }) {
  const lines = [];
  const outcome = answer ? `answered ${answer.status} by tollgate: ${answer.detail}` : now?.outcome;
  if (outcome) lines.push(make("p", answer || isDenial(outcome) ? "verdict over" : "verdict pass", outcome));
  if (request) lines.push(make("p", "key", `${request.method} ${request.host}${request.path} from ${request.client ?? "an unknown address"}`));
  if (route) lines.push(make("p", "", `route ${route.name ?? "none"}`, make("span", "sub", ` ${route.because.join(", ")}`)));
  if (caller) {
    const who = caller.customer ? `customer ${caller.customer}` : "nobody known";
    const shown = caller.credential ? ` ${caller.credential_place}: ${caller.credential}` : " no credential";
    const groups = (caller.groups ?? []).map(({ level, group }) => `, ${level} ${group}`).join("");
    lines.push(make("p", "", `${who}${groups}${caller.plan ? `, plan ${caller.plan}` : ""}`, make("span", "sub", shown)));
  }
  if (upstream && !answer) lines.push(make("p", "", `to ${upstream.name}${upstream.path}`, make("span", "sub", ` ${upstream.nodes.join(", ")}`)));
  if (bypassed) lines.push(make("p", "", `exempt ${bypassed}`));
  for (const limit of met) {
    const denies = limit.banned_for_seconds !== undefined || limit.standing?.decision === "denied";
    const block = make("div", limit.applies ? `limit applies${denies ? " denies" : ""}` : "limit", make("p", "", make("b", "", limit.limit), make("span", "sub", ` ${limit.algorithm.replaceAll("_", " ")}`)));
    if (limit.applies) {
      block.append(make("p", "", `${limit.terms}; ${limit.why}`));
      block.append(make("p", "", "key ", make("span", "key", keyLine(limit.key)), `, costs ${limit.cost}${limit.cost_rule ? ` (${limit.cost_rule})` : ""}`));
      if (limit.standing) block.append(standing(limit, null));
    } else {
      block.append(make("p", "sub", limit.why));
    }
    lines.push(block);
  }
  return lines;
}

/** Where a key stands, in a picture where there is a number, and in words. A refusal and a ban count before the limit's decision. */
function standing({ standing: state, banned_for_seconds: banned, refused }, quota) {
  const instead = refused ?? (banned === undefined ? undefined : "banned");
  const now = instead ? { ...state, decision: instead, wait_seconds: null, retry_after_seconds: refused ? null : banned } : state;
  const line = make("p", "");
  const words = {
    admitted: ["would be admitted", "pass"],
    delayed: ["would wait", ""],
    denied: ["would be denied", "over"],
    banned: ["is banned", "over"],
    suspended: ["is suspended: every request is answered 403", "over"],
    credential_expired: ["has no key that is still valid: every request is answered 401", "over"],
  };
  const [text, tone] = words[now.decision] ?? [now.decision, ""];
  line.append(make("b", tone, text));
  if (now.wait_seconds !== null) line.append(` for ${duration(now.wait_seconds)}`);
  if (now.retry_after_seconds !== null) line.append(`, again in ${duration(now.retry_after_seconds)}`);
  if (now.remaining !== null) {
    line.append(`; ${whole(now.remaining)} left`);
    if (quota !== null) {
      const meter = make("meter", "");
      [meter.max, meter.value] = [quota, Math.min(now.remaining, quota)];
      meter.setAttribute("aria-label", `${now.remaining} of ${quota} left`);
      line.append(` of ${whole(quota)} `, meter);
    }
  }
  if (now.more_in_seconds === null) line.append("; nobody knows what is used while Redis is unavailable");
  else if (now.full_in_seconds === null) line.append("; comes back when requests end");
  else if (now.full_in_seconds > 0) line.append(`; full again in ${duration(now.full_in_seconds)}`);
  else line.append("; nothing is used");
  return line;
}
