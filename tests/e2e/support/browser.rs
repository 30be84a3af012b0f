//! A headless Chromium, driven over the DevTools protocol.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine;
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

use super::{Folder, PATIENCE, wait_for};

/// A browser with one page.
pub struct Browser {
    child: Child,
    socket: WebSocket<TcpStream>,
    last: u64,
    /// The errors in the console of the page.
    pub console_errors: Vec<String>,
    _profile: Folder,
}

/// The size of a window, and its colour scheme.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    pub width: u32,
    pub height: u32,
    pub dark: bool,
}

impl Browser {
    pub fn start() -> Self {
        let profile = Folder::new();
        let mut command = Command::new("chromium");
        // Chromium's own sandbox cannot start inside another one
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        command.args(["--disable-extensions", "--hide-scrollbars", "--mute-audio", "--remote-debugging-port=0"]);
        command.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = spawned.unwrap_or_else(|error| panic!("chromium: {error}; `make needs` installs it"));
        let port = wait_for("the browser to say its port", || {
            let text = std::fs::read_to_string(profile.path().join("DevToolsActivePort")).ok()?;
            text.lines().next()?.parse::<u16>().ok()
        });
        let target = wait_for("the browser to have a page", || {
            let mut client = super::Client::connect(([127, 0, 0, 1], port).into());
            let host = format!("127.0.0.1:{port}");
            let pages = client.round_trip("GET", "/json/list", &[("host", &host), ("connection", "close")]).json();
            let page = pages.as_array()?.iter().find(|page| page["type"] == "page")?.clone();
            page["webSocketDebuggerUrl"].as_str().map(str::to_owned)
        });
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (socket, _) = tungstenite::client(target, stream).unwrap();
        let mut browser = Self { child, socket, last: 0, console_errors: Vec::new(), _profile: profile };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.command(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Runs a command, and returns its result.
    #[track_caller]
    pub fn command(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let message = json!({ "id": self.last, "method": method, "params": parameters });
        self.socket.send(Message::text(message.to_string())).unwrap();
        loop {
            let Message::Text(text) = self.socket.read().unwrap() else { continue };
            let message: Value = serde_json::from_str(&text).unwrap();
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.listen(&message);
        }
    }

    fn listen(&mut self, message: &Value) {
        let event = &message["params"];
        let is_bad = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => event["type"] == "error" || event["type"] == "warning",
            Some("Log.entryAdded") => event["entry"]["level"] == "error" || event["entry"]["level"] == "warning",
            _ => false,
        };
        if is_bad {
            self.console_errors.push(event.to_string());
        }
    }

    pub fn open(&mut self, url: &str) {
        self.command("Page.navigate", json!({ "url": url }));
    }

    pub fn set_screen(&mut self, screen: Screen) {
        let Screen { width, height, dark } = screen;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.command("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.command("Emulation.setEmulatedMedia", features);
    }

    /// The value of an expression on the page.
    #[track_caller]
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.command("Runtime.evaluate", parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Presses and releases a key that has no text of its own.
    pub fn press(&mut self, key: &str) {
        let code = if key == "Enter" { 13 } else { 9 };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "code": key, "text": text, "windowsVirtualKeyCode": code });
            self.command("Input.dispatchKeyEvent", event);
        }
    }

    /// Waits until an expression is true on the page.
    #[track_caller]
    pub fn wait_for(&mut self, expression: &str) {
        wait_for(expression, || (self.evaluate(expression) == true).then_some(()));
    }

    /// Writes a screenshot of the window, or of the `whole` page.
    pub fn picture(&mut self, file: &Path, whole: bool) {
        let picture = self.command("Page.captureScreenshot", json!({ "captureBeyondViewport": whole }));
        let bytes = base64::engine::general_purpose::STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
