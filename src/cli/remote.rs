//! A client for the admin port of a running gateway.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use ureq::{Agent, Body};

use crate::files;

/// Which gateway, and how to ask it for changes.
#[derive(Args, Clone, Debug)]
pub struct RemoteArgs {
    /// The admin port of the gateway: a URL or an address
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090", value_parser = admin)]
    pub admin: String,
}

/// The token that changes are asked for with. No `Debug`: it names no secret, but the variable may hold one.
#[derive(Args, Clone)]
pub struct TokenArgs {
    /// The file with the gateway's admin token, as in `admin.token_file` [default: the token in the environment variable
    /// TOLLGATE_ADMIN_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// The environment variable that holds the token if no file is named, and the message where there is neither.
const TOKEN_VARIABLE: &str = "TOLLGATE_ADMIN_TOKEN";
const NO_TOKEN: &str = "this command changes the gateway and needs its token: name the file of the token with --token-file, \
                        or set the environment variable TOLLGATE_ADMIN_TOKEN";
/// The longest token, in bytes.
const MAX_TOKEN: usize = 4 << 10;
/// The timeout of a request, and the most bytes of its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_RESPONSE: u64 = 64 << 20;
/// The most bytes of a response of which only the status counts.
const MAX_REASON: u64 = 4096;

/// A client for one gateway. No `Debug`: it holds the token.
pub struct Remote {
    agent: Agent,
    admin: String,
    token: Option<String>,
}

impl TokenArgs {
    /// The token from the file or from the environment variable.
    pub fn read(&self) -> Result<String, String> {
        let (token, place) = match &self.token_file {
            None => (std::env::var(TOKEN_VARIABLE).map_err(|_| NO_TOKEN)?, TOKEN_VARIABLE.to_owned()),
            Some(file) => {
                let place = format!("--token-file: {}", file.display());
                let bytes = files::read(file, MAX_TOKEN).0.map_err(|reason| format!("{place} {reason}"))?;
                let text = String::from_utf8(bytes);
                (text.map_err(|_| format!("{place} does not hold a token: it is not text"))?, place)
            }
        };
        match token.trim() {
            line if line.contains(char::is_control) => {
                Err(format!("{place} does not hold a token: one line is expected"))
            }
            line => Ok(line.to_owned()),
        }
    }
}

impl Remote {
    /// Creates a client for the gateway that `args` names; changes need a `token`.
    pub fn new(args: &RemoteArgs, token: Option<String>) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(REQUEST_TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            // a proxy in the operator's environment does not lead to the gateway
            .proxy(None)
            .build();
        let scheme = if args.admin.contains("://") { "" } else { "http://" };
        let admin = format!("{scheme}{}", args.admin.trim_end_matches('/'));
        Self { agent: config.into(), admin, token }
    }

    /// The URL of the admin port.
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// The response to `GET path`.
    pub fn get(&self, path: &str) -> Result<Value, String> {
        self.answer(self.agent.get(format!("{}{path}", self.admin)).call())
    }

    /// The status of the response to `GET path`, and what has come of its body in `timeout`.
    pub fn status_of(&self, path: &str, timeout: Duration) -> Result<(u16, String), ureq::Error> {
        let request = self.agent.get(format!("{}{path}", self.admin));
        let mut response = request.config().timeout_global(Some(timeout)).build().call()?;
        let mut reason = Vec::new();
        // the status decides, whether the body comes or not
        _ = response.body_mut().as_reader().take(MAX_REASON).read_to_end(&mut reason);
        Ok((response.status().as_u16(), String::from_utf8_lossy(&reason).into_owned()))
    }

    /// The response to `POST path` with `question` as its body.
    pub fn post(&self, path: &str, question: &Value) -> Result<Value, String> {
        let mut request = self.agent.post(format!("{}{path}", self.admin)).content_type("application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.answer(request.send(question.to_string()))
    }

    fn answer(&self, response: Result<http::Response<Body>, ureq::Error>) -> Result<Value, String> {
        let admin = &self.admin;
        let unreachable = |error: ureq::Error| {
            format!(
                "cannot reach the gateway at {admin}: {error}; is it running? --admin takes the URL of another admin port"
            )
        };
        let mut response = response.map_err(unreachable)?;
        let text = response.body_mut().with_config().limit(MAX_RESPONSE).read_to_string().map_err(unreachable)?;
        let status = response.status();
        let answer = serde_json::from_str::<Value>(&text).unwrap_or_default();
        match answer["error"].as_str() {
            _ if status.is_success() && !answer.is_null() => Ok(answer),
            Some(error) => Err(format!("the gateway at {admin} says: {error}")),
            None => Err(format!(
                "the server at {admin} is not a tollgate gateway of this version: it responded with status {status}"
            )),
        }
    }
}

fn admin(text: &str) -> Result<String, &'static str> {
    if text.starts_with("https://") {
        return Err("the admin port speaks plain HTTP, without TLS: write http:// in place of https://");
    }
    Ok(text.to_owned())
}
