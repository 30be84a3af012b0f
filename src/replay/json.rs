//! Lines of JSON: only what is looked for is taken, the rest is passed over.

mod shapes;

use std::borrow::Cow;

use serde::de::IgnoredAny;

use self::shapes::{Shapes, Value, Word};
use super::common::request_line;
use super::fields::{Place, SLOTS, Slot, Unit};
use super::record::{self, Record, Unreadable};
use super::stamp::{self, Rfc3339};
use crate::units::Nanos;

/// What some servers write in place of a value that is a secret.
const REDACTED: &str = "REDACTED";

/// Reads lines; remembers their shapes.
#[derive(Debug)]
pub(super) struct JsonReader {
    /// The places of all that is looked for.
    root: Place,
    shapes: Shapes,
    rfc3339: Rfc3339,
}

/// What was found of a line so far, and the ranks of the places where each slot's value was.
struct Found<'r, 'l> {
    told: Told<'r, 'l>,
    ranks: [u8; SLOTS],
}

/// What a line tells.
struct Told<'r, 'l> {
    record: &'r mut Record<'l>,
    /// Whether there is a time, and whether it can be read.
    time: Option<Option<Nanos>>,
    request_line: Option<Cow<'l, str>>,
    rfc3339: &'r mut Rfc3339,
}

// === impl JsonReader ===

impl JsonReader {
    /// Takes what is at the places below `root`.
    pub(super) fn new(root: Place) -> Self {
        Self { root, shapes: Shapes::default(), rfc3339: Rfc3339::default() }
    }

    /// What a line tells, into a `record` that tells nothing yet.
    pub(super) fn read<'l>(&mut self, line: &'l [u8], record: &mut Record<'l>) -> Result<(), Unreadable> {
        if self.read_known(line, record)? {
            return Ok(());
        }
        serde_json::from_slice::<IgnoredAny>(line).map_err(|error| Unreadable::Json(error.to_string()))?;
        self.shapes.learn(line, &self.root);
        *record = Record::default();
        match self.read_known(line, record)? {
            true => Ok(()),
            false => Err(Unreadable::Json("a string holds what is no character".to_owned())),
        }
    }

    /// The same, of a line whose shape is known; `false` if it is not, or the line is no JSON.
    fn read_known<'l>(&mut self, line: &'l [u8], record: &mut Record<'l>) -> Result<bool, Unreadable> {
        let rfc3339 = &mut self.rfc3339;
        let told = Told { record, time: None, request_line: None, rfc3339 };
        let mut found = Found { told, ranks: [u8::MAX; SLOTS] };
        let is_known = self.shapes.walk(line, |slots, value| match value {
            Value::Word(Word::Nothing) => {}
            value => found.put(slots, value),
        });
        match is_known {
            true => found.told.finish().map(|()| true),
            false => Ok(false),
        }
    }
}

// === impl Found ===

impl<'l> Found<'_, 'l> {
    /// Takes a value at a place that tells all of `slots`.
    fn put(&mut self, slots: &[(u8, Slot)], value: &Value<'l>) {
        slots.iter().for_each(|(rank, slot)| self.put_one(*rank, *slot, value));
    }

    #[inline]
    fn put_one(&mut self, rank: u8, slot: Slot, value: &Value<'l>) {
        match slot.number().and_then(|number| self.ranks.get_mut(number)) {
            None => _ = self.told.take(slot, value),
            Some(best) if rank < *best && self.told.take(slot, value) => *best = rank,
            Some(_) => {}
        }
    }
}

// === impl Told ===

impl<'l> Told<'_, 'l> {
    /// Whether `value` tells what `slot` wants.
    #[inline]
    fn take(&mut self, slot: Slot, value: &Value<'l>) -> bool {
        let record = &mut *self.record;
        match slot {
            Slot::Time => {
                self.time = Some(value.time(self.rfc3339));
                true
            }
            Slot::Took(Unit::Seconds) => put(&mut record.took, value.float().and_then(stamp::seconds)),
            Slot::Took(Unit::Nanoseconds) => put(&mut record.took, value.whole().map(Nanos::new)),
            Slot::Waited => {
                record.waited = value.float().and_then(stamp::seconds).unwrap_or_default();
                true
            }
            Slot::Client => put(&mut record.client, value.bytes()),
            Slot::Method => put(&mut record.method, value.method()),
            Slot::Target => put(&mut record.target, value.bytes()),
            Slot::RequestLine => put(&mut self.request_line, value.text()),
            Slot::Host => put(&mut record.host, value.bytes()),
            Slot::Status => put(&mut record.status, value.whole().and_then(|status| u16::try_from(status).ok())),
            Slot::RequestBytes => put(&mut record.request_bytes, value.whole()),
            Slot::ResponseBytes => put(&mut record.response_bytes, value.whole()),
            Slot::Customer => put(&mut record.customer, value.text()),
            Slot::Plan => put(&mut record.plan, value.text()),
            Slot::Node => put(&mut record.node, value.text()),
            Slot::Answered => put(&mut record.answered, value.text()),
            Slot::Decision => put(&mut record.was_exempt, value.bytes().map(|word| *word == *b"bypassed")),
            Slot::Header(position) => {
                record.headers.extend(value.text().filter(|text| text != REDACTED).map(|text| (position, text)));
                true
            }
            Slot::ResponseHeader(position) => {
                record.response_headers.extend(value.text().map(|text| (position, text)));
                true
            }
        }
    }

    /// All values were shown.
    fn finish(self) -> Result<(), Unreadable> {
        let record = self.record;
        record.logged = self.time.ok_or(Unreadable::Missing("time"))?.ok_or(Unreadable::Time)?;
        match self.request_line {
            Some(Cow::Borrowed(line)) if record.target.is_none() => set_request(record, line),
            Some(Cow::Owned(line)) if record.target.is_none() => {
                let mut told = Record::default();
                set_request(&mut told, &line);
                record.method = told.method.map(|method| Cow::Owned(method.into_owned()));
                record.target = told.target.map(|target| Cow::Owned(target.into_owned()));
            }
            _ => {}
        }
        Ok(())
    }
}

fn set_request<'l>(record: &mut Record<'l>, line: &'l str) {
    if let Some((method, target)) = request_line(line.as_bytes()) {
        record.method = Some(record::method(method));
        record.target = Some(Cow::Borrowed(target));
    }
}

fn put<T>(place: &mut Option<T>, value: Option<T>) -> bool {
    let is_there = value.is_some();
    if is_there {
        *place = value;
    }
    is_there
}

/// Whether a text stands for nothing, as a dash does.
fn is_nothing(text: &[u8]) -> bool {
    matches!(text, b"" | b"-")
}

/// What some servers write a time without.
fn without_brackets(mut text: &[u8]) -> &[u8] {
    while let [b'[' | b']', inside @ ..] | [inside @ .., b'[' | b']'] = text {
        text = inside;
    }
    text
}

// === impl Value ===

impl<'l> Value<'l> {
    fn text(&self) -> Option<Cow<'l, str>> {
        match self {
            Self::Plain(text) if is_nothing(text) => None,
            Self::Plain(text) => str::from_utf8(text).ok().map(Cow::Borrowed),
            Self::Text(text) => (!is_nothing(text.as_bytes())).then(|| text.clone()),
            Self::Word(word) => word.text().map(Cow::Owned),
        }
    }

    fn method(&self) -> Option<Cow<'l, str>> {
        match self {
            Self::Plain(text) => (!is_nothing(text)).then(|| record::method(text)),
            other => other.text(),
        }
    }

    fn bytes(&self) -> Option<Cow<'l, [u8]>> {
        match self {
            Self::Plain(text) => (!is_nothing(text)).then_some(Cow::Borrowed(text)),
            other => other.text().map(|text| match text {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            }),
        }
    }

    fn whole(&self) -> Option<u64> {
        match self {
            Self::Word(Word::Whole(number)) => Some(*number),
            Self::Word(_) => None,
            other => other.text()?.parse().ok(),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a number of seconds")]
    fn float(&self) -> Option<f64> {
        match self {
            Self::Word(Word::Float(number)) => Some(*number),
            Self::Word(Word::Whole(number)) => Some(*number as f64),
            other => other.text()?.parse().ok(),
        }
    }

    fn time(&self, rfc3339: &mut Rfc3339) -> Option<Nanos> {
        match self {
            Self::Word(Word::Float(number)) => stamp::float(*number),
            other => {
                let text = other.bytes()?;
                let text = without_brackets(&text);
                rfc3339.read(text).or_else(|| stamp::number(text)).or_else(|| stamp::common(text))
            }
        }
    }
}

impl Word {
    #[inline(never)] // mostly texts are strings
    fn text(self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Whole(number) => Some(number.to_string()),
            Self::Negative(number) => Some(number.to_string()),
            Self::Float(number) => Some(number.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use proptest::prelude::*;

    use super::*;
    use crate::replay::fields::{Mapping, Wanted};

    fn reader(mappings: &[&str]) -> JsonReader {
        let wanted = Wanted { headers: vec![HeaderName::from_static("x-api-key")], ..Wanted::default() };
        let mappings: Vec<Mapping> = mappings.iter().map(|mapping| mapping.parse().unwrap()).collect();
        JsonReader::new(Place::root(&mappings, &wanted))
    }

    fn read_with<'l>(line: &'l str, mappings: &[&str]) -> Result<Record<'l>, Unreadable> {
        let mut record = Record::default();
        reader(mappings).read(line.as_bytes(), &mut record).map(|()| record)
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
        assert_eq!(
            (record.client.as_deref(), record.host.as_deref()),
            (Some(&b"192.0.2.7"[..]), Some(&b"api.test"[..]))
        );
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
    fn lines_of_traefik_tell_in_nanoseconds_how_long_a_request_took() {
        let line = r#"{"ClientHost":"192.0.2.7","DownstreamStatus":200,"DownstreamContentSize":9,"Duration":1500000,"RequestHost":
            "a.test","RequestMethod":"GET","RequestPath":"/x?y","time":"2000-10-10T20:55:36Z","request_X-Api-Key":"k"}"#;
        let record = read_with(line, &[]).unwrap();
        assert_eq!((record.took, record.status), (Some(Nanos::new(1_500_000)), Some(200)));
        assert_eq!(record.headers, [(0, "k".into())]);
        let caddy = line.replace("\"Duration\":1500000", "\"duration\":1.5");
        assert_eq!(read_with(&caddy, &[]).unwrap().took, Some(Nanos::new(1_500_000_000)));
        let line = line.replace('}', ",\"took\":2}");
        assert_eq!(read_with(&line, &["duration=took"]).unwrap().took, Some(Nanos::from_secs(2)));
    }

    #[test]
    fn a_mapping_outranks_the_usual_places() {
        let line = r#"{"time":1,"start":971211336,"user":"a","who":{"id":42},"uri":"/u","path":"/p","client":"bad"}"#;
        let record = read_with(line, &["time=start", "customer=who.id", "path=uri"]).unwrap();
        assert_eq!((record.logged, record.customer.as_deref()), (Nanos::from_secs(971_211_336), Some("42")));
        assert_eq!(record.target.as_deref(), Some(&b"/u"[..]));
    }

    #[test]
    fn what_is_no_such_line_is_told() {
        assert!(matches!(read_with("{\"time\":1", &[]), Err(Unreadable::Json(_))));
        assert!(matches!(read_with("{\"time\":1} x", &[]), Err(Unreadable::Json(_))));
        assert_eq!(read_with("{\"a\":1}", &[]), Err(Unreadable::Missing("time")));
        assert_eq!(read_with("{\"time\":\"noon\"}", &[]), Err(Unreadable::Time));
        assert_eq!(read_with("{\"time\":null}", &[]), Err(Unreadable::Missing("time")));
    }

    #[test]
    fn what_a_line_tells_does_not_hang_on_those_before_it() {
        let mut reader = reader(&["header.x-api-key=who.keys"]);
        for (line, expected) in [
            (r#"{"time":1,"user":"a","status":200}"#, Ok((Some("a"), Some(200), 0))),
            (r#"{"time":1,"user":"a","status":2001}"#, Ok((Some("a"), Some(2001), 0))),
            (r#"{"time":1,"user":"ab","status":"200"}"#, Ok((Some("ab"), Some(200), 0))),
            (r#"{"time":1,"user":null,"status":200}"#, Ok((None, Some(200), 0))),
            (r#"{"time":1,"user":"a\"b","status":200,"more":[]}"#, Ok((Some("a\"b"), Some(200), 0))),
            (r#"{"time":1,"user":"a","status":200,"who":{"keys":["k","l"]}}"#, Ok((Some("a"), Some(200), 2))),
            (r#"{"time":1,"user":"a","status":200,"who":{"keys":["k","l","m"]}}"#, Ok((Some("a"), Some(200), 3))),
            (r#"{"time":1,"user":"a","status":1e999}"#, Ok((Some("a"), None, 0))),
            (r#"{"time":1,"user":"a","status":02}"#, Err(())),
            (r#"{"time":1,"user":"a","status":nul}"#, Err(())),
            (r#"{"time":1,"user":"a","status":200"#, Err(())),
            (r#"{"time":1,"user":"a","status":200}}"#, Err(())),
            ("{\"time\":1,\"user\":\"a\tb\",\"status\":200}", Err(())),
            (r#"{"time":1,"user":"\q","status":200}"#, Err(())),
            (r#"{"time":1,"user":"\ud800","status":200}"#, Err(())),
            (r#"{"time":1,"user":"a","status":200}"#, Ok((Some("a"), Some(200), 0))),
        ] {
            let mut record = Record::default();
            let read = reader.read(line.as_bytes(), &mut record);
            let told = (record.customer.as_deref(), record.status, record.headers.len());
            assert_eq!(read.map(|()| told).map_err(drop), expected, "{line}");
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
        /// A line is read after others as it is read alone, and read at all exactly if it is JSON.
        #[test]
        fn a_reader_that_was_used_reads_like_a_new_one(
            values in prop::collection::vec((json(), json(), 0..200_usize, prop::bool::weighted(0.2)), 1..8),
        ) {
            let mut used = reader(&["customer=who.user", "header.x-api-key=request"]);
            for (user, who, cut, often) in values {
                let line = serde_json::json!({"time": 1, "user": user, "who": who}).to_string();
                // so often that what stays the same is compared at once
                let times = if often { 40 } else { 0 };
                (0..times).for_each(|_| drop(used.read(line.as_bytes(), &mut Record::default())));
                for line in [line.as_bytes(), line.as_bytes().get(..cut).unwrap_or_default()] {
                    let (mut first, mut second) = (Record::default(), Record::default());
                    let mut fresh = reader(&["customer=who.user", "header.x-api-key=request"]);
                    let read = fresh.read(line, &mut first).map(|()| first);
                    prop_assert_eq!(&used.read(line, &mut second).map(|()| second), &read);
                    let is_json = serde_json::from_slice::<IgnoredAny>(line).is_ok();
                    prop_assert_eq!(!matches!(read, Err(Unreadable::Json(_))), is_json);
                }
            }
        }
    }
}
