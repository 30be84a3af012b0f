//! `tollgate demo`: a gateway with sample plans in front of a sample upstream, in one process.

use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;

use crate::cli::OutputError;
use crate::cli::run::{hold_signals, start_logging};
use crate::cli::source::directory::RowContext;
use crate::cli::source::{self, Source};
use crate::customers::Directory;
use crate::customers::directory::FileDirectory;
use crate::ruleset::Endpoint;
use crate::runtime::{self, Setup};

const CONFIG: &str = include_str!("../../config/tollgate.yaml");
const CUSTOMERS: &str = include_str!("../../config/customers.csv");

/// The arguments of `tollgate demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// The address to listen on for clients
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// The address of the admin port, with metrics and health
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9090")]
    pub admin: SocketAddr,
    /// The address of the sample upstream
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    pub upstream: SocketAddr,
}

/// Runs the demo until it is told to stop.
pub fn execute(args: &DemoArgs, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let signals = hold_signals()?;
    let Source { mut parts, customers, .. } = Source::of_text(CONFIG.to_owned(), "config/tollgate.yaml")?;
    parts.listeners = vec![Endpoint::Inet(args.listen)];
    parts.admin = args.admin;
    let rules = &mut parts.rules;
    for node in rules.ruleset.upstreams.iter_mut().flat_map(|upstream| &mut upstream.nodes) {
        node.address = args.upstream.to_string();
    }
    let context = RowContext { overrides: &customers.overrides, groups: &rules.groups };
    let table = source::directory::load(CUSTOMERS, "config/customers.csv", context)?;
    rules.directory = Directory::File(FileDirectory { table: Arc::new(table), writable: None }).into();
    let setup = Setup { signals, parts, origin: None, sample: Some(args.upstream) };
    let prepared = runtime::prepare(setup)
        .map_err(|error| format!("{error}; --listen, --admin and --upstream choose other addresses"))?;
    introduce(args, out).map_err(OutputError)?;
    let guard = start_logging()?;
    let ended = prepared.run();
    drop(guard);
    Ok(ended?)
}

fn introduce(args: &DemoArgs, out: &mut dyn Write) -> std::io::Result<()> {
    let DemoArgs { listen, admin, .. } = args;
    writeln!(
        out,
        "The gateway listens on {listen} with the rules of config/tollgate.yaml. In another terminal:

  # an anonymous caller: 5 at once, then one a second
  for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}}\\n' http://{listen}/v1/orders; done

  # a customer on the plan `free`: 20 at once, then ten a second; and the response to a request above that
  for i in $(seq 25); do curl -s -o /dev/null -w '%{{http_code}} ' -H 'x-api-key: free-key' http://{listen}/v1/orders; done; echo
  curl -si -H 'x-api-key: free-key' http://{listen}/v1/orders

  # the same in numbers
  curl -s http://{admin}/metrics | grep '^tollgate_limit_requests_total'

Ctrl-C ends it."
    )?;
    out.flush()
}
