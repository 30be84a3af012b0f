//! A running gateway on its own ports.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use super::client::{Client, Response};
use super::metrics::Metrics;
use super::process::Process;
use super::wire::Wire;
use super::{Folder, Origin, free_port, wait_for};

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    pub process: Process,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    pub folder: Folder,
    /// The listener's settings besides its address.
    listener: String,
    /// The environment variables of the process.
    environment: Vec<(String, String)>,
}

impl Gateway {
    /// Starts a gateway with a configuration that lacks only its addresses.
    pub fn start(config: &str) -> Self {
        Self::start_with(config, &[], &[])
    }

    /// Starts a gateway with more settings of its listener: `tls: {...}`, `http2: true`.
    pub fn start_listening(listener: &str, config: &str, files: &[(&str, &str)]) -> Self {
        Self::start_with_options(listener, config, files, &[])
    }

    /// Starts a gateway with other files beside the configuration, and environment variables.
    pub fn start_with(config: &str, files: &[(&str, &str)], environment: &[(&str, &str)]) -> Self {
        Self::start_with_options("", config, files, environment)
    }

    /// Starts a gateway with all of these.
    pub fn start_with_options(
        listener: &str,
        config: &str,
        files: &[(&str, &str)],
        environment: &[(&str, &str)],
    ) -> Self {
        // Another program may take a port between the choice and the start.
        for _ in 0..3 {
            if let Ok(gateway) = Self::try_start(listener, config, files, environment) {
                return gateway;
            }
        }
        panic!("cannot find free ports")
    }

    fn try_start(
        listener: &str,
        config: &str,
        files: &[(&str, &str)],
        environment: &[(&str, &str)],
    ) -> Result<Self, ()> {
        let folder = Folder::new();
        let [address, admin] = [free_port(), free_port()].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        for (name, text) in files {
            folder.write(name, text);
        }
        folder.write("tollgate.yaml", on(address, listener, admin, config));
        let mut process = Process::tollgate(&["run", "--config", "tollgate.yaml"], folder.path(), environment);
        let started = wait_for("the gateway to be ready", || match process.exit_status() {
            Some(status) => {
                assert!(process.stderr().contains("cannot listen"), "ended with {status}: {}", process.stderr());
                Some(false)
            }
            None => is_ready(admin).then_some(true),
        });
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let listener = listener.to_owned();
        if started { Ok(Self { process, address, admin, folder, listener, environment }) } else { Err(()) }
    }

    /// Ends the process with this signal, and starts another one on the same files.
    pub fn restart(&mut self, signal: &str) {
        self.end(signal);
        self.start_again();
    }

    /// Ends the process with this signal.
    pub fn end(&mut self, signal: &str) {
        self.process.signal(signal);
        self.process.wait();
    }

    /// Starts another process on the same files, with the same environment.
    pub fn start_again(&mut self) {
        let environment: Vec<(&str, &str)> =
            self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.process = Process::tollgate(&["run", "--config", "tollgate.yaml"], self.folder.path(), &environment);
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        wait_for("the gateway to be ready", || {
            assert_eq!(self.process.exit_status(), None, "{}", self.process.stderr());
            is_ready(self.admin).then_some(())
        });
    }

    /// A configuration with the addresses of this gateway.
    pub fn complete_config(&self, config: &str) -> String {
        on(self.address, &self.listener, self.admin, config)
    }

    /// Replaces the configuration file.
    pub fn rewrite(&self, config: &str) {
        self.folder.write("tollgate.yaml", self.complete_config(config));
    }

    /// Triggers a reload over the admin port.
    #[track_caller]
    pub fn reload(&self) -> Response {
        Client::connect(self.admin).post("/-/reload", &[("connection", "close")], b"")
    }

    /// A new connection to the gateway.
    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// A connection from 127.0.0.`last`.
    pub fn client_from(&self, last: u8) -> Client {
        Client::connect_from(last, self.address)
    }

    /// Sends one request on a new connection.
    #[track_caller]
    pub fn get(&self, target: &str, fields: &[(&str, &str)]) -> Response {
        self.client().round_trip("GET", target, fields)
    }

    /// The response to these bytes on a new connection.
    pub fn round_trip_raw(&self, bytes: impl AsRef<[u8]>) -> Option<Response> {
        let mut client = self.client();
        client.send(bytes);
        client.next()
    }

    #[track_caller]
    pub fn admin_get(&self, target: &str) -> Response {
        Client::connect(self.admin).round_trip("GET", target, &[("connection", "close")])
    }

    /// The response to these bytes on a new connection to the admin port.
    #[track_caller]
    pub fn admin_round_trip_raw(&self, bytes: &str) -> Response {
        let mut client = Client::connect(self.admin);
        client.send(bytes);
        client.receive()
    }

    pub fn metrics(&self) -> Metrics {
        Metrics::parse(&self.admin_get("/metrics").text())
    }

    /// Waits until a metric has a value; the gateway counts a request at its end, a moment after the response.
    pub fn wait_for_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        wait_for(&format!("{name}{labels:?} = {value}; it is {:?}", self.metrics().all(name)), || {
            (self.metrics().value(name, labels) == Some(value)).then_some(())
        });
    }
}

/// Whether the gateway with this admin listener is ready; false if the connection fails.
pub fn is_ready(admin: SocketAddr) -> bool {
    answers(admin, "/readyz")
}

/// Whether a server answers this target with 200; false if the connection fails.
pub fn answers(address: SocketAddr, target: &str) -> bool {
    let Ok(stream) = TcpStream::connect(address) else { return false };
    let mut client = Client { wire: Wire::new(stream) };
    client.send_request("GET", target, &[("connection", "close")]);
    client.next().is_some_and(|response| response.status == 200)
}

fn on(address: SocketAddr, listener: &str, admin: SocketAddr, config: &str) -> String {
    let listener = if listener.is_empty() { String::new() } else { format!(", {listener}") };
    format!("listeners: [{{ address: \"{address}\"{listener} }}]\nadmin: {{ address: \"{admin}\" }}\n{config}")
}

/// A configuration with one upstream and one limit for all requests.
pub fn limited(origin: &Origin, limit: &str) -> String {
    format!("{}limits: {{ guard: {limit} }}\n{ALL_GUARDED}", origin.upstream())
}

/// A configuration with one upstream for all requests, without limits. `upstream` holds more settings of the upstream.
pub fn proxied(origin: &Origin, upstream: &str) -> String {
    format!("{}{ALL}", origin.upstream_with(upstream))
}

/// A route for all requests.
pub const ALL: &str = "routes: [{ name: all, upstream: origin }]\n";
/// A route for all requests under the limit `guard`.
pub const ALL_GUARDED: &str = "routes: [{ name: all, upstream: origin, limits: [guard] }]\n";
