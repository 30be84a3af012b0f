//! `tollgate init`: a first configuration from an upstream's URL and what callers may do there.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use clap::Args;
use http::Uri;
use rustix::io::Errno;

use crate::cli::simulate::values;
use crate::cli::{print, unwritten};
use crate::config;
use crate::ruleset::limit::Limit;

/// The arguments of `tollgate init`.
#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    /// The upstream and its limits
    #[command(flatten)]
    pub first: FirstConfig,
    /// A plan and the rate of each of its customers, like free=10/s; may be repeated. Customers send their key in x-api-key
    #[arg(long = "plan", value_name = "NAME=RATE", value_parser = plan, conflicts_with = "limit")]
    pub plans: Vec<(String, String)>,
    /// The folder to write tollgate.yaml to, and customers.csv if there are plans
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub folder: PathBuf,
}

/// The settings of a first configuration.
#[derive(Args, Clone, Debug)]
pub struct FirstConfig {
    /// The upstream to forward requests to, like http://127.0.0.1:9000
    #[arg(long, value_name = "URL", value_parser = upstream)]
    pub upstream: Option<Upstream>,
    /// The rate limit of each client address [default: 10/s]
    #[arg(long, value_name = "RATE", value_parser = rate, requires = "upstream")]
    pub limit: Option<String>,
    /// The address to listen on for clients [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", value_parser = address, requires = "upstream")]
    pub listen: Option<SocketAddr>,
    /// The address of the admin port, with metrics and health [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS", value_parser = address, requires = "upstream")]
    pub admin: Option<SocketAddr>,
}

/// The upstream that a URL names.
#[derive(Clone, Debug)]
pub struct Upstream {
    node: String,
    is_tls: bool,
}

/// The name of a configuration that is in no file.
pub(super) const ON_COMMAND_LINE: &str = "the command line";

/// The permissions of a configuration, from which the system takes some away, and of a file with keys.
const OF_CONFIG: u32 = 0o666;
const OF_KEYS: u32 = 0o600;

/// What is added where a restart would otherwise forget long quotas.
const STATE: &str = "
# Keeps over restarts what callers have used.
state: { file: tollgate.state }
";

/// Writes the files, or none if one of them exists, and says what to do next.
pub fn execute(args: &InitArgs, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let text = args.first.text(&args.plans);
    let mut text = text.ok_or("give the URL to forward requests to, like --upstream http://127.0.0.1:9000")?;
    let file = args.folder.join("tollgate.yaml");
    let name = file.display().to_string();
    let loaded = config::load(&text, ON_COMMAND_LINE, &|_| None)?;
    if loaded.ruleset.limits.iter().any(Limit::has_long_quota) {
        text += STATE;
    }
    let mut says = format!("Describe it with `tollgate check {name}`, run it with `tollgate run --config {name}`.\n");
    let mut files = vec![(file, text, OF_CONFIG)];
    if !args.plans.is_empty() {
        files.push((args.folder.join("customers.csv"), customers(&args.plans), OF_KEYS));
        says.insert_str(0, "customers.csv has one customer for each plan, with a key to try.\n");
    }
    if let Some((path, ..)) = files.iter().find(|(path, ..)| path.exists()) {
        return Err(unwritten(path, &Errno::EXIST.into()).into());
    }
    for (path, text, mode) in files {
        let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path);
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| unwritten(&path, &error))?;
    }
    Ok(print(out, &says)?)
}

impl FirstConfig {
    /// The text of the configuration; `None` where no upstream is named.
    pub fn text(&self, plans: &[(String, String)]) -> Option<String> {
        let Upstream { node, is_tls } = self.upstream.as_ref()?;
        let address = |said: Option<SocketAddr>, port| said.unwrap_or((Ipv4Addr::LOCALHOST, port).into());
        let (listen, admin) = (address(self.listen, 8080), address(self.admin, 9090));
        let tls = if *is_tls { ", tls: {}" } else { "" };
        let limit = match plans {
            [] => limit_of_clients(self.limit.as_deref().unwrap_or("10/s")),
            plans => limit_of_plans(plans),
        };
        Some(format!(
            "# Written by `tollgate init`. `tollgate check` says what it means; it is read again when it changes.

# 0.0.0.0 in place of 127.0.0.1 lets other machines in
listeners: [{{ address: \"{listen}\" }}]
# Metrics, health and a page that shows what goes on: for operators, not for clients.
admin: {{ address: \"{admin}\" }}

upstreams:
  api: {{ nodes: [\"{node}\"]{tls} }}

{limit}
routes:
  - {{ name: api, upstream: api, limits: [per-client] }}
"
        ))
    }
}

fn limit_of_clients(rate: &str) -> String {
    format!(
        "# Behind another proxy, say which: client_address: {{ trusted_proxies: [10.0.0.0/8] }}
limits:
  per-client:
    key: client_address
    algorithm: gcra
    rate: {rate}
    burst: {}   # so many at once
",
        burst(rate)
    )
}

fn limit_of_plans(plans: &[(String, String)]) -> String {
    let names: Vec<String> = plans.iter().map(|(name, _)| in_yaml(name)).collect();
    let mut text = format!(
        "# Who is calling: the key in `x-api-key`, looked up in the file.
customers:
  identify: [{{ header: x-api-key }}]
  directory: {{ file: customers.csv }}
  unknown: deny

plans: [{}]

limits:
  per-client:
    key: customer
    algorithm: gcra
    plans:
",
        names.join(", ")
    );
    for (name, rate) in plans {
        text += &format!("      {}: {{ rate: {rate}, burst: {} }}\n", in_yaml(name), burst(rate));
    }
    text
}

/// A name as YAML, in quotes where YAML would not read it as a text.
fn in_yaml(name: &str) -> String {
    if name.eq_ignore_ascii_case("null") || name.ends_with(':') { format!("\"{name}\"") } else { name.to_owned() }
}

/// The burst that goes with a rate: its count, like 10 for `10/s`, rounded up, and at least 1.
fn burst(rate: &str) -> u64 {
    let count = rate.split('/').next().unwrap_or_default();
    let (whole, fraction) = count.split_once('.').unwrap_or((count, ""));
    let has_rest = fraction.bytes().any(|digit| digit != b'0');
    whole.parse().unwrap_or(0_u64).saturating_add(u64::from(has_rest)).max(1)
}

fn customers(plans: &[(String, String)]) -> String {
    let mut text = "credential,customer,plan\n".to_owned();
    for (name, _) in plans {
        let key = rand::random::<u64>();
        text += &format!("{name}-{key:016x},first-of-{name},{name}\n");
    }
    text
}

fn plan(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, of_plan)) if !name.is_empty() && !of_plan.is_empty() => {
            config::check_name(name).map_err(values::describe)?;
            Ok((name.to_owned(), rate(of_plan)?))
        }
        _ => Err("must be a name and a rate, like free=10/s".to_owned()),
    }
}

/// The text of a rate, which the configuration takes over.
fn rate(text: &str) -> Result<String, String> {
    values::rate(text).map(|_| text.to_owned())
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "must be an IP address and a port, like 127.0.0.1:8080")
}

fn upstream(text: &str) -> Result<Upstream, String> {
    const EXPECTED: &str = "must be a URL without a path, like http://127.0.0.1:9000";
    let url: Uri = text.parse().map_err(|_| EXPECTED)?;
    let (is_tls, port) = match url.scheme_str() {
        Some("http") => (false, 80_u16),
        Some("https") => (true, 443),
        _ => return Err(EXPECTED.to_owned()),
    };
    match url.authority() {
        Some(authority) if matches!(url.path(), "" | "/") && url.query().is_none() && !text.contains('@') => {
            let host = authority.host();
            let port = match authority.as_str().strip_prefix(host).and_then(|rest| rest.strip_prefix(':')) {
                None => port,
                Some(named) => match named.parse() {
                    Ok(number) if number > 0 && named.bytes().all(|byte| byte.is_ascii_digit()) => number,
                    _ => return Err("has no port from 1 to 65535".to_owned()),
                },
            };
            Ok(Upstream { node: format!("{host}:{port}"), is_tls })
        }
        _ => Err(EXPECTED.to_owned()),
    }
}
