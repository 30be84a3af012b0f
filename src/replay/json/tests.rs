use http::HeaderName;
use proptest::prelude::*;

use super::*;
use crate::replay::fields::{Mapping, WantedFields};

fn reader(mappings: &[&str]) -> JsonReader {
    let wanted = WantedFields { headers: vec![HeaderName::from_static("x-api-key")], ..WantedFields::default() };
    let mappings: Vec<Mapping> = mappings.iter().map(|mapping| mapping.parse().unwrap()).collect();
    JsonReader::new(FieldTree::root(&mappings, &wanted))
}

fn read_with(line: &str, mappings: &[&str]) -> Result<Record, Unreadable> {
    reader(mappings).read(line.as_bytes())
}

#[test]
fn lines_of_tollgate_tell_all_that_is_needed() {
    let line = r#"{"timestamp":"2000-10-10T20:55:36.250000Z","method":"GET","host":"api.test","path":"/a","status":429,
        "duration_seconds":0.25,"route":"all","client":"192.0.2.7","customer":"acme","plan":"free","decision":"denied",
        "limit":"guard","wait_seconds":0.0,"answered":"limited"}"#;
    let record = read_with(line, &[]).unwrap();
    assert_eq!((record.logged.get(), record.took), (971_211_336_250_000_000, Some(Nanos::new(250_000_000))));
    let texts = [&record.method, &record.customer, &record.plan].map(|text| text.as_deref().unwrap());
    assert_eq!(texts, ["GET", "acme", "free"]);
    assert_eq!((record.client.as_deref(), record.host.as_deref()), (Some(&b"192.0.2.7"[..]), Some(&b"api.test"[..])));
    assert_eq!((record.target.as_deref(), record.status), (Some(&b"/a"[..]), Some(429)));
    assert_eq!((record.answered.as_deref(), record.was_exempt), (Some("limited"), Some(false)));
    let line = line.replace("denied", "bypassed");
    let read = read_with(&line, &[]).unwrap();
    assert_eq!(read, Record { was_exempt: Some(true), ..record });
}

#[test]
fn lines_of_other_servers_are_understood() {
    let caddy = r#"{"level":"info","ts":971211336.5,"msg":"handled request","request":{"remote_ip":"192.0.2.7","client_ip":
        "192.0.2.8","method":"PUT","host":"a.test","uri":"/x?y","headers":{"X-Api-Key":["k1"],"Authorization":["REDACTED"]}},
        "bytes_read":7,"user_id":"","duration":0.5,"size":9,"status":200,"resp_headers":{"Server":["Caddy"]}}"#;
    let record = read_with(caddy, &[]).unwrap();
    assert_eq!((record.logged.get(), record.client.as_deref()), (971_211_336_500_000_000, Some(&b"192.0.2.8"[..])));
    assert_eq!((record.target.as_deref(), record.method.as_deref()), (Some(&b"/x?y"[..]), Some("PUT")));
    assert_eq!((record.request_bytes, record.response_bytes, record.customer), (Some(7), Some(9), None));
    assert_eq!(record.headers, [(0, "k1".into())]);

    let nginx = r#"{"time_iso8601":"2000-10-10T20:55:36+00:00","remote_addr":"192.0.2.7","request":"GET /\u0061 HTTP/1.1",
        "status":"204","body_bytes_sent":"0","request_time":"0.010","http_host":"a.test","http_x_api_key":"k","remote_user":"-"}"#;
    let record = read_with(nginx, &[]).unwrap();
    assert_eq!((record.target.as_deref(), record.status), (Some(&b"/a"[..]), Some(204)));
    assert_eq!((record.took, record.customer), (Some(Nanos::new(10_000_000)), None));
    assert_eq!(record.headers, [(0, "k".into())]);
}

#[test]
fn the_request_line_of_nginx_tells_the_method_and_the_query() {
    let read = |line: &'static str, mappings: &[&str]| {
        let record = read_with(line, mappings).unwrap();
        (record.method, String::from_utf8(record.target.unwrap()).unwrap())
    };
    let of = |method: Option<&str>, target: &str| (method.map(str::to_owned), target.to_owned());
    let line = r#"{"time":1,"request":"PUT /b?q=1 HTTP/1.1","request_uri":"/b?q=1"}"#;
    assert_eq!(read(line, &[]), of(Some("PUT"), "/b?q=1"));
    // `$uri` has no query, and changes with rewrites
    let line = r#"{"time":1,"uri":"/c","request":"PUT /b?q=1 HTTP/1.1"}"#;
    assert_eq!(read(line, &[]), of(Some("PUT"), "/b?q=1"));
    assert_eq!(read(line, &["path=uri"]), of(Some("PUT"), "/c"));
    let line = r#"{"time":1,"method":"orders.list","request":"GET /b HTTP/1.1"}"#;
    assert_eq!(read(line, &[]), of(Some("GET"), "/b"));
    assert_eq!(read(r#"{"time":1,"uri":"/c","method":"GET"}"#, &[]), of(Some("GET"), "/c"));
}

#[test]
fn lines_of_traefik_tell_in_nanoseconds_how_long_a_request_took() {
    let line = r#"{"ClientHost":"192.0.2.7","DownstreamStatus":200,"DownstreamContentSize":9,"Duration":1500000,"RequestHost":
        "a.test","RequestMethod":"GET","RequestPath":"/x?y","time":"2000-10-10T20:55:36Z","request_X-Api-Key":"k"}"#;
    let record = read_with(line, &[]).unwrap();
    assert_eq!((record.took, record.status), (Some(Nanos::new(1_500_000)), Some(200)));
    assert_eq!(record.headers, [(0, "k".into())]);
    let caddy = line.replace("\"Duration\":1500000", "\"duration\":1.5");
    assert_eq!(read_with(&caddy, &[]).unwrap().took, Some(Nanos::new(1_500_000_000)));
    // its `time` is a whole second, but it tells the beginning exactly
    let line = line.replace('}', ",\"StartUTC\":\"2000-10-10T20:55:35.750000001Z\"}");
    let record = read_with(&line, &[]).unwrap();
    assert_eq!((record.began().get(), record.within_second), (971_211_335_750_000_001, None));
    assert_eq!(record.ended().get(), 971_211_335_751_500_001);
    let line = line.replace('}', ",\"took\":2}");
    let record = read_with(&line, &["duration=took", "time=time"]).unwrap();
    assert_eq!((record.took, record.logged), (Some(Nanos::from_secs(2)), Nanos::from_secs(971_211_336)));
}

#[test]
fn an_exact_time_of_nginx_counts_before_one_in_whole_seconds() {
    let line = r#"{"time_iso8601":"2000-10-10T20:55:36+00:00","msec":"971211336.250","time_local":"-"}"#;
    let record = read_with(line, &[]).unwrap();
    assert_eq!((record.logged.get(), record.within_second), (971_211_336_250_000_000, None));
}

#[test]
fn a_mapping_stands_in_for_the_usual_places() {
    let line = r#"{"time":1,"start":971211336,"user":"a","who":{"id":42},"uri":"/u","path":"/p","client":"bad",
        "duration":12,"http_x_api_key":"ab***","req":{"key":"abcd"}}"#;
    let mappings =
        ["time=start", "customer=who.id", "path=uri", "client=at", "duration_ms=duration", "header.X-API-Key=req.key"];
    let record = read_with(line, &mappings).unwrap();
    assert_eq!((record.logged, record.customer.as_deref()), (Nanos::from_secs(971_211_336), Some("42")));
    assert_eq!((record.target.as_deref(), record.client), (Some(&b"/u"[..]), None));
    assert_eq!(record.headers, [(0, "abcd".into())]);
    assert_eq!(record.took, Some(Nanos::new(12_000_000)));
    for (mapping, took) in [("duration_us=duration", 12_000), ("duration_ns=duration", 12), ("duration_ns=x", 0)] {
        assert_eq!(read_with(line, &[mapping]).unwrap().took.unwrap_or_default(), Nanos::new(took), "{mapping}");
    }
}

#[test]
fn a_line_of_another_form_is_an_error() {
    assert!(matches!(read_with("{\"time\":1", &[]), Err(Unreadable::Json(_))));
    assert!(matches!(read_with("{\"time\":1} x", &[]), Err(Unreadable::Json(_))));
    assert_eq!(read_with("{\"a\":1}", &[]), Err(Unreadable::Missing("time")));
    assert_eq!(read_with("{\"time\":\"noon\"}", &[]), Err(Unreadable::Time));
    assert_eq!(read_with("{\"time\":null}", &[]), Err(Unreadable::Missing("time")));
}

#[test]
fn a_time_that_cannot_be_read_hides_no_other_one() {
    for line in [r#"{"timestamp":"soon","time":971211336}"#, r#"{"time":971211336,"timestamp":"soon"}"#] {
        assert_eq!(read_with(line, &[]).unwrap().logged, Nanos::from_secs(971_211_336), "{line}");
    }
}

#[test]
fn a_record_does_not_depend_on_earlier_lines() {
    let reader = reader(&["header.x-api-key=who.keys"]);
    for (line, expected) in [
        (r#"{"time":1,"user":"a","status":200}"#, Ok((Some("a"), Some(200), 0))),
        (r#"{"time":1,"user":"a","status":2001}"#, Ok((Some("a"), Some(2001), 0))),
        (r#"{"time":1,"user":"ab","status":"200"}"#, Ok((Some("ab"), Some(200), 0))),
        (r#"{"time":1,"user":null,"status":200}"#, Ok((None, Some(200), 0))),
        (r#"{"time":1,"user":"a\"b","status":200,"more":[]}"#, Ok((Some("a\"b"), Some(200), 0))),
        (r#"{"time":1,"user":"a","status":200,"who":{"keys":["k","l"]}}"#, Ok((Some("a"), Some(200), 2))),
        (r#"{"time":1,"user":"a","status":200,"who":{"keys":["k","l","m"]}}"#, Ok((Some("a"), Some(200), 3))),
        (r#"{"time":1,"user":"a","status":1e999}"#, Err(())),
        (r#"{"time":1,"user":"a","status":200,"more":1e999}"#, Ok((Some("a"), Some(200), 0))),
        (r#"{"time":1,"user":"a","status":02}"#, Err(())),
        (r#"{"time":1,"user":"a","status":nul}"#, Err(())),
        (r#"{"time":1,"user":"a","status":200"#, Err(())),
        (r#"{"time":1,"user":"a","status":200}}"#, Err(())),
        ("{\"time\":1,\"user\":\"a\tb\",\"status\":200}", Err(())),
        (r#"{"time":1,"user":"\q","status":200}"#, Err(())),
        (r#"{"time":1,"user":"\ud800","status":200}"#, Err(())),
        (r#"{"time":1,"user":"a","status":200}"#, Ok((Some("a"), Some(200), 0))),
    ] {
        let read = reader.read(line.as_bytes());
        let told = read.as_ref().map(|record| (record.customer.as_deref(), record.status, record.headers.len()));
        assert_eq!(told.map_err(drop), expected, "{line}");
    }
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::{Number, Value};
    let float = any::<f64>().prop_filter_map("JSON has no such number", Number::from_f64);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        float.prop_map(Value::from),
        "[a-c \"\\\\é\t]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let name = prop_oneof![Just("user"), Just("time"), Just("who"), Just("request"), Just("\"\n"), Just("")];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec((name.prop_map(String::from), inner), 0..3)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    /// The reader reads a line after other lines as it reads the line alone, and accepts exactly the lines that are JSON.
    #[test]
    fn a_reader_that_was_used_reads_like_a_new_one(
        values in prop::collection::vec((json(), json(), 0..200_usize), 1..8),
    ) {
        let used = reader(&["customer=who.user", "header.x-api-key=request"]);
        for (user, who, cut) in values {
            let line = serde_json::json!({"time": 1, "user": user, "who": who}).to_string();
            for line in [line.as_bytes(), line.as_bytes().get(..cut).unwrap_or_default()] {
                let fresh = reader(&["customer=who.user", "header.x-api-key=request"]);
                let read = fresh.read(line);
                prop_assert_eq!(&used.read(line), &read);
                let is_json = serde_json::from_slice::<IgnoredAny>(line).is_ok();
                prop_assert_eq!(!matches!(read, Err(Unreadable::Json(_))), is_json);
            }
        }
    }
}

#[test]
fn bytes_that_are_not_utf8_are_replaced() {
    let line = b"{\"time\":1,\"user\":\"a\xff\",\"path\":\"/a\",\"agent\":\"\xfe\"}";
    let record = reader(&[]).read(line).unwrap();
    assert_eq!((record.customer.as_deref(), record.target.as_deref()), (Some("a\u{fffd}"), Some(&b"/a"[..])));
}
