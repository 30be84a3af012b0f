//! The settings about callers: their identity, their access, and the answers that browsers may read.

use super::Kind::{self, *};
use super::STORE_TLS;
use crate::units::Nanos;

const ADDRESSES: Kind = List(&Text("an address or a network, like `10.0.0.0/8`"));
const CUSTOMER_NAMES: Kind = Set(&Text("the name of a customer"));
const ONE_OR_MORE: Kind = OneOf(&[Text("a value"), Set(&Text("a value"))]);
const CLAIM: Kind = Text("the name of a claim, or a way through nested ones, like `user.id`");
const SITE: Kind = Text("a site, like `https://app.example.com` or `https://*.example.com`");
/// The algorithms by which tokens may be signed.
pub(in crate::config) const SIGNATURES: &[&str] =
    &["HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];

tables! {
    CUSTOMERS "customers" {
        identify: Set(&Section(&IDENTIFY)), required,
            "The places of credentials, in order; the first that a request carries counts.";
        directory: Section(&DIRECTORY), "The customers and their credentials. Tokens need no directory.";
        groups: Section(&GROUPS), "The groups that customers belong to, like organisations.";
        anonymous: Section(&ANONYMOUS), "Admits callers without a credential; without this section they are refused.";
        unknown: Choice(&["deny", "anonymous"]), default "deny", "How an unknown credential is treated.";
        plan_from: Section(&PLAN_FROM), "The header field in which a trusted proxy names the caller's plan.";
    }

    PLAN_FROM "plan_from" {
        header: Text("the name of a header field"), required,
            "The field, which one of `client_address.trusted_proxies` writes; its plan counts before the plan of the \
            directory or of a token.";
        plans: List(&Text("the name of a plan")),
            "The plans that the field may name; any other name is ignored. Default: all plans.";
    }

    /// A source of credentials. The mapping has one entry, the place of the credential.
    IDENTIFY "identify" {
        header: Text("the name of a header field"), "The header field that holds the credential.";
        query: Text("the name of a query parameter"), "The query parameter that holds the credential.";
        cookie: Text("the name of a cookie"), "The cookie that holds the credential.";
        bearer: Flag, "The credential is in `Authorization: Bearer`.";
        basic: Flag, "The credential is in `Authorization: Basic`, as `user:password`.";
        client_certificate: Flag, "The credential is the common name of the client's certificate.";
        jwt: Section(&JWT), "The credential is a JSON Web Token, which names the customer.";
    }

    JWT "jwt" {
        jwks_file: Text("the name of a file with a JSON Web Key Set, like `jwks.json`"),
            "The file of the keys that verify tokens.";
        jwks: Section(&JWKS), "The same keys, fetched from the address where the issuer publishes them.";
        claim: CLAIM, default "sub", "The claim that names the customer.";
        plan_claim: CLAIM, "The claim that names the plan.";
        plan: Text("the name of a plan"), "The plan of tokens that name none.";
        group_claims: Named("level", &CLAIM), "The claims that name the groups of the customer, by their levels.";
        algorithms: Set(&Choice(SIGNATURES)),
            "The accepted algorithms of signatures. Default: the algorithms of the keys.";
        issuer: ONE_OR_MORE, "The `iss` that tokens must have: one value, or a list of accepted values.";
        audience: ONE_OR_MORE, "The `aud` that tokens must have: one value, or a list of accepted values.";
        leeway: Duration(Nanos::ZERO, Nanos::from_secs(600)), default "30s", "How far the issuer's clock may be off.";
        require_exp: Flag, default "true", "Whether a token without an expiry (`exp`) is refused.";
        header: Text("the name of a header field"),
            "The header field that holds tokens. Default: `Authorization: Bearer`.";
    }

    JWKS "jwks" {
        url: Text("a URL, like `https://issuer.example.com/jwks.json`"), "The URL of the set.";
        issuer: Text("a URL, like `https://issuer.example.com`"),
            "The OpenID issuer whose configuration has the URL of the set; tokens must have it as their `iss`.";
        tls: Section(&STORE_TLS), "The files for TLS, if the system's authorities do not suffice.";
        refresh: Duration(Nanos::SECOND, Nanos::from_secs(7 * 86_400)), default "1h",
            "How long a set is used before it is fetched again; less if the answer has a shorter `max-age`.";
        min_interval: Duration(Nanos::SECOND, Nanos::from_secs(3_600)), default "10s",
            "The minimum time between two attempts to fetch the set, whether an unknown key or a short `max-age` \
            causes them.";
    }

    DIRECTORY "directory" {
        file: Text("the name of a CSV or YAML file"), "The file that lists the customers.";
        writable: Flag, default "false", "Whether changes of customers over the admin port are written to the file.";
        redis: Text("the key of a Redis hash"), "The Redis hash in the `store` that holds the customers.";
        http: Section(&DIRECTORY_HTTP), "The service that is asked for customers.";
        postgres: Section(&DIRECTORY_POSTGRES), "The PostgreSQL database, which is read in the background.";
        ttl: Kind::POSITIVE, default "60s", "How long an answer of Redis or of the service is valid.";
        negative_ttl: Kind::POSITIVE, default "10s", "How long an answer is valid that no customer has the credential.";
        max_cached: Whole(1, 100_000_000), default "1000000", "The maximum number of cached answers.";
    }

    DIRECTORY_HTTP "directory_http" {
        url: Text("a URL, like `https://accounts.example.com/verify`"), required, "The URL of the service.";
        contract: Choice(&["plain", "unkey"]), default "plain",
            "The form of questions and answers; `unkey` is that of Unkey's `/v2/keys.verifyKey`.";
        token_file: Text("the name of a file"),
            "The file of the token that is sent to the service as `Authorization: Bearer`.";
        tls: Section(&STORE_TLS), "The files for TLS, if the system's authorities do not suffice.";
        timeout: Duration(Nanos::new(1_000_000), Nanos::from_secs(10)), default "250ms",
            "How long a request waits for an answer.";
    }

    DIRECTORY_POSTGRES "directory_postgres" {
        url_file: Text("the name of a file that holds `postgres://user:password@host/database`"), required,
            "The file of the URL, which may name several servers; it is read again before each read of the database.";
        query: Text("a query, like `SELECT credential, customer, plan, updated_at FROM api_keys`"), required,
            "The query for the rows: the columns of a directory file, and `updated_at` to read only changed rows.";
        snapshot_file: Text("the name of a file, like `customers.snapshot`"), required,
            "The file that keeps the rows, with hashes of credentials, for a start without the database.";
        interval: Duration(Nanos::new(100_000_000), Nanos::from_secs(3_600)), default "5s",
            "How often changed rows are read, if the query gives `updated_at`.";
        full_every: Duration(Nanos::new(100_000_000), Nanos::from_secs(7 * 86_400)), default "10m",
            "How often all rows are read, which finds deleted rows.";
        channel: Text("the name of a channel"),
            "The channel on which the database notifies of changes (`NOTIFY`); changed rows are then read at once.";
        timeout: Duration(Nanos::new(100_000_000), Nanos::from_secs(600)), default "10s",
            "How long the database may take for each answer.";
        tls: Section(&STORE_TLS),
            "The files for TLS, if the system's authorities do not suffice; every server then has to speak TLS.";
        put: Text("a statement, like `INSERT INTO ... VALUES ($credential, ...) ON CONFLICT ... DO UPDATE ...`"),
            "The statement that puts a row when a customer is changed over the admin port; `$customer` stands for the \
            value of that column. Needs `delete`.";
        delete: Text("a statement, like `DELETE FROM api_keys WHERE credential = $credential`"),
            "The statement that deletes the row of a credential when a customer is changed. Needs `put`.";
    }

    GROUPS "groups" {
        levels: List(&Text("a name, like `organisation`")), required,
            "The levels of groups, the outermost first; at most 4.";
        file: Text("the name of a CSV or YAML file"),
            "The file that lists the groups with their plans and overrides. Default: groups have neither.";
    }

    ANONYMOUS "anonymous" {
        plan: Text("the name of a plan"), required, "The plan of callers without a credential.";
        key: Choice(&["client_address"]), default "client_address", "The part of the request that tells them apart.";
    }

    ACCESS "access" {
        allow: Section(&CALLERS), nonempty, "The only callers that are allowed.";
        deny: Section(&CALLERS), nonempty, "The callers that are denied, even those in `allow`.";
    }

    CALLERS "callers" {
        addresses: ADDRESSES, "Callers with these addresses.";
        customers: CUSTOMER_NAMES, "Callers that are these customers.";
    }

    BYPASS "bypass" {
        addresses: ADDRESSES, "Requests from these addresses are never charged.";
        customers: CUSTOMER_NAMES, "Requests of these customers are never charged.";
        methods: Set(&Text("a method, like `GET`")), "Requests with these methods are never charged.";
        paths: Set(&Text("a path, like `/healthz` or `/static/**`")), "Requests for these paths are never charged.";
    }

    CORS "cors" {
        origins: OneOf(&[Choice(&["*"]), Set(&SITE)]), required, "The sites; `\"*\"` is every site.";
        credentials: Flag, default "false", "Whether scripts may send the browser's cookies and credentials.";
        max_age: Kind::DURATION, "How long browsers remember a preflight's answer.";
        preflight: Choice(&["answer", "forward"]), default "answer",
            "Whether tollgate answers preflights or forwards them to the upstream.";
    }
}
