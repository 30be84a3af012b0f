//! The live page in a browser: it updates, answers and stays readable; it loads nothing from elsewhere, and it never shows
//! client input as markup. `UPDATE_GOLDEN=1` takes the README's picture again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::support::browser::{Browser, Screen};
use crate::support::gateway::limited;
use crate::support::{Exchange, Gateway, Origin, SetOnDrop, free_port, shared, wait_until};
use crate::trials;

const WIDE: Screen = Screen { width: 1280, height: 1000, dark: false };

fn config(origin: &Origin) -> String {
    format!(
        "{}customers:
  identify: [{{ header: x-api-key }}]
  directory: {{ file: customers.csv }}
  anonymous: {{ plan: anonymous }}
plans: [anonymous, free, pro, enterprise]
limits:
  per-customer:
    key: customer
    algorithm: gcra
    plans: {{ anonymous: {{ rate: 1/s, burst: 5 }}, free: {{ rate: 2/s, burst: 20 }}, pro: {{ rate: 1000/s, burst: 2000 }}, enterprise: unlimited }}
  orders-of-all: {{ key: route, algorithm: token_bucket, rate: 10000/s, burst: 10000 }}
  logins: {{ key: [client_address, {{ header: x-user }}], algorithm: sliding_log, limit: 5, window: 15m }}
  a-limit-with-a-rather-long-name-for-uploads: {{ key: customer, algorithm: fixed_window, limit: 1, window: 1d, shadow: true }}
routes:
  - {{ name: orders, match: {{ path: /v1/orders/** }}, upstream: origin, limits: [per-customer, orders-of-all] }}
  - {{ name: login, match: {{ path: /login }}, upstream: origin, limits: [logins] }}
  - {{ name: uploads, match: {{ hosts: [api.example.com], path: /uploads/a-path-that-takes-some-room/** }}, upstream: origin, limits: [a-limit-with-a-rather-long-name-for-uploads] }}
  - {{ name: health, match: {{ path: /health }}, upstream: origin }}\n",
        origin.upstream()
    )
}

const CUSTOMERS: &str = "credential,customer,plan\nk-acme,acme,free\nk-initech,initech,pro\n";

fn started(origin: &Origin) -> Gateway {
    Gateway::start_with(&config(origin), &[("customers.csv", CUSTOMERS)], &[])
}

/// Sends requests of many kinds until `end` is set.
fn keep_busy(gateway: &Gateway, end: &AtomicBool) {
    let mut client = gateway.client();
    while !end.load(Ordering::Relaxed) {
        for (target, fields) in [
            ("/v1/orders/1", [("x-api-key", "k-acme"), ("x-n", "1")]),
            ("/v1/orders/2", [("x-api-key", "k-initech"), ("x-n", "1")]),
            ("/login", [("x-user", "mallory"), ("x-n", "1")]),
            ("/uploads/a-path-that-takes-some-room/1", [("host", "api.example.com"), ("x-n", "1")]),
            ("/health", [("x-n", "1"), ("x-m", "1")]),
        ] {
            client.round_trip("GET", target, &fields);
        }
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
}

/// A browser with the page of `gateway`.
fn opened(gateway: &Gateway) -> Browser {
    let mut browser = Browser::start();
    browser.set_screen(WIDE);
    browser.open(&format!("http://{}/", gateway.admin));
    browser.wait_for("document.body?.dataset.live === 'yes'");
    browser
}

/// Fills fields of the page, by their ids, and sends a form.
fn submit(browser: &mut Browser, fields: &[(&str, &str)], form: &str) {
    for (field, value) in fields {
        browser.evaluate(&format!("document.getElementById('{field}').value = {}", json!(value)));
    }
    browser.evaluate(&format!("document.getElementById('{form}').requestSubmit()"));
}

fn wait_for_answer(browser: &mut Browser, says: &str) {
    browser.wait_for(&format!("document.getElementById('answer').textContent.includes({})", json!(says)));
}

/// JavaScript for a cell in the row of a table that begins with this name.
fn cell(table: &str, name: &str, column: usize) -> String {
    format!(
        "[...document.querySelectorAll('#{table} tbody tr')].find(row => row.dataset.key === {}).children[{column}].textContent",
        json!(name)
    )
}

#[test]
fn the_page_moves_under_load_finds_a_key_and_is_readable_everywhere() {
    let origin = Origin::start();
    let gateway = started(&origin);
    let mut browser = opened(&gateway);
    browser.wait_for("document.querySelectorAll('#limits tbody tr').length === 4");
    assert_eq!(browser.evaluate("document.querySelector('#offenders tbody').textContent"), "Nobody was denied.");
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&end);
        scope.spawn(|| keep_busy(&gateway, &end));
        browser.wait_for("parseFloat(document.getElementById('tile-requests').textContent) > 0");
        browser.wait_for("parseFloat(document.getElementById('tile-denied').textContent) > 0");
        for (table, name, column) in [("limits", "logins", 3), ("routes", "login", 3), ("limits", "per-customer", 2)] {
            browser.wait_for(&format!("parseFloat({}) > 0", cell(table, name, column)));
        }
        browser.wait_for("document.querySelector('#limits .spark .part').getAttribute('d') !== ''");
        let before = browser.evaluate("document.getElementById('decisions').textContent");
        wait_until("the last decisions to be others", || {
            browser.evaluate("document.getElementById('decisions').textContent") != before
        });

        // one click looks up a denied key
        let row =
            "[...document.querySelectorAll('#offenders tbody tr')].find(row => row.textContent.includes('mallory'))";
        browser.wait_for(&format!("{row} !== undefined"));
        browser.evaluate(&format!("{row}.querySelector('button').click()"));
        browser.wait_for("document.getElementById('answer').textContent.includes('would be denied')");
        assert_eq!(browser.evaluate("document.querySelector('#answer .key').textContent"), "127.0.0.1, mallory");
        // a customer: the page shows its limits, and the reason of its last denial
        browser.wait_for(
            "[...document.querySelectorAll('#customer-names option')].some(option => option.value === 'acme')",
        );
        browser.evaluate(
            "document.getElementById('customer-name').value = 'acme';
             document.getElementById('customer-form').requestSubmit()",
        );
        browser.wait_for("document.querySelector('#answer .verdict').textContent === 'acme'");
        let told = browser.evaluate("document.getElementById('answer').textContent");
        let told = told.as_str().unwrap();
        let limits = ["per-customer", "plan free", "a-limit-with-a-rather-long-name-for-uploads"];
        assert!(limits.iter().all(|limit| told.contains(limit)), "{told}");
        assert!(told.contains("denied by per-customer on orders, again in "), "{told}");
        // a look-up of a key by its parts, and an explanation of a request
        browser.evaluate(
            "const limit = document.getElementById('key-limit'); limit.value = 'per-customer';
             limit.dispatchEvent(new Event('change'));
             document.querySelector('#key-parts input').value = 'initech';
             document.getElementById('key-form').requestSubmit()",
        );
        browser.wait_for("document.getElementById('answer').textContent.includes('of 2\u{202f}000')");
        browser.evaluate(
            "document.getElementById('request-url').value = 'http://api.example.com/v1/orders/7';
             document.getElementById('request-headers').value = 'x-api-key: k-acme';
             document.getElementById('request-form').requestSubmit()",
        );
        browser.wait_for("document.getElementById('answer').textContent.includes('customer acme, plan free')");
        assert_eq!(browser.evaluate("document.getElementById('answer').textContent.includes('k-acme')"), false);

        readable(&mut browser, "page");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            browser.set_screen(WIDE);
            browser.evaluate("scrollTo(0, 0)");
            browser.picture(Path::new("docs/plots/page.png"), false);
        }
    });
    let foreign =
        "performance.getEntriesByType('resource').filter(one => !one.name.startsWith(location.origin)).length";
    assert_eq!(browser.evaluate(foreign), 0, "nothing comes from elsewhere");
    assert_eq!(browser.console_errors, [] as [String; 0]);
}

/// Asserts that nothing is cut off, every field has a label, and text has enough contrast; saves pictures for a person to
/// look at.
fn readable(browser: &mut Browser, folder: &str) {
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&pictures).unwrap();
    for (width, height) in [(1280, 2100), (390, 3600)] {
        for dark in [false, true] {
            browser.set_screen(Screen { width, height, dark });
            browser.wait_for(&format!("innerWidth === {width}"));
            let too_wide = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
            assert_eq!(too_wide, 0, "{width}: pixels that are off the screen");
            let outside = "[...document.querySelectorAll('td, th, input, select, button, dd')]
                .filter(one => one.checkVisibility() && one.getBoundingClientRect().right > innerWidth).length";
            assert_eq!(browser.evaluate(outside), 0, "{width}: elements that are off the screen");
            let least = browser.evaluate(CONTRAST).as_f64().unwrap();
            assert!(least >= 4.5, "the least contrast of text at {width}, dark {dark}: {least}");
            browser.picture(&pictures.join(format!("{width}-{}.png", if dark { "dark" } else { "light" })), true);
        }
    }
    let unlabelled = "[...document.querySelectorAll('input, select, textarea')]
        .filter(one => one.labels.length === 0).length";
    assert_eq!(browser.evaluate(unlabelled), 0);
    let headless = "[...document.querySelectorAll('thead th')].filter(one => one.scope !== 'col' || !one.textContent.trim()).length";
    assert_eq!(browser.evaluate(headless), 0);
}

/// The lowest contrast (WCAG 2) between any visible text and its background.
const CONTRAST: &str = "(() => {
    const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
        const [r, g, b] = channels(colour).map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (element) => {
        for (let one = element; one; one = one.parentElement) {
            const colour = getComputedStyle(one).backgroundColor;
            if ((channels(colour)[3] ?? 1) > 0) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    const hasText = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const shown = [...document.body.querySelectorAll('*')].filter((one) => hasText(one) && one.checkVisibility());
    return Math.min(...shown.map((one) => {
        const [a, b] = [light(getComputedStyle(one).color), light(ground(one))];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }));
})()";

#[test]
fn a_change_of_a_limit_is_tried_with_the_keyboard() {
    let origin = Origin::start();
    let gateway = trials::started(&origin);
    let mut browser = opened(&gateway);
    browser.wait_for("document.getElementById('try')?.checkVisibility() === true");
    let answer = "document.getElementById('try-answer').textContent";
    browser.evaluate("document.getElementById('try-log').focus()");
    let focused = |browser: &mut Browser| browser.evaluate("document.activeElement.id || document.activeElement.name");
    browser.press("Tab");
    assert_eq!(focused(&mut browser), "try-limit");
    browser.press("Tab");
    assert_eq!(focused(&mut browser), "try-token");
    browser.command("Input.insertText", json!({ "text": "a-wrong-token-0123456" }));
    browser.press("Tab");
    assert_eq!(focused(&mut browser), "plans.few.limit");
    browser.press("Tab");
    assert_eq!(focused(&mut browser), "plans.more.limit");
    browser.press("Enter");
    browser.wait_for(&format!("{answer}.startsWith('Nothing is changed')"));
    browser.command("Input.insertText", json!({ "text": "1" }));
    browser.press("Enter");
    browser.wait_for(&format!("{answer}.includes('changes need the token')"));
    browser.evaluate("document.getElementById('try-token').select(); document.getElementById('try-token').focus()");
    browser.command("Input.insertText", json!({ "text": "canary-token-0123456789" }));
    browser.press("Enter");
    browser.wait_for(&format!("{answer}.startsWith('Requests newly denied: 2, no longer denied: 0')"));
    let rows = "[...document.querySelectorAll('#try-answer tbody tr')].map(row => [...row.children].map(cell => cell.textContent).join(' | '))";
    let mut rows: Vec<String> = serde_json::from_value(browser.evaluate(rows)).unwrap();
    rows[3..].sort_unstable();
    let expected =
        ["requests | 8 | 8", "denied | 3 (38 %) | 5 (63 %)", "keys denied by daily | 1 | 2", "ann | 1", "bob | 1"];
    assert_eq!(rows, expected);
    // typed text stays in its field while the page updates
    browser.wait_for("document.body.dataset.live === 'yes'");
    assert_eq!(browser.evaluate("document.querySelector('[name=\"plans.more.limit\"]').value"), "1");
    readable(&mut browser, "trial");
}

#[test]
fn a_banned_key_is_shown_as_banned() {
    let origin = Origin::start();
    let limit =
        "{ key: customer, algorithm: fixed_window, limit: 1, window: 1s, ban: { after: 1 denial in 1m, for: 1h } }";
    let callers =
        "customers: { identify: [{ header: x-api-key }], directory: { file: customers.csv } }\nplans: [free, pro]\n";
    let gateway =
        Gateway::start_with(&format!("{}{callers}", limited(&origin, limit)), &[("customers.csv", CUSTOMERS)], &[]);
    wait_until("a denial by the ban", || {
        gateway.get("/", &[("x-api-key", "k-acme")]).text().contains("Too many requests were denied")
    });
    let mut browser = opened(&gateway);
    browser.wait_for("[...document.querySelectorAll('#decisions .over')].some(cell => cell.textContent === 'banned')");
    for (field, value, form, says) in [
        ("customer-name", "acme", "customer", ["is banned, again in ", "banned by guard on all, again in "]),
        ("request-url", "http://api.example.com/", "request", ["banned", "is banned, again in "]),
    ] {
        browser.evaluate(&format!(
            "document.getElementById('request-headers').value = 'x-api-key: k-acme';
             document.getElementById('{field}').value = '{value}';
             document.getElementById('{form}-form').requestSubmit()"
        ));
        for words in says {
            browser.wait_for(&format!("document.getElementById('answer').textContent.includes('{words}')"));
        }
        browser.wait_for("document.querySelectorAll('#answer .over').length > 1");
    }
    browser.wait_for("document.querySelector('#answer .limit.denies') !== null");
}

#[test]
fn a_customer_is_found_by_its_plan_where_no_directory_lists_it() {
    let origin = Origin::start();
    let callers = format!(
        "customers: {{ identify: [{{ header: x-api-key }}], directory: {{ http: {{ url: \"http://{}/\" }} }} }}
plans: [free, pro]\n",
        origin.address
    );
    let limit = "{ key: customer, algorithm: fixed_window, limit: 5, window: 1d, plans: { pro: { limit: 9 } } }";
    let gateway = Gateway::start(&format!("{}{callers}", limited(&origin, limit)));
    let mut browser = opened(&gateway);
    browser.wait_for("document.getElementById('about-config').textContent.includes('credentialsnot counted')");
    for (plan, says) in [("", "which plan"), ("pro", "9 left of 9")] {
        browser.evaluate(&format!(
            "document.getElementById('customer-name').value = 'acme';
             document.getElementById('customer-plan').value = '{plan}';
             document.getElementById('customer-form').requestSubmit()"
        ));
        browser.wait_for(&format!("document.getElementById('answer').textContent.includes('{says}')"));
    }
}

#[test]
fn a_denied_customer_that_no_directory_lists_is_looked_up_by_its_last_plan() {
    let origin = Origin::start();
    let service = Origin::with(|exchange: &mut Exchange<'_>| {
        exchange.body()?;
        exchange.reply("200 OK", "", br#"{"customer": "acme", "plan": "pro"}"#)
    });
    let callers = format!(
        "customers: {{ identify: [{{ header: x-api-key }}], directory: {{ http: {{ url: \"http://{}/\" }} }} }}
plans: [free, pro]\n",
        service.address
    );
    let limit = "{ key: customer, algorithm: fixed_window, limit: 5, window: 1d, plans: { pro: { limit: 1 } } }";
    let gateway = Gateway::start(&format!("{}{callers}", limited(&origin, limit)));
    assert_eq!([(); 2].map(|()| gateway.get("/", &[("x-api-key", "k")]).status), [200, 429]);
    let mut browser = opened(&gateway);
    browser.wait_for("document.querySelector('#offenders button') !== null");
    browser.wait_for("document.querySelector('#decisions .key')?.textContent === 'acme'");
    browser.evaluate("document.querySelector('#offenders button').click()");
    wait_for_answer(&mut browser, "plan pro");
    wait_for_answer(&mut browser, "0 left of 1");
    submit(&mut browser, &[("customer-name", "acme")], "customer-form");
    wait_for_answer(&mut browser, "denied by guard on all");
    wait_for_answer(&mut browser, "0 left of 1");
    submit(&mut browser, &[("customer-name", "globex")], "customer-form");
    wait_for_answer(&mut browser, "name the plan beside the key, one of: free, pro");
    assert_eq!(browser.evaluate("document.getElementById('answer').textContent.includes('--')"), false);
}

#[test]
fn values_only_known_to_redis_are_unknown_without_it() {
    let origin = Origin::start();
    for (down, would) in [("allow", "would be admitted"), ("deny", "would be denied")] {
        let limit = format!("algorithm: gcra, rate: 1/h, burst: 2, on_store_down: {down}");
        let gateway = shared::gateway(&origin, free_port(), "timeout: 1s", &limit);
        let mut browser = opened(&gateway);
        browser.wait_for("document.querySelectorAll('#limits tbody th').length === 1");
        let row = "[...document.querySelector('#limits tbody tr').children].map(cell => cell.textContent)";
        wait_until("requests that nobody can decide", || {
            gateway.get("/", &[("x-key", "a")]);
            let row: Vec<String> = serde_json::from_value(browser.evaluate(row)).unwrap();
            row[0].contains("/s unknown: Redis could not be asked") && row[2..5] == ["–", "–", "unknown"]
        });
        browser.evaluate("document.querySelector('#key-parts input').value = 'a'");
        let request = [("request-url", "http://test/"), ("request-headers", "x-key: a")];
        for (fields, form) in [(&[][..], "key-form"), (&request, "request-form")] {
            browser.evaluate("document.getElementById('answer').replaceChildren()");
            submit(&mut browser, fields, form);
            wait_for_answer(&mut browser, would);
            wait_for_answer(&mut browser, "; nobody knows what is used while Redis is unavailable");
        }
        readable(&mut browser, &format!("unknown-{down}"));
    }
}

#[test]
fn a_refused_customer_is_shown_as_such() {
    let origin = Origin::start();
    let customers =
        "credential,customer,plan,valid_until,suspended\nk-acme,acme,free,,true\nk-globex,globex,free,2020-12-31,\n";
    let callers =
        "customers: { identify: [{ header: x-api-key }], directory: { file: customers.csv } }\nplans: [free]\n";
    let limit = "{ key: customer, algorithm: fixed_window, limit: 5, window: 1d }";
    let gateway =
        Gateway::start_with(&format!("{}{callers}", limited(&origin, limit)), &[("customers.csv", customers)], &[]);
    let mut browser = opened(&gateway);
    for (customer, says) in [("acme", "is suspended: "), ("globex", "has no key that is still valid: ")] {
        submit(&mut browser, &[("customer-name", customer)], "customer-form");
        wait_for_answer(&mut browser, says);
        let key = format!("x-api-key: k-{customer}");
        submit(&mut browser, &[("request-url", "http://test/"), ("request-headers", &key)], "request-form");
        wait_for_answer(&mut browser, &format!("customer {customer}"));
    }
    submit(&mut browser, &[("customer-name", "acme")], "customer-form");
    wait_for_answer(&mut browser, "is suspended: ");
    readable(&mut browser, "refused");
}

#[test]
fn a_request_is_explained_with_its_body() {
    let origin = Origin::start();
    let limit =
        "{ key: all, algorithm: token_bucket, rate: 1/h, burst: 50, cost: { request_field: max_tokens, max: 100 } }";
    let gateway = Gateway::start(&limited(&origin, limit));
    let mut browser = opened(&gateway);
    let request = [("request-method", "POST"), ("request-url", "http://test/")];
    submit(&mut browser, &request, "request-form");
    wait_for_answer(&mut browser, "costs 100 (");
    wait_for_answer(&mut browser, "would be denied");
    let body = [("request-headers", "content-type: application/json"), ("request-body", r#"{"max_tokens": 7}"#)];
    submit(&mut browser, &body, "request-form");
    wait_for_answer(&mut browser, "costs 7 (");
    wait_for_answer(&mut browser, "would be admitted");
    readable(&mut browser, "body");
}

#[test]
fn a_filter_that_nothing_matches_says_so() {
    let origin = Origin::start();
    let gateway = started(&origin);
    let mut browser = opened(&gateway);
    let tables = "['limits', 'routes'].map(table => document.querySelector(`#${table} tbody`).textContent)";
    browser.evaluate(
        "document.getElementById('filter').value = 'nonsense';
         document.getElementById('filter').dispatchEvent(new Event('input'))",
    );
    wait_until("both tables to be empty", || {
        browser.evaluate(tables) == json!(["Nothing matches the filter.", "Nothing matches the filter."])
    });
}

#[test]
fn a_reload_changes_the_rows_of_routes_and_limits() {
    let origin = Origin::start();
    let gateway = started(&origin);
    let mut browser = opened(&gateway);
    let (login, logins) = (cell("routes", "login", 0), cell("limits", "logins", 0));
    browser.wait_for("document.querySelectorAll('#routes tbody tr').length === 4");
    browser.wait_for(&format!("{login} === 'login/login → origin' && {logins}.includes('sliding log, sticky')"));
    let changed = config(&origin).replace("path: /login", "path: /sign-in").replace("sliding_log", "quota_reset");
    gateway.rewrite(&changed);
    browser.wait_for(&format!("{login} === 'login/sign-in → origin' && {logins}.includes('quota reset, sticky')"));
}

#[test]
fn keys_that_are_masked_alike_have_a_row_each() {
    let origin = Origin::start();
    let limit = "{ key: { header: x-api-key }, algorithm: fixed_window, limit: 1, window: 1d }";
    let gateway = Gateway::start(&limited(&origin, limit));
    for key in ["sk_live_aaaaaaaa1", "sk_live_bbbbbbbb2"] {
        assert_eq!([(); 2].map(|()| gateway.get("/", &[("x-api-key", key)]).status), [200, 429]);
    }
    let mut browser = opened(&gateway);
    browser.wait_for(
        "performance.getEntriesByType('resource').filter(one => one.name.endsWith('/v1/offenders')).length > 3",
    );
    let rows = "[...document.querySelectorAll('#offenders .key')].map(cell => cell.textContent)";
    assert_eq!(browser.evaluate(rows), json!(["sk... (17 bytes)", "sk... (17 bytes)"]));
}

#[test]
fn values_of_clients_are_text_and_failures_are_shown() {
    let origin = Origin::start();
    let gateway = started(&origin);
    let markup = "<img src=x onerror=document.title='taken'><b>x";
    for _ in 0..7 {
        gateway.get("/login", &[("x-user", markup)]);
    }
    let mut browser = opened(&gateway);
    browser.wait_for("document.querySelector('#offenders tbody .key')?.textContent.startsWith('127.0.0.1, <img')");
    browser.wait_for("document.querySelector('#decisions tbody .key')?.textContent.includes('<b>x')");
    assert_eq!(browser.evaluate("document.querySelectorAll('img, td b').length"), 0);
    assert_eq!(browser.evaluate("document.title"), "tollgate");
    let inline = "(() => { const script = document.createElement('script'); script.textContent = 'document.title = 1';
        document.body.append(script); return document.title; })()";
    assert_eq!(browser.evaluate(inline), "tollgate", "no script runs that is not the page's own");

    gateway.folder.write("tollgate.yaml", "listeners: <b>nonsense</b>\n");
    browser.wait_for("document.getElementById('chip-config').textContent === 'new configuration refused'");
    browser.wait_for("document.getElementById('config-lines').textContent.includes('listeners')");
    drop(gateway);
    browser.wait_for("document.getElementById('chip-page').textContent.startsWith('no answer')");
}
