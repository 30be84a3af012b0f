//! A gateway that serves, on ports of its own.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use super::client::{Client, Response};
use super::metrics::Metrics;
use super::process::Process;
use super::wire::Wire;
use super::{Folder, Origin, free_port, wait_for};

/// The gateway.
#[derive(Debug)]
pub struct Gateway {
    pub process: Process,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    pub folder: Folder,
    /// What its listener says beside its address.
    listener: String,
    /// The environment variables that it is started with.
    environment: Vec<(String, String)>,
}

impl Gateway {
    /// Starts with a configuration that lacks only its addresses.
    pub fn start(config: &str) -> Self {
        Self::start_with(config, &[], &[])
    }

    /// Starts with a listener that says more than its address: `tls: {...}`, `http2: true`.
    pub fn start_listening(listener: &str, config: &str, files: &[(&str, &str)]) -> Self {
        Self::start_somewhere(listener, config, files, &[])
    }

    /// Starts with other files beside the configuration, and environment variables.
    pub fn start_with(config: &str, files: &[(&str, &str)], environment: &[(&str, &str)]) -> Self {
        Self::start_somewhere("", config, files, environment)
    }

    /// Starts with all of that.
    pub fn start_somewhere(listener: &str, config: &str, files: &[(&str, &str)], environment: &[(&str, &str)]) -> Self {
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
        let started = wait_for("the gateway to be ready", || match process.ended() {
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
            assert_eq!(self.process.ended(), None, "{}", self.process.stderr());
            is_ready(self.admin).then_some(())
        });
    }

    /// A configuration that lacks only its addresses, with them.
    pub fn whole(&self, config: &str) -> String {
        on(self.address, &self.listener, self.admin, config)
    }

    /// Writes another configuration over the one there is.
    pub fn rewrite(&self, config: &str) {
        self.folder.write("tollgate.yaml", self.whole(config));
    }

    /// Asks for a reload over the admin port.
    #[track_caller]
    pub fn reload(&self) -> Response {
        Client::connect(self.admin).post("/-/reload", &[("connection", "close")], b"")
    }

    /// A connection to it.
    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// A connection from 127.0.0.`last`.
    pub fn client_from(&self, last: u8) -> Client {
        Client::connect_from(last, self.address)
    }

    /// One request on a connection of its own.
    #[track_caller]
    pub fn get(&self, target: &str, fields: &[(&str, &str)]) -> Response {
        self.client().exchange("GET", target, fields)
    }

    /// What comes back for these bytes on a connection of their own.
    pub fn say(&self, bytes: impl AsRef<[u8]>) -> Option<Response> {
        let mut client = self.client();
        client.send(bytes);
        client.next()
    }

    #[track_caller]
    pub fn admin_get(&self, target: &str) -> Response {
        Client::connect(self.admin).exchange("GET", target, &[("connection", "close")])
    }

    /// What comes back for these bytes on a connection to the admin port.
    #[track_caller]
    pub fn say_admin(&self, bytes: &str) -> Response {
        let mut client = Client::connect(self.admin);
        client.send(bytes);
        client.receive()
    }

    pub fn metrics(&self) -> Metrics {
        Metrics::parse(&self.admin_get("/metrics").text())
    }

    /// Waits until a metric has a value; requests are counted when they are over, a moment after their answer.
    pub fn wait_for_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        wait_for(&format!("{name}{labels:?} = {value}; it is {:?}", self.metrics().all(name)), || {
            (self.metrics().value(name, labels) == Some(value)).then_some(())
        });
    }
}

/// Whether the gateway with this admin listener is ready; not if it cannot be asked.
pub fn is_ready(admin: SocketAddr) -> bool {
    answers(admin, "/readyz")
}

/// Whether a server answers this with 200; not if it cannot be asked.
pub fn answers(address: SocketAddr, target: &str) -> bool {
    let Ok(stream) = TcpStream::connect(address) else { return false };
    let mut client = Client { wire: Wire::new(stream) };
    client.ask("GET", target, &[("connection", "close")]);
    client.next().is_some_and(|response| response.status == 200)
}

fn on(address: SocketAddr, listener: &str, admin: SocketAddr, config: &str) -> String {
    let listener = if listener.is_empty() { String::new() } else { format!(", {listener}") };
    format!("listeners: [{{ address: \"{address}\"{listener} }}]\nadmin: {{ address: \"{admin}\" }}\n{config}")
}

/// A configuration with everything behind one upstream and under one limit.
pub fn limited(origin: &Origin, limit: &str) -> String {
    format!("{}limits: {{ guard: {limit} }}\n{ALL_GUARDED}", origin.upstream())
}

/// A configuration with everything behind one upstream, without limits. `upstream` goes with the nodes.
pub fn proxied(origin: &Origin, upstream: &str) -> String {
    format!("{}{ALL}", origin.upstream_with(upstream))
}

/// A route for everything.
pub const ALL: &str = "routes: [{ name: all, upstream: origin }]\n";
/// The same under the limit `guard`.
pub const ALL_GUARDED: &str = "routes: [{ name: all, upstream: origin, limits: [guard] }]\n";
