//! The settings of limits, beside the parameters that each algorithm declares.

use super::{Kind, Presence, Setting, Table};

const COST: Kind = Kind::Whole(0, u64::MAX);
const MOST: Kind = Kind::Whole(1, u64::MAX);
const ONE_BYTE_OR_MORE: Kind = Kind::Size(1, u64::MAX);

/// A part of a key.
pub(in crate::config) const KEY_PART: Kind = Kind::OneOf(&[
    Kind::Choice(&["customer", "plan", "client_address", "host", "route", "route_pattern", "method", "upstream_node"]),
    Kind::Section(&NAMED_PART),
]);

const FIELD_PATH: Kind = Kind::Text("the names on the way to a field in JSON, like `params.name`");

pub(in crate::config) static NAMED_PART: Table = Table {
    name: "key_part",
    settings: &[
        Setting::optional("header", Kind::Text("the name of a header field"), "The value of a header field."),
        Setting::optional("query", Kind::Text("the name of a query parameter"), "The value of a query parameter."),
        Setting::optional("cookie", Kind::Text("the name of a cookie"), "The value of a cookie."),
        Setting::optional(
            "path_segment",
            Kind::Text("the name of a segment, like `tenant`"),
            "The segment of the path that the route's `match.path` names: `/v1/{tenant}/**`.",
        ),
        Setting::optional("jwt_claim", Kind::Text("the name of a claim, like `sub`"), "A claim of the caller's token."),
        Setting::optional(
            "group",
            Kind::Text("a level of `customers.groups`, like `organisation`"),
            "The caller's group of a level.",
        ),
        Setting::optional(
            "request_field",
            FIELD_PATH,
            "What a field in the JSON of the request's body says: a text, or a whole number.",
        ),
        Setting::optional(
            "descriptor",
            Kind::Text("the key of an entry, like `remote_address`"),
            "The value of an entry of a descriptor, under `domains`.",
        ),
        Setting::default(
            "repeated",
            Kind::Choice(&["deny", "first", "last"]),
            "deny",
            "What becomes of a request that carries it more than once: refused with 400, or one of the values counts.",
        ),
    ],
};

pub(in crate::config) static BAN: Table = Table {
    name: "ban",
    settings: &[
        Setting::required(
            "after",
            Kind::Text("a number of denials in a length of time, like `20 denials in 1m`"),
            "How often the limit denies a key before it is banned; counted from the first denial on, and anew after the time.",
        ),
        Setting::required("for", Kind::POSITIVE, "How long all requests of the key are denied then."),
    ],
};

pub(in crate::config) static REQUEST_OVERRIDE: Table = Table {
    name: "request_override",
    settings: &[
        Setting::optional(
            "jwt_claim",
            Kind::Text("the name of a claim, like `rate`"),
            "A claim of the caller's token says it.",
        ),
        Setting::optional(
            "header",
            Kind::Text("the name of a header field"),
            "A header field says it that one of `client_address.trusted_proxies` wrote.",
        ),
        Setting::optional("min", A_NUMBER, "The least that is believed; left out, 1, or any rate."),
        Setting::required("max", A_NUMBER, "The most that is believed."),
    ],
};

const REQUEST_OVERRIDES: Kind = Kind::Named("parameter", &Kind::Section(&REQUEST_OVERRIDE));
const A_NUMBER: Kind = Kind::OneOf(&[MOST, Kind::Text("a rate, like `100/s`")]);

/// The settings of every limit, whatever its algorithm.
pub(in crate::config) static LIMIT: Table = Table {
    name: "limit",
    settings: &[
        Setting {
            name: "algorithm",
            kind: Kind::Text("the name of an algorithm"),
            presence: Presence::Required,
            about: "How it decides; docs/algorithms.md compares them.",
        },
        Setting::required(
            "key",
            Kind::OneOf(&[Kind::Choice(&["all"]), KEY_PART, Kind::List(&KEY_PART)]),
            "What it counts by. `all` is one count for everybody.",
        ),
        Setting::optional(
            "windows",
            Kind::List(&Kind::Parameters(&WINDOW)),
            "Several windows, like `{limit: 10, window: 1s}`, of which a request has to fit into all; see docs/guide.md.",
        ),
        Setting::default(
            "mode",
            Kind::Choice(&["sticky", "shared"]),
            "sticky",
            "Where its counts are: in one gateway (with `cluster`, each key's owner), or in the `store`.",
        ),
        Setting::default(
            "consistency",
            Kind::Choice(&["exact", "leased", "eventual"]),
            "exact",
            "Who decides under `mode: shared`; docs/shared.md has the bounds.",
        ),
        Setting::default(
            "strict",
            Kind::Flag,
            "false",
            "Whether `leased` stays within the limit, for a smaller burst.",
        ),
        Setting::default(
            "on_store_down",
            Kind::Choice(&["divide", "local", "allow", "deny"]),
            "divide",
            "What holds while Redis is unavailable: each gateway enforces its part, each enforces all of it, or neither.",
        ),
        Setting::optional(
            "plans",
            Kind::Named("plan", &Kind::OneOf(&[Kind::Choice(&["unlimited"]), Kind::Parameters(&[])])),
            "Parameters of a plan, in place of the limit's own; `unlimited` puts no limit on it.",
        ),
        Setting::optional(
            "request_overrides",
            REQUEST_OVERRIDES,
            "Parameters that requests bring along, in place of their plan's: a rate, or a whole number like `burst`.",
        ),
        Setting::default(
            "cost",
            Kind::OneOf(&[MOST, Kind::Section(&COST_RULE)]),
            "1",
            "What a request takes: a number, or where it is told.",
        ),
        Setting::optional("charge", Kind::Section(&CHARGE), "When it is taken, and from whom."),
        Setting::default(
            "missing_key",
            Kind::Choice(&["deny", "shared_bucket", "skip"]),
            "shared_bucket",
            "What becomes of a request that lacks a part of the key: refused, one count for all such, or not limited.",
        ),
        Setting::default(
            "over_limit",
            Kind::OneOf(&[Kind::Choice(&["deny"]), Kind::Section(&OVER_LIMIT)]),
            "deny",
            "What becomes of a request over the limit.",
        ),
        Setting::optional(
            "warn_at",
            Kind::List(&Kind::Whole(1, 99)),
            "From which shares of the quota on, in percent, clients are warned: up to four, rising.",
        ),
        Setting::optional(
            "quota_unit",
            Kind::Text("a word, like `tokens`"),
            "What the quota counts, for clients: `qu` of `RateLimit-Policy`. Left out, it follows from `algorithm` and `cost` where the draft has a word for it.",
        ),
        Setting::optional("ban", Kind::Section(&BAN), "Denies a key altogether that is denied again and again."),
        Setting::optional(
            "priority",
            Kind::Named("plan", &Kind::Whole(1, 100)),
            "The percent of the room that requests of a plan may use, so that they are denied before those of other plans.",
        ),
        Setting::default(
            "max_keys",
            MOST,
            "1000000",
            "How many keys have counts of their own; new ones beyond share one.",
        ),
        Setting::default(
            "on_change",
            Kind::Choice(&["carry", "reset"]),
            "carry",
            "Whether keys keep what they have used when a reload changes the parameters. `reset` is for sticky limits.",
        ),
        Setting::default("shadow", Kind::Flag, "false", "Whether it counts and never acts."),
        Setting::default(
            "headers",
            Kind::Choice(&["shown", "hidden"]),
            "shown",
            "Whether answers name it: in the fields that say where clients stand, in the problem of a denial, and in `usage`.",
        ),
        Setting::default(
            "enabled_percent",
            Kind::Text("a share of the keys in percent, like `12.5`"),
            "100",
            "The share of its keys that it applies to, the same ones on every gateway.",
        ),
        Setting::optional("candidate", Kind::Parameters(&CANDIDATE), "Parameters that are tried out beside its own."),
    ],
};

/// The settings of a window beside its parameters.
pub(in crate::config) const WINDOW: [Setting; 3] = [
    Setting::optional(
        "plans",
        Kind::Named("plan", &Kind::OneOf(&[Kind::Choice(&["unlimited"]), Kind::Parameters(&[])])),
        "Parameters of a plan in this window.",
    ),
    Setting::optional("warn_at", Kind::List(&Kind::Whole(1, 99)), "The `warn_at` of this window."),
    Setting::optional(
        "request_overrides",
        REQUEST_OVERRIDES,
        "The `request_overrides` of this window, which cannot stand beside `windows`.",
    ),
];

const CANDIDATE: [Setting; 3] = [
    Setting::optional("algorithm", Kind::Text("the name of an algorithm"), "Its algorithm, if it is another one."),
    Setting::optional(
        "plans",
        Kind::Named("plan", &Kind::OneOf(&[Kind::Choice(&["unlimited"]), Kind::Parameters(&[])])),
        "Parameters of a plan.",
    ),
    Setting::optional("max_wait", Kind::DURATION, "The longest wait, if it is another one."),
];

/// The settings of a cost: one way to count, and the settings that belong to it.
pub(in crate::config) static COST_RULE: Table = Table {
    name: "cost",
    settings: &[
        Setting::optional("by_method", Kind::Named("method", &COST), "The cost of each method."),
        Setting::default("others", COST, "1", "With `by_method`: what methods cost that it does not name."),
        Setting::optional(
            "header",
            Kind::Text("the name of a header field"),
            "A header field of the request tells it.",
        ),
        Setting::optional(
            "request_field",
            FIELD_PATH,
            "A number in the JSON of the request's body tells it; one that cannot be read costs `max`.",
        ),
        Setting::optional(
            "missing",
            MOST,
            "The cost where the field is missing; left out, 1 with `header`, and `max` with `request_field`.",
        ),
        Setting::optional(
            "graphql",
            Kind::Section(&GRAPHQL),
            "By the GraphQL document in `query` of the body: its fields, times the lengths of lists; see docs/costs.md.",
        ),
        Setting::optional("request_bytes", ONE_BYTE_OR_MORE, "A token for each so many bytes of the request's body."),
        Setting::optional(
            "response_header",
            Kind::Text("the name of a header field"),
            "A header field of the response tells it.",
        ),
        Setting::optional("response_bytes", ONE_BYTE_OR_MORE, "A token for each so many bytes of the response's body."),
        Setting::optional(
            "response_field",
            Kind::Text("the names on the way to a number in JSON, like `usage.total_tokens`"),
            "A number in the response's JSON, or in the events of a stream, tells it.",
        ),
        Setting::optional(
            "sum",
            Kind::List(&Kind::Section(&COST_PART)),
            "Numbers in the response, weighed and added up. One that is missing counts 0, unless all are.",
        ),
        Setting::optional("model", Kind::Section(&MODEL), "With `sum`: which model of `prices` a request is for."),
        Setting::optional(
            "max",
            MOST,
            "The most that is believed of a number, or that a `sum` costs. Required with `header` and `request_field`; otherwise 1000000000, in a \
             `sum` multiplied by its largest `times` or price.",
        ),
    ],
};

pub(in crate::config) static GRAPHQL: Table = Table {
    name: "graphql",
    settings: &[
        Setting::required("max", MOST, "The most that a request costs, and the cost of one that cannot be read."),
        Setting::default(
            "max_depth",
            Kind::Whole(1, 64),
            "10",
            "The deepest that fields may be nested; deeper costs `max`.",
        ),
        Setting::default("items", MOST, "100", "How many items of a list count where a variable says it."),
        Setting::default(
            "list_arguments",
            Kind::List(&Kind::Text("the name of an argument")),
            "[first, last]",
            "The arguments that say how many items a list may have.",
        ),
    ],
};

/// The settings of one number in the response.
pub(in crate::config) static COST_PART: Table = Table {
    name: "cost_part",
    settings: &[
        Setting::optional(
            "response_header",
            Kind::Text("the name of a header field"),
            "The number in a header field of the response.",
        ),
        Setting::optional(
            "response_field",
            Kind::Text("the names on the way to a number in JSON, like `usage.prompt_tokens`"),
            "A number in the response's JSON, or in the events of a stream.",
        ),
        Setting::default("times", Kind::Whole(1, 1_000_000), "1", "What one of it costs."),
        Setting::optional(
            "price",
            Kind::Text(A_PRICE),
            "In place of `times`: which price of the model one of it costs.",
        ),
    ],
};

pub(in crate::config) static CHARGE: Table = Table {
    name: "charge",
    settings: &[
        Setting::default(
            "when",
            Kind::Choice(&["request", "identified", "response"]),
            "request",
            "When the cost is taken: before the caller is looked up if it can be, after that, or when the response ends.",
        ),
        Setting::optional(
            "if_status",
            Kind::List(&Kind::Text("a status, like `401`, `4xx` or `500-599`")),
            "With `when: response`: the statuses that cost something; left out, all.",
        ),
        Setting::optional(
            "reserve",
            Kind::OneOf(&[COST, Kind::Section(&RESERVE)]),
            "With `when: response`: what is taken on the request and settled at its end.",
        ),
        Setting::default("denied", Kind::Flag, "false", "Whether a denied request is counted, too."),
    ],
};

const A_PRICE: &str = "the name of a price in `prices`, like `output`";

pub(in crate::config) static MODEL: Table = Table {
    name: "model",
    settings: &[Setting::required(
        "request_field",
        FIELD_PATH,
        "The name of the model in the JSON of the request's body.",
    )],
};

/// The settings of `reserve`: the field in which a request announces its largest cost.
pub(in crate::config) static RESERVE: Table = Table {
    name: "reserve",
    settings: &[
        Setting::required("request_field", FIELD_PATH, "A number in the JSON of the request's body."),
        Setting::required("max", MOST, "The most that is believed of it, and what one that cannot be read reserves."),
        Setting::optional("missing", MOST, "What is reserved where the field is missing; left out, `max`."),
        Setting::optional(
            "price",
            Kind::Text(A_PRICE),
            "Which price of the model each token reserves, where `cost` goes by prices.",
        ),
    ],
};

pub(in crate::config) static OVER_LIMIT: Table = Table {
    name: "over_limit",
    settings: &[
        Setting::optional("deny", Kind::Section(&DENIED), "The request is answered 429, or as this says."),
        Setting::optional("delay", Kind::Section(&DELAY), "The request waits if its turn comes soon enough."),
        Setting::optional("divert", Kind::Text("the name of an upstream"), "The request goes to another upstream."),
        Setting::optional(
            "mark",
            Kind::Text("the name of a header field"),
            "The request passes, and the upstream reads the limit's name in that field.",
        ),
    ],
};

pub(in crate::config) static DELAY: Table = Table {
    name: "delay",
    settings: &[
        Setting::optional("max_wait", Kind::DURATION, "The longest wait; without it nothing waits."),
        Setting::optional("max_waiting", MOST, "How many requests may wait under the limit."),
    ],
};

pub(in crate::config) static DENIED: Table = Table {
    name: "denied",
    settings: &[
        Setting::optional("status", Kind::Whole(400, 599), "The status, in place of 429."),
        Setting::optional(
            "grpc_status",
            Kind::Whole(1, 16),
            "The status for gRPC clients, in place of 8 (RESOURCE_EXHAUSTED).",
        ),
        Setting::optional(
            "body",
            Kind::OneOf(&[TEMPLATE, Kind::Section(&BODIES)]),
            "The body, in place of the problem document; `{{ limit }}`, `{{ retry_after }}` and others stand for values.",
        ),
        Setting::default(
            "headers",
            Kind::Named("header field", &TEMPLATE),
            "{}",
            "Header fields to set, in place of tollgate's own of the same names (`vary` is added).",
        ),
    ],
};

const TEMPLATE: Kind = Kind::Text("text in which `{{ NAME }}` stands for a value");

pub(in crate::config) static BODIES: Table = Table {
    name: "bodies",
    settings: &[
        Setting::optional("text", TEMPLATE, "For clients that take plain text."),
        Setting::optional("json", TEMPLATE, "For clients that take JSON."),
        Setting::optional("html", TEMPLATE, "For clients that take HTML."),
    ],
};
