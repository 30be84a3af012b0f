//! The settings about callers: their identity, their access, and the answers that browsers may read.

use super::{Kind, STORE_TLS, Setting, Table};
use crate::units::Nanos;

const ADDRESSES: Kind = Kind::List(&Kind::Text("an address or a network, like `10.0.0.0/8`"));
const CUSTOMER_NAMES: Kind = Kind::List(&Kind::Text("the name of a customer"));
const ONE_OR_MORE: Kind = Kind::OneOf(&[Kind::Text("a value"), Kind::List(&Kind::Text("a value"))]);
const CLAIM: Kind = Kind::Text("the name of a claim, or a way through nested ones, like `user.id`");

pub(in crate::config) static CUSTOMERS: Table = Table {
    name: "customers",
    settings: &[
        Setting::required(
            "identify",
            Kind::List(&Kind::Section(&IDENTIFY)),
            "Where a credential may be; the first that a request carries counts.",
        ),
        Setting::optional("directory", Kind::Section(&DIRECTORY), "Whose the credentials are. Tokens need none."),
        Setting::optional("groups", Kind::Section(&GROUPS), "The groups that customers belong to, like organisations."),
        Setting::optional(
            "anonymous",
            Kind::Section(&ANONYMOUS),
            "Callers without a credential, who are refused without it.",
        ),
        Setting::default(
            "unknown",
            Kind::Choice(&["deny", "anonymous"]),
            "deny",
            "What becomes of a credential that is nobody's.",
        ),
        Setting::optional(
            "plan_from",
            Kind::Section(&PLAN_FROM),
            "Where a trusted proxy says which plan a caller has.",
        ),
    ],
};

pub(in crate::config) static PLAN_FROM: Table = Table {
    name: "plan_from",
    settings: &[
        Setting::required(
            "header",
            Kind::Text("the name of a header field"),
            "The field, which one of `client_address.trusted_proxies` writes; it goes before what the directory or a token says.",
        ),
        Setting::optional(
            "plans",
            Kind::List(&Kind::Text("the name of a plan")),
            "The plans that it may give; left out, all. Another name counts as if nothing were said.",
        ),
    ],
};

/// A source of credentials. The mapping has one entry, the place of the credential.
pub(in crate::config) static IDENTIFY: Table = Table {
    name: "identify",
    settings: &[
        Setting::optional("header", Kind::Text("the name of a header field"), "A header field holds it."),
        Setting::optional("query", Kind::Text("the name of a query parameter"), "A query parameter holds it."),
        Setting::optional("cookie", Kind::Text("the name of a cookie"), "A cookie holds it."),
        Setting::optional("bearer", Kind::Flag, "`Authorization: Bearer` holds it."),
        Setting::optional("basic", Kind::Flag, "`Authorization: Basic` holds it, as `user:password`."),
        Setting::optional("client_certificate", Kind::Flag, "The common name of the client's certificate is it."),
        Setting::optional("jwt", Kind::Section(&JWT), "A JSON Web Token says it."),
    ],
};

pub(in crate::config) static JWT: Table = Table {
    name: "jwt",
    settings: &[
        Setting::optional(
            "jwks_file",
            Kind::Text("the name of a file"),
            "The JSON Web Key Set that tokens are verified with.",
        ),
        Setting::optional("jwks", Kind::Section(&JWKS), "The same, fetched from where the issuer publishes it."),
        Setting::default("claim", CLAIM, "sub", "The claim that names the customer."),
        Setting::optional("plan_claim", CLAIM, "The claim that names the plan."),
        Setting::optional("plan", Kind::Text("the name of a plan"), "The plan of tokens that name none."),
        Setting::optional(
            "group_claims",
            Kind::Named("level", &CLAIM),
            "The claims that name the groups of the customer, by their levels.",
        ),
        Setting::optional(
            "algorithms",
            Kind::List(&Kind::Choice(&[
                "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384",
                "EdDSA",
            ])),
            "The algorithms that are accepted; left out, those of the keys.",
        ),
        Setting::optional("issuer", ONE_OR_MORE, "The `iss` that tokens must have, or several of which one."),
        Setting::optional("audience", ONE_OR_MORE, "The `aud` that tokens must have, or several of which one."),
        Setting::default(
            "leeway",
            Kind::Duration(Nanos::ZERO, Nanos::from_secs(600)),
            "30s",
            "How far the issuer's clock may be off.",
        ),
        Setting::default("require_exp", Kind::Flag, "true", "Whether a token without an end (`exp`) is refused."),
        Setting::optional(
            "header",
            Kind::Text("the name of a header field"),
            "Where tokens are, if not in `Authorization: Bearer`.",
        ),
    ],
};

pub(in crate::config) static JWKS: Table = Table {
    name: "jwks",
    settings: &[
        Setting::optional("url", Kind::Text("a URL, like `https://issuer.example.com/jwks.json`"), "Where the set is."),
        Setting::optional(
            "issuer",
            Kind::Text("a URL, like `https://issuer.example.com`"),
            "The OpenID issuer whose configuration says where the set is; tokens must have it as their `iss`.",
        ),
        Setting::optional(
            "tls",
            Kind::Section(&STORE_TLS),
            "What TLS takes, where that is not what the system believes.",
        ),
        Setting::default(
            "refresh",
            Kind::Duration(Nanos::SECOND, Nanos::from_secs(7 * 86_400)),
            "1h",
            "How long a set is used before it is fetched again; less where the answer has a shorter `max-age`.",
        ),
        Setting::default(
            "min_interval",
            Kind::Duration(Nanos::SECOND, Nanos::from_secs(3_600)),
            "10s",
            "The least time between two attempts, whatever asks for them: a token with an unknown key, or a short `max-age`.",
        ),
    ],
};

pub(in crate::config) static DIRECTORY: Table = Table {
    name: "directory",
    settings: &[
        Setting::optional("file", Kind::Text("the name of a CSV or YAML file"), "The file that lists the customers."),
        Setting::default(
            "writable",
            Kind::Flag,
            "false",
            "Whether the file is changed when customers are changed over the admin port.",
        ),
        Setting::optional("redis", Kind::Text("the key of a Redis hash"), "The hash in the `store` that holds them."),
        Setting::optional("http", Kind::Section(&DIRECTORY_HTTP), "The service that is asked for them."),
        Setting::optional(
            "postgres",
            Kind::Section(&DIRECTORY_POSTGRES),
            "The PostgreSQL database that is read in the background.",
        ),
        Setting::default("ttl", Kind::POSITIVE, "60s", "How long an answer of Redis or the service is good for."),
        Setting::default(
            "negative_ttl",
            Kind::POSITIVE,
            "10s",
            "The same where it says that nobody has the credential.",
        ),
        Setting::default("max_cached", Kind::Whole(1, 100_000_000), "1000000", "How many answers are remembered."),
    ],
};

pub(in crate::config) static DIRECTORY_HTTP: Table = Table {
    name: "directory_http",
    settings: &[
        Setting::required("url", Kind::Text("a URL, like `https://accounts.example.com/verify`"), "Where it is."),
        Setting::default(
            "contract",
            Kind::Choice(&["plain", "unkey"]),
            "plain",
            "What it is asked and answers; `unkey` is Unkey's `/v2/keys.verifyKey`.",
        ),
        Setting::optional(
            "token_file",
            Kind::Text("the name of a file"),
            "The file of the token that it is shown as `Authorization: Bearer`.",
        ),
        Setting::optional(
            "tls",
            Kind::Section(&STORE_TLS),
            "What TLS takes, where that is not what the system believes.",
        ),
        Setting::default(
            "timeout",
            Kind::Duration(Nanos::new(1_000_000), Nanos::from_secs(10)),
            "250ms",
            "How long a request waits for an answer.",
        ),
    ],
};

pub(in crate::config) static DIRECTORY_POSTGRES: Table = Table {
    name: "directory_postgres",
    settings: &[
        Setting::required(
            "url_file",
            Kind::Text("the name of a file that holds `postgres://user:password@host/database`"),
            "The file of the URL, which may name several servers; read again before each look at the database.",
        ),
        Setting::required(
            "query",
            Kind::Text("a query, like `SELECT credential, customer, plan, updated_at FROM api_keys`"),
            "Gives the columns of a directory file, and `updated_at` where changes are to be looked for.",
        ),
        Setting::required(
            "snapshot_file",
            Kind::Text("the name of a file, like `customers.snapshot`"),
            "Keeps the rows, with hashes of credentials, for a start without the database.",
        ),
        Setting::default(
            "interval",
            Kind::Duration(Nanos::new(100_000_000), Nanos::from_secs(3_600)),
            "5s",
            "How often changes are looked for, where the query gives `updated_at`.",
        ),
        Setting::default(
            "full_every",
            Kind::Duration(Nanos::new(100_000_000), Nanos::from_secs(7 * 86_400)),
            "10m",
            "How often all rows are read, which finds those that are gone.",
        ),
        Setting::optional(
            "channel",
            Kind::Text("the name of a channel"),
            "Where the database notifies of changes (`NOTIFY`), which are then looked for at once.",
        ),
        Setting::default(
            "timeout",
            Kind::Duration(Nanos::new(100_000_000), Nanos::from_secs(600)),
            "10s",
            "How long the database may be silent when it is asked.",
        ),
        Setting::optional(
            "tls",
            Kind::Section(&STORE_TLS),
            "What TLS takes, where that is not what the system believes; has TLS spoken to every server.",
        ),
        Setting::optional(
            "put",
            Kind::Text("a statement, like `INSERT INTO ... VALUES ($credential, ...) ON CONFLICT ... DO UPDATE ...`"),
            "Puts a row when customers are changed over the admin port; `$customer` is the value of a column. Goes with `delete`.",
        ),
        Setting::optional(
            "delete",
            Kind::Text("a statement, like `DELETE FROM api_keys WHERE credential = $credential`"),
            "Deletes the row of a credential then.",
        ),
    ],
};

pub(in crate::config) static GROUPS: Table = Table {
    name: "groups",
    settings: &[
        Setting::required(
            "levels",
            Kind::List(&Kind::Text("a name, like `organisation`")),
            "The levels of groups, the outermost first; at most 4.",
        ),
        Setting::optional(
            "file",
            Kind::Text("the name of a CSV or YAML file"),
            "The file that lists the groups with their plans and overrides; left out, groups have none.",
        ),
    ],
};

pub(in crate::config) static ANONYMOUS: Table = Table {
    name: "anonymous",
    settings: &[
        Setting::required("plan", Kind::Text("the name of a plan"), "The plan of callers without a credential."),
        Setting::default("key", Kind::Choice(&["client_address"]), "client_address", "What tells them apart."),
    ],
};

pub(in crate::config) static ACCESS: Table = Table {
    name: "access",
    settings: &[
        Setting::optional("allow", Kind::Section(&CALLERS), "Nobody else is let in."),
        Setting::optional("deny", Kind::Section(&CALLERS), "Who is kept out."),
    ],
};

pub(in crate::config) static CALLERS: Table = Table {
    name: "callers",
    settings: &[
        Setting::optional("addresses", ADDRESSES, "By address."),
        Setting::optional("customers", CUSTOMER_NAMES, "By name."),
    ],
};

pub(in crate::config) static BYPASS: Table = Table {
    name: "bypass",
    settings: &[
        Setting::optional("addresses", ADDRESSES, "Requests from these are never charged."),
        Setting::optional("customers", CUSTOMER_NAMES, "Requests of these are never charged."),
        Setting::optional(
            "methods",
            Kind::List(&Kind::Text("a method, like `GET`")),
            "Requests with these are never charged.",
        ),
        Setting::optional(
            "paths",
            Kind::List(&Kind::Text("a path, like `/healthz` or `/static/**`")),
            "Requests for these are never charged.",
        ),
    ],
};

pub(in crate::config) static CORS: Table = Table {
    name: "cors",
    settings: &[
        Setting::required(
            "origins",
            Kind::OneOf(&[
                Kind::Choice(&["*"]),
                Kind::List(&Kind::Text("a site, like `https://app.example.com` or `https://*.example.com`")),
            ]),
            "The sites; `\"*\"` is every site.",
        ),
        Setting::default(
            "credentials",
            Kind::Flag,
            "false",
            "Whether scripts may send cookies and keys of the browser.",
        ),
        Setting::optional("max_age", Kind::DURATION, "How long browsers remember a preflight's answer."),
        Setting::default("preflight", Kind::Choice(&["answer", "forward"]), "answer", "Who answers preflights."),
    ],
};
