//! `traces:`: the receiver of spans, and the share of requests that have a span.

use crate::config::names::Names;
use crate::config::read::{Field, Section};
use crate::config::scalar::{self, InvalidValue};
use crate::config::settings::TRACES;
use crate::config::store::{NamedFile, named_file};
use crate::ruleset::limit::Share;
use crate::ruleset::{Traces, UpstreamId};

/// The settings and files for sending spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFiles {
    /// The file of the token for the collector, if the collector needs one.
    pub token: Option<NamedFile>,
    /// The gateway's `service.name` in spans.
    pub service: String,
}

const DEFAULT_PATH: &str = "/v1/traces";
const DEFAULT_SERVICE: &str = "tollgate";
const DEFAULT_SAMPLE: Share = Share(Share::WHOLE.0 / 100);
const DEFAULT_MAX_SPANS: usize = 4096;
/// The largest length of a service's name, in bytes.
const LONGEST_SERVICE: usize = 255;

/// Reads `traces:`; the inner `None` if it is absent.
pub(super) fn read(top: &Section<'_>, upstreams: &Names, has_proxies: bool) -> Option<Option<(Traces, TraceFiles)>> {
    top.get_with("traces", |field| {
        let section = field.section(&TRACES)?;
        let upstream = section.required("upstream", "the name of an upstream");
        let upstream = upstream.and_then(|field| upstreams.resolve(&field)).map(UpstreamId);
        let path =
            section.get_or("path", DEFAULT_PATH.to_owned(), |field| field.plain_path("a path, like `/v1/traces`"));
        let sample = section.get_or("sample", DEFAULT_SAMPLE, |field| {
            let share = field.parsed("a share from 0 to 1, like `0.01`", scalar::fraction)?;
            if share == Share(0) && !has_proxies {
                field.warn("no request has a span: there are no `trusted_proxies` that could ask for one", None);
            }
            Some(share)
        });
        let token = section.get_with("token_file", |field| named_file(field, "the name of a file, like `otlp.token`"));
        let service = section
            .get_or("service", DEFAULT_SERVICE.to_owned(), |field| field.parsed("a name, like `tollgate-eu`", service));
        let max_spans = section.get_or("max_spans", DEFAULT_MAX_SPANS, Field::whole);
        let traces = Traces { upstream: upstream?, path: path?, sample: sample?, max_spans: max_spans? };
        Some((traces, TraceFiles { token: token?, service: service? }))
    })
}

fn service(text: &str) -> Result<String, InvalidValue> {
    match (1..=LONGEST_SERVICE).contains(&text.len()) {
        true => Ok(text.to_owned()),
        false => Err(InvalidValue { message: "is empty or longer than 255 bytes".to_owned(), hint: None }),
    }
}
