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
            "Where a credential may be; the first that a request carries counts.";
        directory: Section(&DIRECTORY), "Whose the credentials are. Tokens need none.";
        groups: Section(&GROUPS), "The groups that customers belong to, like organisations.";
        anonymous: Section(&ANONYMOUS), "Callers without a credential, who are refused without it.";
        unknown: Choice(&["deny", "anonymous"]), default "deny", "What becomes of a credential that is nobody's.";
        plan_from: Section(&PLAN_FROM), "Where a trusted proxy says which plan a caller has.";
    }

    PLAN_FROM "plan_from" {
        header: Text("the name of a header field"), required,
            "The field, which one of `client_address.trusted_proxies` writes; it goes before what the directory or a \
            token says.";
        plans: List(&Text("the name of a plan")),
            "The plans that it may give; left out, all. Another name counts as if nothing were said.";
    }

    /// A source of credentials. The mapping has one entry, the place of the credential.
    IDENTIFY "identify" {
        header: Text("the name of a header field"), "A header field holds it.";
        query: Text("the name of a query parameter"), "A query parameter holds it.";
        cookie: Text("the name of a cookie"), "A cookie holds it.";
        bearer: Flag, "`Authorization: Bearer` holds it.";
        basic: Flag, "`Authorization: Basic` holds it, as `user:password`.";
        client_certificate: Flag, "The common name of the client's certificate is it.";
        jwt: Section(&JWT), "A JSON Web Token says it.";
    }

    JWT "jwt" {
        jwks_file: Text("the name of a file with a JSON Web Key Set, like `jwks.json`"), "What tokens are verified with.";
        jwks: Section(&JWKS), "The same, fetched from where the issuer publishes it.";
        claim: CLAIM, default "sub", "The claim that names the customer.";
        plan_claim: CLAIM, "The claim that names the plan.";
        plan: Text("the name of a plan"), "The plan of tokens that name none.";
        group_claims: Named("level", &CLAIM), "The claims that name the groups of the customer, by their levels.";
        algorithms: Set(&Choice(SIGNATURES)),
            "The algorithms that are accepted; left out, those of the keys.";
        issuer: ONE_OR_MORE, "The `iss` that tokens must have, or several of which one.";
        audience: ONE_OR_MORE, "The `aud` that tokens must have, or several of which one.";
        leeway: Duration(Nanos::ZERO, Nanos::from_secs(600)), default "30s", "How far the issuer's clock may be off.";
        require_exp: Flag, default "true", "Whether a token without an end (`exp`) is refused.";
        header: Text("the name of a header field"), "Where tokens are, if not in `Authorization: Bearer`.";
    }

    JWKS "jwks" {
        url: Text("a URL, like `https://issuer.example.com/jwks.json`"), "Where the set is.";
        issuer: Text("a URL, like `https://issuer.example.com`"),
            "The OpenID issuer whose configuration says where the set is; tokens must have it as their `iss`.";
        tls: Section(&STORE_TLS), "What TLS takes, where that is not what the system believes.";
        refresh: Duration(Nanos::SECOND, Nanos::from_secs(7 * 86_400)), default "1h",
            "How long a set is used before it is fetched again; less where the answer has a shorter `max-age`.";
        min_interval: Duration(Nanos::SECOND, Nanos::from_secs(3_600)), default "10s",
            "The least time between two attempts, whatever asks for them: a token with an unknown key, or a short \
            `max-age`.";
    }

    DIRECTORY "directory" {
        file: Text("the name of a CSV or YAML file"), "The file that lists the customers.";
        writable: Flag, default "false", "Whether the file is changed when customers are changed over the admin port.";
        redis: Text("the key of a Redis hash"), "The hash in the `store` that holds them.";
        http: Section(&DIRECTORY_HTTP), "The service that is asked for them.";
        postgres: Section(&DIRECTORY_POSTGRES), "The PostgreSQL database that is read in the background.";
        ttl: Kind::POSITIVE, default "60s", "How long an answer of Redis or the service is good for.";
        negative_ttl: Kind::POSITIVE, default "10s", "The same where it says that nobody has the credential.";
        max_cached: Whole(1, 100_000_000), default "1000000", "How many answers are remembered.";
    }

    DIRECTORY_HTTP "directory_http" {
        url: Text("a URL, like `https://accounts.example.com/verify`"), required, "Where it is.";
        contract: Choice(&["plain", "unkey"]), default "plain",
            "What it is asked and answers; `unkey` is Unkey's `/v2/keys.verifyKey`.";
        token_file: Text("the name of a file"), "The file of the token that it is shown as `Authorization: Bearer`.";
        tls: Section(&STORE_TLS), "What TLS takes, where that is not what the system believes.";
        timeout: Duration(Nanos::new(1_000_000), Nanos::from_secs(10)), default "250ms",
            "How long a request waits for an answer.";
    }

    DIRECTORY_POSTGRES "directory_postgres" {
        url_file: Text("the name of a file that holds `postgres://user:password@host/database`"), required,
            "The file of the URL, which may name several servers; read again before each look at the database.";
        query: Text("a query, like `SELECT credential, customer, plan, updated_at FROM api_keys`"), required,
            "Gives the columns of a directory file, and `updated_at` where changes are to be looked for.";
        snapshot_file: Text("the name of a file, like `customers.snapshot`"), required,
            "Keeps the rows, with hashes of credentials, for a start without the database.";
        interval: Duration(Nanos::new(100_000_000), Nanos::from_secs(3_600)), default "5s",
            "How often changes are looked for, where the query gives `updated_at`.";
        full_every: Duration(Nanos::new(100_000_000), Nanos::from_secs(7 * 86_400)), default "10m",
            "How often all rows are read, which finds those that are gone.";
        channel: Text("the name of a channel"),
            "Where the database notifies of changes (`NOTIFY`), which are then looked for at once.";
        timeout: Duration(Nanos::new(100_000_000), Nanos::from_secs(600)), default "10s",
            "How long the database may be silent when it is asked.";
        tls: Section(&STORE_TLS),
            "What TLS takes, where that is not what the system believes; has TLS spoken to every server.";
        put: Text("a statement, like `INSERT INTO ... VALUES ($credential, ...) ON CONFLICT ... DO UPDATE ...`"),
            "Puts a row when customers are changed over the admin port; `$customer` is the value of a column. Goes \
            with `delete`.";
        delete: Text("a statement, like `DELETE FROM api_keys WHERE credential = $credential`"),
            "Deletes the row of a credential then.";
    }

    GROUPS "groups" {
        levels: List(&Text("a name, like `organisation`")), required,
            "The levels of groups, the outermost first; at most 4.";
        file: Text("the name of a CSV or YAML file"),
            "The file that lists the groups with their plans and overrides; left out, groups have none.";
    }

    ANONYMOUS "anonymous" {
        plan: Text("the name of a plan"), required, "The plan of callers without a credential.";
        key: Choice(&["client_address"]), default "client_address", "What tells them apart.";
    }

    ACCESS "access" {
        allow: Section(&CALLERS), nonempty, "Nobody else is let in.";
        deny: Section(&CALLERS), nonempty, "Who is kept out.";
    }

    CALLERS "callers" {
        addresses: ADDRESSES, "By address.";
        customers: CUSTOMER_NAMES, "By name.";
    }

    BYPASS "bypass" {
        addresses: ADDRESSES, "Requests from these are never charged.";
        customers: CUSTOMER_NAMES, "Requests of these are never charged.";
        methods: Set(&Text("a method, like `GET`")), "Requests with these are never charged.";
        paths: Set(&Text("a path, like `/healthz` or `/static/**`")), "Requests for these are never charged.";
    }

    CORS "cors" {
        origins: OneOf(&[Choice(&["*"]), Set(&SITE)]), required, "The sites; `\"*\"` is every site.";
        credentials: Flag, default "false", "Whether scripts may send cookies and keys of the browser.";
        max_age: Kind::DURATION, "How long browsers remember a preflight's answer.";
        preflight: Choice(&["answer", "forward"]), default "answer", "Who answers preflights.";
    }
}
